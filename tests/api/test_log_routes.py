"""The log over HTTP: pages, single events, and following it live."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from domain import chain
from domain import events as e
from tests.api.fake_worker import Say, Stop, Wait
from tests.api.node import Node
from tests.api.openai.asking import PATH, asking, blocks, parsed

SSE = {"accept": "text/event-stream"}


@pytest.fixture
async def asked(node: Node, http: httpx.AsyncClient) -> str:
    """A completion that has ended; its command's id."""
    answer = await http.post(PATH, json=asking(user="Ann"))
    return str(answer.json()["id"]).removeprefix("chatcmpl-")


@contextlib.asynccontextmanager
async def following(
    http: httpx.AsyncClient, query: str = "", **headers: str
) -> AsyncIterator[AsyncIterator[str]]:
    async with http.stream("GET", f"/events{query}", headers=SSE | headers) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield blocks(response)


async def take(events: AsyncIterator[str], count: int) -> list[tuple[int | None, Any]]:
    async with asyncio.timeout(5):
        return parsed("\n\n".join([await anext(events) for _ in range(count)]))


async def test_pages_join_into_the_whole_log(
    asked: str, node: Node, http: httpx.AsyncClient
) -> None:
    found: list[Any] = []
    after, more = 0, True
    while more:
        page = (await http.get("/events", params={"after": after, "limit": 3})).json()
        assert page["object"] == "list"
        assert len(page["data"]) <= 3
        found += page["data"]
        after, more = page["next_after"], page["has_more"]
    assert [event["position"] for event in found] == list(range(1, len(found) + 1))
    assert len(found) == (await node.store.head()).position
    end = (await http.get("/events", params={"after": after})).json()
    assert end == {"object": "list", "data": [], "has_more": False, "next_after": after}


async def test_an_event_shows_all_that_the_log_holds(
    asked: str, node: Node, http: httpx.AsyncClient
) -> None:
    stream = f"completion/{asked}"
    page = (await http.get("/events", params={"stream": stream})).json()
    types = [event["type"] for event in page["data"]]
    assert types[:3] == ["CommandAccepted", "TaskCreated", "TaskAcknowledged"]
    assert types[-1] == "TaskStatusUpdated"
    accepted, created = page["data"][:2]
    assert accepted["content"]["body"].startswith("{")
    assert created["content"]["user"] == "Ann"
    assert "user" not in created["payload"]
    assert created["payload"]["prompt_tokens"] == len(created["content"]["token_ids"])
    assert (created["stream"], created["version"], created["schema_version"]) == (stream, 2, 1)
    assert created["recorded_at_iso"].endswith("Z")
    [recorded] = await node.store.read(created["position"] - 1, 1)
    assert created["recorded_at"] == recorded.recorded_at
    assert created["hash"] == recorded.hash.hex()
    assert len(bytes.fromhex(created["hash"])) == len(chain.GENESIS)
    alone = (await http.get(f"/events/{created['position']}")).json()
    assert alone == created


async def test_bytes_that_are_no_text_are_base64(node: Node, http: httpx.AsyncClient) -> None:
    logprob = e.TokenLogprob(1, b"\xff", -0.5)
    chunk = e.ChunkGenerated(attempt=1, first_index=0, token_ids=(1,), logprobs=(logprob,))
    await node.worker.say("completion/x", chunk)
    head = (await node.store.head()).position
    content = (await http.get(f"/events/{head}")).json()["content"]
    assert content["logprobs"] == [[1, {"base64": "/w=="}, -0.5, []]]


async def test_events_are_chosen_by_type(asked: str, http: httpx.AsyncClient) -> None:
    page = (await http.get("/events?type=TaskCreated&type=ChunkGenerated")).json()
    assert {event["type"] for event in page["data"]} == {"TaskCreated", "ChunkGenerated"}
    same = (await http.get("/events?type=TaskCreated,ChunkGenerated")).json()
    assert same == page


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("after=99999", "after", "position_out_of_range"),
        (f"after={10**30}", "after", "position_out_of_range"),
        ("after=-1", "after", None),
        ("after=x", "after", None),
        ("limit=0", "limit", None),
        ("limit=1001", "limit", None),
        ("type=Nothing", "type", None),
        ("type=", "type", None),
    ],
)
def test_a_bad_page_is_refused(
    shared: httpx.Client, query: str, param: str, code: str | None
) -> None:
    for headers in ({}, SSE):
        response = shared.get(f"/events?{query}", headers=headers)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, code)


def test_an_event_that_is_not_there_is_404(shared: httpx.Client) -> None:
    response = shared.get("/events/9999")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_a_stream_that_is_not_there_has_no_events(shared: httpx.Client) -> None:
    page = shared.get("/events?stream=nope").json()
    assert (page["data"], page["has_more"]) == ([], False)


# --- live -----------------------------------------------------------------------------


async def test_a_follower_gets_what_there_is_and_what_comes(
    asked: str, node: Node, http: httpx.AsyncClient
) -> None:
    head = (await node.store.head()).position
    async with following(http) as events:
        past = await take(events, head)
        assert [number for number, _ in past] == list(range(1, head + 1))
        assert all(number == event["position"] for number, event in past)
        await http.get("/nope")
        [(number, event)] = await take(events, 1)
        assert (number, event["type"]) == (head + 1, "RequestRefused")


async def test_a_follower_resumes_where_it_was(asked: str, http: httpx.AsyncClient) -> None:
    async with following(http, "?after=1", **{"last-event-id": "3"}) as events:
        assert [number for number, _ in await take(events, 2)] == [4, 5]
    response = await http.get("/events", headers=SSE | {"last-event-id": "x"})
    assert response.json()["error"]["param"] == "Last-Event-ID"


async def test_a_follower_gets_only_what_it_chose(node: Node, http: httpx.AsyncClient) -> None:
    go = asyncio.Event()
    node.worker.script = lambda task: [Wait(go), Say("a"), Stop()]
    async with following(http, "?type=TaskCreated,TaskStatusUpdated") as events:
        answer = asyncio.create_task(http.post(PATH, json=asking()))
        assert (await take(events, 1))[0][1]["type"] == "TaskCreated"
        go.set()
        assert (await take(events, 1))[0][1]["type"] == "TaskStatusUpdated"
        await answer


async def test_a_follower_that_hears_nothing_it_chose_is_kept_alive(
    node: Node, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.sse.KEEP_ALIVE_EVERY", 0.1)
    busy = asyncio.create_task(_chatter(http))
    async with following(http, "?type=NodeStopped") as events, asyncio.timeout(5):
        assert await anext(events) == ": keep-alive"
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)


async def _chatter(http: httpx.AsyncClient) -> None:
    while True:
        await http.get("/nope")


async def test_a_stop_cuts_followers_off(node: Node, http: httpx.AsyncClient) -> None:
    async with following(http) as events:
        await take(events, 1)
        node.services.stopping.set()
        with pytest.raises(httpx.RemoteProtocolError):
            await _drain(events)


async def _drain(events: AsyncIterator[str]) -> None:
    async for _ in events:
        pass
