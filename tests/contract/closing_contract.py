"""What must hold of closing and opening again."""

from __future__ import annotations

import asyncio

import pytest

from infrastructure.event_store import (
    LogUnavailable,
    Snapshot,
)
from infrastructure.verify import verify
from tests.contract.base import Base, Opener, positions, whole
from tests.contract.samples import append, chunk


class ClosingContract(Base):
    """Closing and opening again."""

    async def test_everything_is_there_after_reopening(self, opener: Opener) -> None:
        store = await opener()
        for number in range(20):
            await store.append(append(f"s{number % 3}", chunk(number), durable=number % 2 == 0))
        before, head = await whole(store), await store.head()
        await store.close()
        store = await opener()
        assert await store.head() == head
        assert await whole(store) == before
        [recorded] = await store.append(append("s0"))
        assert recorded.position == 21
        assert verify(await whole(store), await store.head()).fault is None
        await store.close()

    async def test_closing_finishes_what_is_queued(self, opener: Opener) -> None:
        store = await opener()
        tasks = [asyncio.create_task(store.append(append("s"))) for _ in range(50)]
        await asyncio.sleep(0)
        await store.close()
        assert positions([(await task)[0] for task in tasks]) == list(range(1, 51))

    async def test_a_closed_log_says_so(self, opener: Opener) -> None:
        store = await opener()
        await store.append(append("s"))
        await asyncio.gather(store.close(), store.close())
        await store.close()
        assert store.unavailable is not None
        with pytest.raises(LogUnavailable, match="closed"):
            await store.append(append("s"))
        with pytest.raises(LogUnavailable, match="closed"):
            await store.read()
        with pytest.raises(LogUnavailable, match="closed"):
            await store.save_snapshot(1, Snapshot(1, b""))
        with pytest.raises(LogUnavailable, match="closed"):
            await anext(store.follow())
