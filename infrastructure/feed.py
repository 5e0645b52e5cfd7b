"""What was just committed, in memory, for those who follow the log live.

The ring is one for the process and bounded; a follower that is not too far behind takes from
it instead of the database. Nothing is kept for a follower except its place, so one that is
slow costs nothing and slows nobody. All of this runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from domain.events import TOKEN_TYPE
from infrastructure.event_store import LogUnavailable, PositionOutOfRange, Recorded

EVENTS = 8192
"""Events in the ring, at most."""

BYTES = 32 << 20
"""Bytes of payload and content in the ring, at most."""

PAGE = 500
"""Events that a follower is handed at once, at most."""

CLOSED = "the log was closed"


class Page(Protocol):
    """Reads events from the database."""

    async def __call__(
        self, after: int, limit: int, *, stream: str | None, tokens: bool, up_to: int
    ) -> list[Recorded]:
        """A page of events after a position and up to another."""


class Feed:
    """The ring, and those who wait at its end."""

    def __init__(self, head: int, page: Page, *, events: int = EVENTS, size: int = BYTES) -> None:
        """Begin at the head of the log.

        Args:
            head: the last position committed.
            page: reads from the database what the ring no longer has.
            events: most events in the ring.
            size: most bytes in the ring.
        """
        self.head = head
        self._page = page
        self._ring: deque[Recorded] = deque()
        self._by_stream: dict[str, deque[Recorded]] = {}
        self._bytes = 0
        self._most_events = events
        self._most_bytes = size
        self._waiting: dict[str | None, set[asyncio.Future[None]]] = {}
        self._closed = False

    def publish(self, recorded: Sequence[Recorded]) -> None:
        """Add what was committed, in the log's order, and wake who waits for it."""
        for event in recorded:
            self._ring.append(event)
            self._by_stream.setdefault(event.stream, deque()).append(event)
            self._bytes += _size(event)
        while len(self._ring) > self._most_events or self._bytes > self._most_bytes:
            self._evict()
        if recorded:
            self.head = recorded[-1].position
            self._wake(None)
            for stream in {event.stream for event in recorded}:
                self._wake(stream)

    def close(self) -> None:
        """End all followers."""
        self._closed = True
        for stream in list(self._waiting):
            self._wake(stream)

    async def follow(
        self, after: int, *, stream: str | None, tokens: bool
    ) -> AsyncGenerator[Sequence[Recorded], None]:
        """See `EventStore.follow`."""
        if after > self.head:
            raise PositionOutOfRange(f"the log ends at {self.head}, before {after}")
        next_version = 1
        while True:
            if self._closed:
                raise LogUnavailable(CLOSED)
            head = self.head
            found = self._take(after, stream, next_version)
            if found is None:
                found = await self._page(after, PAGE, stream=stream, tokens=tokens, up_to=head)
                # A page that is not full has everything up to the head.
                after = found[-1].position if len(found) == PAGE else head
            elif found:
                after = found[-1].position if len(found) == PAGE else head
            else:
                after = head
                await self._wait(stream)
                continue
            if found and stream is not None:
                next_version = found[-1].version + 1
            if not tokens:
                found = [event for event in found if event.type != TOKEN_TYPE]
            if found:
                yield found

    def _take(self, after: int, stream: str | None, next_version: int) -> list[Recorded] | None:
        """A page from the ring, or None where it may lack some of what follows."""
        first = self.head - len(self._ring) + 1
        if stream is None:
            if after + 1 < first:
                return None
            start = after + 1 - first
            stop = min(start + PAGE, len(self._ring))
            return [self._ring[i] for i in range(start, stop)]
        events = self._by_stream.get(stream)
        if after + 1 < first and (events is None or events[0].version > next_version):
            return None
        fresh: list[Recorded] = []
        for event in reversed(events or ()):
            if event.position <= after:
                break
            fresh.append(event)
        fresh.reverse()
        return fresh[:PAGE]

    async def _wait(self, stream: str | None) -> None:
        """Wait until something is published, to a stream or at all."""
        future = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(stream, set())
        waiting.add(future)
        try:
            await future
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(stream) is waiting:
                del self._waiting[stream]

    def _wake(self, stream: str | None) -> None:
        for future in self._waiting.pop(stream, ()):
            if not future.done():
                future.set_result(None)

    def _evict(self) -> None:
        oldest = self._ring.popleft()
        self._bytes -= _size(oldest)
        of_stream = self._by_stream[oldest.stream]
        of_stream.popleft()
        if not of_stream:
            del self._by_stream[oldest.stream]


def _size(event: Recorded) -> int:
    return len(event.payload) + len(event.content or b"")
