"""What must hold of pages, filters and snapshots."""

from __future__ import annotations

import pytest

from infrastructure.event_store import (
    EventStore,
    PositionOutOfRange,
    Snapshot,
)
from tests.contract.base import Base, Opener, positions, whole
from tests.contract.samples import append, chunk, started


class ReadContract(Base):
    """Pages, filters, snapshots."""

    @pytest.fixture
    async def filled(self, store: EventStore) -> EventStore:
        """Positions 1, 4, 7 … change State; the others are tokens, of two streams."""
        for number in range(10):
            stream = f"s{number % 2}"
            await store.append(append(stream, started(), chunk(0), chunk(1)))
        return store

    async def test_pages_join_up(self, filled: EventStore) -> None:
        seen: list[int] = []
        while page := await filled.read(seen[-1] if seen else 0, 7):
            assert len(page) <= 7
            seen.extend(positions(page))
        assert seen == list(range(1, 31))
        assert await filled.read(0, 0) == []

    async def test_one_stream_is_read_in_order(self, filled: EventStore) -> None:
        expected = [r.position for r in await whole(filled) if r.stream == "s1"]
        assert positions(await filled.read(0, 100, stream="s1")) == expected
        assert positions(await filled.read(expected[4], 3, stream="s1")) == expected[5:8]
        assert await filled.read(stream="nobody") == []

    async def test_filters_combine(self, filled: EventStore) -> None:
        assert positions(await filled.read(0, 100, tokens=False)) == list(range(1, 31, 3))
        assert positions(await filled.read(4, 100, tokens=False, up_to=13)) == [7, 10, 13]
        assert positions(await filled.read(0, 100, types=["NodeStarted"], up_to=4)) == [1, 4]
        assert positions(await filled.read(0, 3, types=["ChunkGenerated"], stream="s1")) == [
            5,
            6,
            11,
        ]
        assert await filled.read(0, 100, types=[]) == []
        assert await filled.read(20, up_to=10) == []

    async def test_a_cursor_beyond_the_head_is_an_error(self, filled: EventStore) -> None:
        assert await filled.read(30) == []
        with pytest.raises(PositionOutOfRange):
            await filled.read(31)

    async def test_the_latest_snapshot_of_a_version_is_kept(self, opener: Opener) -> None:
        store = await opener()
        for _ in range(9):
            await store.append(append("s"))
        assert await store.load_snapshot(1) is None
        for position in (2, 5, 8):
            await store.save_snapshot(1, Snapshot(position, b"state at %d" % position))
        await store.save_snapshot(1, Snapshot(5, b"again"))
        await store.close()
        store = await opener()
        assert await store.load_snapshot(1) == Snapshot(8, b"state at 8")
        assert await store.load_snapshot(1, 7) == Snapshot(5, b"again")
        assert await store.load_snapshot(1, 1) is None
        assert await store.load_snapshot(2) is None
        with pytest.raises(PositionOutOfRange):
            await store.save_snapshot(1, Snapshot(10, b""))
        await store.close()
