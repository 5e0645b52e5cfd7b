"""Streams that are kept alive, and cut off rather than closed where they did not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from api.calls import ClientGone
from api.sse import EventStream, Pull, ServerStopping, Silence, event, unless_interrupted


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def source(*items: bytes, error: Exception | None = None) -> AsyncGenerator[bytes, None]:
    for item in items:
        yield item
    if error is not None:
        raise error


async def sent(stream: EventStream[bytes], receive: Any = never) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await stream({}, receive, send)  # type: ignore[arg-type]
    return messages


def stream_of(pull: Pull[bytes], stopping: asyncio.Event | None = None) -> EventStream[bytes]:
    return EventStream(pull, bytes, stopping or asyncio.Event(), first=b"first")


async def test_a_source_that_ends_closes_the_body() -> None:
    start, *body = await sent(stream_of(Pull(source(b"a", b"", b"b"))))
    headers = dict(start["headers"])
    assert b"content-length" not in headers
    assert headers[b"x-accel-buffering"] == b"no"
    assert [message["body"] for message in body] == [b"first", b"a", b"b", b""]
    assert [message["more_body"] for message in body] == [True, True, True, False]


@pytest.mark.parametrize("error", [RuntimeError("broken"), TimeoutError()])
async def test_a_source_that_fails_cuts_the_body_off(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    messages = await sent(stream_of(Pull(source(b"a", error=error))))
    assert all(message.get("more_body", True) for message in messages)
    assert "cut off" in caplog.text


async def test_a_stop_and_a_client_that_leaves_cut_the_body_off() -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await asyncio.Event().wait()

    async def gone() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    stopping = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, stopping.set)
    for messages in (
        await sent(stream_of(Pull(endless()), stopping)),
        await sent(stream_of(Pull(endless())), gone),
    ):
        assert [message.get("body") for message in messages] == [None, b"first", b"a"]
        assert messages[-1]["more_body"]


async def test_waiting_in_vain_loses_nothing() -> None:
    go = asyncio.Event()

    async def late() -> AsyncGenerator[bytes, None]:
        await go.wait()
        yield b"a"

    pull = Pull(late())
    for _ in range(2):
        with pytest.raises(Silence):
            await pull.next(0.01)
    go.set()
    assert await pull.next(1) == b"a"
    assert await pull.next(1) is None
    await pull.close()


async def test_a_source_is_closed_though_it_is_waited_for() -> None:
    closed = asyncio.Event()

    async def waiting() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            closed.set()

    pull = Pull(waiting())
    with pytest.raises(Silence):
        await pull.next(0.01)
    await pull.close()
    assert closed.is_set()


async def test_work_is_let_go_when_nobody_waits_for_it() -> None:
    cancelled = 0

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    stopping = asyncio.Event()
    with pytest.raises(ClientGone):
        await unless_interrupted(work(), gone, stopping)
    stopping.set()
    with pytest.raises(ServerStopping):
        await unless_interrupted(work(), never, stopping)  # type: ignore[arg-type]
    assert cancelled == 2


def test_an_event_has_its_number_and_its_data() -> None:
    assert event(3, b'{"a":1}') == b'id: 3\ndata: {"a":1}\n\n'
