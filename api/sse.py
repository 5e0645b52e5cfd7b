"""Server-sent events over ASGI: kept alive, stopped with their client, cut off when they must be.

A body that closes cleanly looks like success to a client, so one that did not reach its end
is never closed: the connection is dropped instead, which every client reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

from api.calls import ClientGone

log = logging.getLogger(__name__)

KEEP_ALIVE_EVERY = 10.0
"""Seconds of silence after which a comment shows that the server is there."""

KEEP_ALIVE = b": keep-alive\n\n"

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Proxies such as nginx would otherwise collect the body before they pass it on.
    "x-accel-buffering": "no",
}

T = TypeVar("T")


class ServerStopping(Exception):
    """The server stops; whoever waits is let go."""


class Silence(Exception):
    """Nothing came in time. Not a TimeoutError, which a source may raise itself."""


class Pull(Generic[T]):
    """Takes from an async generator, with a timeout that leaves the generator unharmed."""

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._source = source
        self._pending: asyncio.Task[T | None] | None = None

    async def next(self, timeout: float) -> T | None:
        """The next item, or None at the end.

        Raises:
            Silence: there is none yet; it can be asked for again.
        """
        if self._pending is None:
            self._pending = asyncio.create_task(self._advance())
        await asyncio.wait({self._pending}, timeout=timeout)
        if not self._pending.done():
            raise Silence
        item, self._pending = self._pending.result(), None
        return item

    async def _advance(self) -> T | None:
        return await anext(self._source, None)

    async def close(self) -> None:
        """Let go of the generator."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        await self._source.aclose()


async def unless_interrupted(work: Awaitable[T], receive: Receive, stopping: asyncio.Event) -> T:
    """What work gives, unless the client goes away or the server stops before.

    Raises:
        ClientGone: the client went away.
        ServerStopping: the server stops.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(receive))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({task, gone, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        raise ServerStopping
    finally:
        for each in (task, gone, stop):
            each.cancel()
        await asyncio.gather(task, gone, stop, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(ASGIResponse, Generic[T]):
    """A response whose body is server-sent events.

    The pull's items are sent as they come. Its end closes the body; its failure, or the
    server's stop, cuts the connection.

    Args:
        encode: an item as the bytes to send; empty for none.
        first: sent along with the headers.
    """

    def __init__(
        self,
        source: Pull[T],
        encode: Callable[[T], bytes],
        stopping: asyncio.Event,
        first: bytes = b"",
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._source = source
        self._encode = encode
        self._stopping = stopping
        self._first = first

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Send the events until their end, the client's, or the server's."""
        try:
            await unless_interrupted(self._pump(send), receive, self._stopping)
        except (ClientGone, ServerStopping):
            pass
        except Exception:
            log.exception("a stream of events was cut off")
        finally:
            await self._source.close()

    async def _pump(self, send: Send) -> None:
        data = self._first
        while True:
            if data:
                # Returns once the client has taken enough: what it has not read waits in the
                # log, not in memory.
                await send({"type": "http.response.body", "body": data, "more_body": True})
            try:
                item = await self._source.next(KEEP_ALIVE_EVERY)
            except Silence:
                data = KEEP_ALIVE
                continue
            if item is None:
                break
            data = self._encode(item)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(id: int, data: bytes) -> bytes:
    """One event. `data` has no line break."""
    return b"id: %d\ndata: %b\n\n" % (id, data)


def expect_cut_offs() -> None:
    """Keep uvicorn from reporting as an error what is done here on purpose."""
    logging.getLogger("uvicorn.error").addFilter(_unexpected)


def _unexpected(record: logging.LogRecord) -> bool:
    return record.msg != "ASGI callable returned without completing response."
