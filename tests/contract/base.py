"""What the contracts of the event store share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

import pytest

from infrastructure.event_store import (
    EventStore,
    Recorded,
)
from tests.contract.samples import append

Opener = Callable[..., Awaitable[EventStore]]
"""Opens the same log each time; `feed_events` bounds the ring of the live feed."""

Batches = AsyncGenerator[Sequence[Recorded], None]


async def take(batches: Batches, count: int) -> list[Recorded]:
    """As many events from a follower, or a few more."""
    events: list[Recorded] = []
    async with asyncio.timeout(10):
        while len(events) < count:
            events.extend(await anext(batches))
    return events


async def whole(store: EventStore) -> list[Recorded]:
    """The whole log, in pages."""
    events: list[Recorded] = []
    while page := await store.read(events[-1].position if events else 0, 1000):
        events.extend(page)
    return events


def positions(events: Sequence[Recorded]) -> list[int]:
    """Where events stand."""
    return [event.position for event in events]


class Base:
    """A backend gives the fixture `opener`."""

    @pytest.fixture
    def opener(self) -> Opener:
        """Opens the log under test."""
        raise NotImplementedError

    @pytest.fixture
    async def store(self, opener: Opener) -> AsyncIterator[EventStore]:
        """An empty log."""
        store = await opener()
        yield store
        await store.close()


async def take_first(store: EventStore, batches: Batches) -> list[Recorded]:
    """Append one event and see it arrive."""
    await store.append(append("s1"))
    return await take(batches, 1)
