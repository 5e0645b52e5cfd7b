"""A completion's stream asked for again: finished, running, failed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.fake_worker import Fail, Say, Silent, Stop, Wait
from tests.api.node import Node
from tests.api.openai.asking import PATH, asking, blocks, parsed


@pytest.fixture
async def first(node: Node, http: httpx.AsyncClient) -> str:
    """The first connection's stream, with usage."""
    options = {"include_usage": True}
    return (await http.post(PATH, json=asking(stream=True, stream_options=options))).text


def url(node: Node, query: str = "") -> str:
    return f"{PATH}/chatcmpl-{node.worker.tasks[0].task_id}/stream{query}"


async def test_a_finished_completion_is_streamed_again(
    first: str, node: Node, http: httpx.AsyncClient
) -> None:
    again = await http.get(url(node, "?include_usage=true"))
    assert again.text == first
    assert again.headers["content-type"] == "text/event-stream; charset=utf-8"
    bare = await http.get(url(node).replace("chatcmpl-", ""))
    assert [number for number, _ in parsed(bare.text)] == [0, 1, 2, 3, 4, 5]


async def test_any_number_is_a_place_to_go_on_from(
    first: str, node: Node, http: httpx.AsyncClient
) -> None:
    whole = first.split("\n\n")
    for number in range(len(whole)):
        rest = "\n\n".join(whole[number + 1 :])
        query = f"?include_usage=true&starting_after={number}"
        assert (await http.get(url(node, query))).text == rest
        header = {"last-event-id": str(number)}
        assert (await http.get(url(node, "?include_usage=true"), headers=header)).text == rest


async def test_past_the_end_there_is_an_empty_closed_stream(
    first: str, node: Node, http: httpx.AsyncClient
) -> None:
    for after in (6, 7, 10**30):
        response = await http.get(url(node, f"?starting_after={after}"))
        assert (response.status_code, response.text) == (200, "")
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_the_header_is_newer_than_the_address(
    first: str, node: Node, http: httpx.AsyncClient
) -> None:
    response = await http.get(url(node, "?starting_after=1"), headers={"last-event-id": "4"})
    assert [number for number, _ in parsed(response.text)] == [5]


async def test_a_running_completion_is_taken_up_where_it_broke_off(
    node: Node, http: httpx.AsyncClient
) -> None:
    go = asyncio.Event()
    node.worker.script = lambda task: [Say("a"), Say("b"), Wait(go), Silent(), Say("c"), Stop()]
    last = -1
    async with http.stream("POST", PATH, json=asking(stream=True)) as response:
        async for block in blocks(response):
            [(number, _)] = parsed(block)
            assert number is not None
            last = number
            if '"content":"a"' in block:
                break
    resumed = asyncio.create_task(http.get(url(node, f"?starting_after={last}")))
    await asyncio.sleep(0.1)
    go.set()
    texts = [text(data) for _, data in parsed((await resumed).text)]
    assert texts == ["b", "c", None, None]


def text(data: Any) -> str | None:
    return None if data == "[DONE]" else data["choices"][0]["delta"].get("content")


async def test_a_failed_completion_says_so_again(node: Node, http: httpx.AsyncClient) -> None:
    node.worker.script = lambda task: [Say("a"), Fail("runner_crashed", "It died.")]
    sent = (await http.post(PATH, json=asking(stream=True))).text
    assert (await http.get(url(node))).text == sent
    *_, (number, error), (_, done) = parsed((await http.get(url(node, "?starting_after=1"))).text)
    assert (number, error["error"]["code"], done) == (2, "runner_crashed", "[DONE]")


async def test_a_completion_that_failed_at_once_is_an_error_from_its_start(
    node: Node, http: httpx.AsyncClient
) -> None:
    node.worker.script = lambda task: [Fail("runner_crashed", "It died.")]
    await http.post(PATH, json=asking())
    response = await http.get(url(node))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "runner_crashed")
    resumed = parsed((await http.get(url(node, "?starting_after=0"))).text)
    assert [data for _, data in resumed] == ["[DONE]"]


def test_an_unknown_completion_is_404(shared: httpx.Client) -> None:
    for id in ("chatcmpl-none", "none", "chatcmpl-"):
        response = shared.get(f"{PATH}/{id}/stream")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "query", ["starting_after=-1", "starting_after=x", "starting_after=null", "include_usage=maybe"]
)
async def test_a_bad_parameter_is_refused(
    first: str, node: Node, http: httpx.AsyncClient, query: str
) -> None:
    response = await http.get(url(node, f"?{query}"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]
    odd = await http.get(url(node), headers={"last-event-id": "-1"})
    assert odd.json()["error"]["param"] == "Last-Event-ID"
