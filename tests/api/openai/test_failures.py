"""What a client sees of requests that fail: before the first byte, after it, and at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from domain import events as e
from domain.errors import Code
from tests.api.fake_worker import Cancel, Fail, Say, Silent, Stop, Wait
from tests.api.node import MODEL, Node, running
from tests.api.openai.asking import HI, PATH, asking, blocks, parsed, text_of

ENDINGS: list[tuple[Code, int]] = [
    ("generation_failed", 500),
    ("runner_crashed", 500),
    ("model_load_failed", 500),
    ("instance_deleted", 500),
    ("deadline_exceeded", 504),
]


@pytest.mark.parametrize(("code", "status"), ENDINGS)
async def test_a_failure_gives_an_answer_in_one_piece_its_status(
    node: Node, http: httpx.AsyncClient, code: Code, status: int
) -> None:
    node.worker.script = lambda task: [Say("part"), Fail(code, "It broke.")]
    response = await http.post(PATH, json=asking())
    assert response.status_code == status
    assert response.json() == {
        "error": {"message": "It broke.", "type": "server_error", "param": None, "code": code}
    }
    assert response.headers.get("x-should-retry") == ("false" if status == 504 else None)


async def test_a_failure_after_the_first_byte_is_one_error_then_done(
    node: Node, http: httpx.AsyncClient
) -> None:
    node.worker.script = lambda task: [Say("part"), Fail()]
    response = await http.post(PATH, json=asking(stream=True))
    assert response.status_code == 200
    events = parsed(response.text)
    assert text_of(events) == "part"
    assert [number for number, _ in events] == [0, 1, 2, 3]
    assert events[2][1]["error"]["code"] == "generation_failed"
    assert events[3][1] == "[DONE]"
    # A failure in the log: an error chunk, then the terminal event.
    *_, chunk = [recorded.event for recorded in await node.log(e.ChunkGenerated)]
    assert isinstance(chunk, e.ChunkGenerated)
    assert (chunk.finish_reason, chunk.error_message) == ("error", "The model broke.")


async def test_the_sdk_raises_what_went_wrong(node: Node, sdk: AsyncOpenAI) -> None:
    node.worker.script = lambda task: [Say("part"), Fail()]
    with pytest.raises(openai.InternalServerError) as whole:
        await sdk.chat.completions.create(model=MODEL, messages=HI)
    assert whole.value.code == "generation_failed"
    stream = await sdk.chat.completions.create(model=MODEL, messages=HI, stream=True)
    with pytest.raises(openai.APIError) as streamed:
        async for _ in stream:
            pass
    assert (streamed.value.code, streamed.value.type) == ("generation_failed", "server_error")


async def test_a_failure_before_the_first_byte_gives_a_stream_its_status(
    node: Node, sdk: AsyncOpenAI
) -> None:
    node.worker.script = lambda task: [Silent(), Fail()]
    with pytest.raises(openai.InternalServerError):
        await sdk.chat.completions.create(model=MODEL, messages=HI, stream=True)


async def test_the_next_request_succeeds_after_a_failed_one(node: Node, sdk: AsyncOpenAI) -> None:
    node.worker.script = lambda task: [Fail()]
    with pytest.raises(openai.InternalServerError):
        await sdk.chat.completions.create(model=MODEL, messages=HI)
    node.worker.script = lambda task: [Say("fine"), Stop()]
    answer = await sdk.chat.completions.create(model=MODEL, messages=HI)
    assert answer.choices[0].message.content == "fine"


async def test_a_cancelled_request_is_not_tried_again(node: Node, http: httpx.AsyncClient) -> None:
    node.worker.script = lambda task: [Cancel()]
    response = await http.post(PATH, json=asking())
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "cancelled"
    assert response.headers["x-should-retry"] == "false"


async def test_an_answer_that_lost_its_end_is_no_200(node: Node, http: httpx.AsyncClient) -> None:
    async def end_without_finish(task: e.TaskCreated) -> None:
        end = e.TaskStatusUpdated(
            task_id=task.task_id, attempt=1, status="Complete", completion_tokens=0
        )
        await node.worker.say(f"completion/{task.task_id}", end)

    node.worker.script = lambda task: []
    asked = asyncio.create_task(http.post(PATH, json=asking()))
    while not node.worker.tasks:
        await asyncio.sleep(0.01)
    await end_without_finish(node.worker.tasks[0])
    response = await asked
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


# --- before acceptance ------------------------------------------------------------------


async def test_an_unknown_model_is_404(node: Node, sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.chat.completions.create(model="none", messages=HI)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.type == "invalid_request_error"


async def test_a_model_that_is_being_prepared_is_503(
    empty_node: Node, http: httpx.AsyncClient
) -> None:
    await empty_node.worker.place(MODEL)
    response = await http.post(PATH, json=asking())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "model_unavailable"
    assert int(response.headers["retry-after"]) > 0


async def test_a_model_that_is_there_but_not_loaded_queues(
    empty_node: Node, http: httpx.AsyncClient, model_folder: Path
) -> None:
    await empty_node.worker.place(MODEL)
    await empty_node.worker.prepared(MODEL, model_folder)
    assert (await http.post(PATH, json=asking())).status_code == 200


async def test_a_full_queue_is_429(tmp_path: Path, model_folder: Path) -> None:
    async with (
        running(tmp_path, queue=1) as node,
        AsyncOpenAI(base_url=f"{node.url}/v1", api_key="x", max_retries=0) as sdk,
    ):
        await node.worker.ready(MODEL, model_folder)
        node.worker.claims = False
        waiting = asyncio.create_task(sdk.chat.completions.create(model=MODEL, messages=HI))
        while not node.services.projection.state.tasks:
            await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError) as caught:
            await sdk.chat.completions.create(model=MODEL, messages=HI, stream=True)
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.type == "rate_limit_error"
        assert int(caught.value.response.headers["retry-after"]) > 0
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_beyond_the_context_is_400_before_anything_is_accepted(
    node: Node, sdk: AsyncOpenAI, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(model=MODEL, messages=HI, max_tokens=2040, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert "2,048" in str(caught.value)
    assert "2,040" in str(caught.value)
    long = "word " * 3000
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": long}], stream=stream
        )
    assert caught.value.code == "context_length_exceeded"
    assert await node.log(e.TaskCreated) == []
    assert len(await node.log(e.RequestRefused)) == 2


async def test_a_refused_request_is_recorded(node: Node, http: httpx.AsyncClient) -> None:
    response = await http.post(PATH, json=asking(temperature=3))
    assert response.status_code == 400
    [recorded] = await node.log(e.RequestRefused)
    refused = recorded.event
    assert isinstance(refused, e.RequestRefused)
    assert (refused.path, refused.status, refused.param) == (PATH, 400, "temperature")
    assert refused.caller.request_id == response.headers["x-request-id"]
    assert refused.message == response.json()["error"]["message"]


# --- clients and servers that go away -----------------------------------------------------


async def test_a_client_that_goes_away_does_not_harm_the_others(
    node: Node, http: httpx.AsyncClient
) -> None:
    go = asyncio.Event()
    node.worker.script = lambda task: [Say("a"), Wait(go), Say("b"), Stop()]
    async with httpx.AsyncClient(base_url=node.url) as fickle:
        async with fickle.stream("POST", PATH, json=asking(stream=True)) as response:
            async for block in blocks(response):
                if '"content":"a"' in block:
                    break
        with pytest.raises(httpx.ReadTimeout):
            await fickle.post(PATH, json=asking(), timeout=0.2)
    staying = asyncio.create_task(http.post(PATH, json=asking(stream=True)))
    while len(node.worker.tasks) < 3:
        await asyncio.sleep(0.01)
    go.set()
    assert text_of(parsed((await staying).text)) == "ab"
    # What the others asked for comes to its end all the same.
    while len(await node.log(e.TaskStatusUpdated)) < 3:
        await asyncio.sleep(0.01)


async def test_nobody_follows_for_a_client_that_went_away(
    node: Node, http: httpx.AsyncClient
) -> None:
    node.worker.script = lambda task: [Say("a"), Wait(asyncio.Event())]
    async with http.stream("POST", PATH, json=asking(stream=True)) as response:
        async for block in blocks(response):
            if '"content":"a"' in block:
                break
    for _ in range(200):
        if not node.server.server_state.tasks:
            break
        await asyncio.sleep(0.01)
    assert not node.server.server_state.tasks


async def test_a_client_that_does_not_read_slows_nobody(
    node: Node, http: httpx.AsyncClient
) -> None:
    node.worker.script = lambda task: [*[Say("x" * 20_000)] * 200, Stop()]
    async with http.stream("POST", PATH, json=asking(stream=True)) as slow:
        response = await http.post(PATH, json=asking())
        assert len(response.json()["choices"][0]["message"]["content"]) == 200 * 20_000
        # It has all of it once it reads.
        text = "".join([block + "\n\n" async for block in blocks(slow)])
    assert len(text_of(parsed(text))) == 200 * 20_000


async def test_a_stop_cuts_open_streams_off(node: Node, sdk: AsyncOpenAI) -> None:
    node.worker.script = lambda task: [Say("a"), Wait(asyncio.Event())]
    stream = await sdk.chat.completions.create(model=MODEL, messages=HI, stream=True)
    received = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
    assert received == ["", "a"]
    node.services.stopping.set()
    with pytest.raises(openai.APIConnectionError):
        await anext(stream)


async def test_a_stop_tells_those_who_have_nothing_yet_where_to_go_on(
    node: Node, http: httpx.AsyncClient
) -> None:
    node.worker.script = lambda task: [Wait(asyncio.Event())]
    asked = [
        asyncio.create_task(http.post(PATH, json=asking(stream=stream))) for stream in (True, False)
    ]
    while len(node.worker.tasks) < 2:
        await asyncio.sleep(0.01)
    node.services.stopping.set()
    ids = {f"chatcmpl-{task.task_id}" for task in node.worker.tasks}
    for response in await asyncio.gather(*asked):
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "shutting_down"
        assert any(id in error["message"] for id in ids)
        assert response.headers["retry-after"]


async def test_a_stopping_server_takes_nothing_on(node: Node, http: httpx.AsyncClient) -> None:
    node.services.stopping.set()
    response = await http.post(PATH, json=asking())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")


async def test_silence_is_kept_alive(
    node: Node, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.openai.following.HEADERS_AFTER", 0.05)
    monkeypatch.setattr("api.sse.KEEP_ALIVE_EVERY", 0.05)
    go = asyncio.Event()
    node.worker.script = lambda task: [Wait(go), Say("a"), Stop()]
    async with http.stream("POST", PATH, json=asking(stream=True)) as response:
        assert response.status_code == 200
        seen: list[str] = []
        async for block in blocks(response):
            seen.append(block)
            if len(seen) == 3:
                go.set()
    assert seen[:3] == [": keep-alive"] * 3
    assert text_of(parsed("\n\n".join(seen))) == "a"
