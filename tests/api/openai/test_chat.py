"""Chat completions over HTTP, as OpenAI's client sees them."""

from __future__ import annotations

import asyncio
import functools
import re
import uuid
from pathlib import Path

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from domain import events as e
from tests.api.fake_worker import Say, Silent, Step, Stop
from tests.api.node import MODEL, Node, running
from tests.api.openai.asking import HI, PATH, asking, parsed, text_of


async def test_an_answer_comes_in_one_piece(node: Node, sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=HI)
    [choice] = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (
        0,
        "assistant",
        "Hello, world",
    )
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    [task] = node.worker.tasks
    assert answer.usage.prompt_tokens == len(task.token_ids)
    assert answer.usage.completion_tokens == 4
    assert answer.usage.total_tokens == len(task.token_ids) + 4
    assert answer.id == f"chatcmpl-{task.task_id}"
    assert uuid.UUID(task.task_id).version == 7
    assert answer.created == task.created_at // 1_000_000
    assert answer.model == MODEL
    assert answer._request_id


async def test_an_answer_comes_streamed(node: Node, sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
    )
    *chunks, usage = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None, None]
    assert [delta.content for delta in deltas] == ["", "Hello", ",", " world", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 4 + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 4
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in (*chunks, usage)}) == 1


def test_usage_is_sent_only_where_it_is_asked_for(shared: httpx.Client) -> None:
    sent = shared.post(PATH, json=asking(stream=True)).text
    assert "usage" not in sent
    options = {"include_usage": True}
    sent = shared.post(PATH, json=asking(stream=True, stream_options=options)).text
    *chunks, usage, done = [data for _, data in parsed(sent)]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["usage"]["total_tokens"]
    assert done == "[DONE]"


async def test_the_sdks_stream_helper_puts_the_answer_together(
    node: Node, sdk: AsyncOpenAI
) -> None:
    async with sdk.chat.completions.stream(model=MODEL, messages=HI) as stream:
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Hello, world"
    assert answer.choices[0].finish_reason == "stop"


async def test_the_synchronous_sdk_gets_the_same(node: Node) -> None:
    def ask() -> tuple[str | None, str]:
        with OpenAI(
            base_url=f"{node.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
        ) as client:
            answer = client.chat.completions.create(model=MODEL, messages=HI)
            stream = client.chat.completions.create(model=MODEL, messages=HI, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return answer.choices[0].message.content, text

    assert await asyncio.to_thread(ask) == ("Hello, world", "Hello, world")


def test_a_stream_is_sent_as_it_should_be(shared: httpx.Client) -> None:
    response = shared.post(PATH, json=asking(stream=True))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers
    assert text_of(parsed(response.text)) == "Hello, world"


async def test_what_was_asked_is_recorded(node: Node, http: httpx.AsyncClient) -> None:
    body = asking(seed=5, temperature=0.5, stop="END", user="u", metadata={"k": "v"}, max_tokens=9)
    headers = {"x-request-id": "mine", "x-stainless-retry-count": "1", "user-agent": "me"}
    await http.post(PATH, json=body, headers=headers)
    [_, accepted] = await node.log(e.CommandAccepted)
    command = accepted.event
    assert isinstance(command, e.CommandAccepted)
    assert re.sub(rb"\s", b"", command.body).startswith(b'{"model":"tiny"')
    assert command.caller.request_id == "mine"
    assert command.caller.headers == {"x-stainless-retry-count": "1", "user-agent": "me"}
    [task] = node.worker.tasks
    assert (task.sampling.seed, task.sampling.temperature) == (5, 0.5)
    assert (task.sampling.max_tokens, task.stop) == (9, ("END",))
    assert (task.user, task.metadata) == ("u", {"k": "v"})
    assert task.prompt_text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert task.prompt_tokens == len(task.token_ids)


async def test_a_seed_is_drawn_where_none_is_given(node: Node, http: httpx.AsyncClient) -> None:
    for _ in range(2):
        await http.post(PATH, json=asking())
    first, second = node.worker.tasks
    assert first.sampling.seed != second.sampling.seed


async def test_the_rest_of_the_context_is_the_limit_where_none_is_given(
    empty_node: Node, http: httpx.AsyncClient, model_folder: Path
) -> None:
    await empty_node.worker.ready(MODEL, model_folder, context=100)
    await http.post(PATH, json=asking())
    [task] = empty_node.worker.tasks
    assert task.sampling.max_tokens == 100 - task.prompt_tokens


async def test_the_servers_limit_is_the_limit_where_the_context_is_longer(
    tmp_path: Path, model_folder: Path
) -> None:
    async with running(tmp_path, max_tokens=7) as node:
        await node.worker.ready(MODEL, model_folder)
        async with httpx.AsyncClient(base_url=node.url) as http:
            await http.post(PATH, json=asking())
        assert node.worker.tasks[0].sampling.max_tokens == 7


def _ending(end: Stop, task: e.TaskCreated) -> list[Step]:
    return [Say("a"), Silent(), end]


async def test_normal_finish_reasons_pass_through(node: Node, sdk: AsyncOpenAI) -> None:
    ends = [Stop("stop"), Stop("length")]
    for end in ends:
        node.worker.script = functools.partial(_ending, end)
        answer = await sdk.chat.completions.create(model=MODEL, messages=HI)
        assert answer.choices[0].finish_reason == end.reason
    assert [r.event for r in await node.log(e.TaskFailed)] == []
    chunks = [r.event for r in await node.log(e.ChunkGenerated)]
    assert all(isinstance(c, e.ChunkGenerated) and c.error_message is None for c in chunks)


async def test_many_answers_at_once_do_not_mix(node: Node, sdk: AsyncOpenAI) -> None:
    node.worker.script = lambda task: [Say(text) for text in task.prompt_text.split()] + [Stop()]

    async def ask(number: int) -> str | None:
        answer = await sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"n {number}"}]
        )
        return answer.choices[0].message.content

    answers = await asyncio.gather(*(ask(number) for number in range(20)))
    assert [str(number) in (answer or "") for number, answer in enumerate(answers)] == [True] * 20


# --- repeats ----------------------------------------------------------------------------


async def test_a_repeat_gets_the_first_ones_answer_from_its_start(
    node: Node, http: httpx.AsyncClient
) -> None:
    headers = {"idempotency-key": "k"}
    body = asking(stream=True)
    first = await http.post(PATH, json=body, headers=headers)
    again = await http.post(PATH, json=body, headers=headers)
    assert again.text == first.text
    assert len(node.worker.tasks) == 1


async def test_a_repeat_is_answered_though_the_model_is_gone(
    node: Node, http: httpx.AsyncClient
) -> None:
    headers = {"idempotency-key": "k"}
    first = await http.post(PATH, json=asking(), headers=headers)
    await http.delete("/instance/instance-1")
    again = await http.post(PATH, json=asking(), headers=headers)
    assert (again.status_code, again.json()) == (200, first.json())


async def test_a_key_used_for_another_body_is_a_conflict(node: Node, sdk: AsyncOpenAI) -> None:
    headers = {"Idempotency-Key": "k"}
    await sdk.chat.completions.create(model=MODEL, messages=HI, extra_headers=headers)
    with pytest.raises(openai.ConflictError) as caught:
        await sdk.chat.completions.create(model=MODEL, messages=HI, seed=1, extra_headers=headers)
    assert caught.value.code == "idempotency_conflict"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(await node.log(e.CommandRefused)) == 1


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_that_is_none_is_refused(shared: httpx.Client, key: str) -> None:
    response = shared.post(PATH, json=asking(), headers={"idempotency-key": key})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "Idempotency-Key"
