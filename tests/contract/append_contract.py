"""What must hold of appending and reading back."""

from __future__ import annotations

import asyncio

import pytest

from domain import chain
from infrastructure.event_store import (
    Append,
    EventStore,
    Head,
)
from infrastructure.verify import verify
from tests.contract.base import Base, Opener, positions, whole
from tests.contract.samples import append, chunk, claim, end, started


class AppendContract(Base):
    """Recording and reading back."""

    async def test_an_empty_log_stands_at_position_zero(self, store: EventStore) -> None:
        assert await store.head() == Head(0, chain.GENESIS)
        assert await store.read() == []
        assert await store.stream("s") is None
        assert await store.command("c") is None
        assert store.unavailable is None

    async def test_positions_run_through_the_log_and_versions_through_a_stream(
        self, store: EventStore
    ) -> None:
        results = await store.append_all(
            [append("a", started(1), started(2)), append("b", started(3)), append("a")]
        )
        recorded = [event for result in results if isinstance(result, tuple) for event in result]
        assert positions(recorded) == [1, 2, 3, 4]
        assert [(r.stream, r.version) for r in recorded] == [
            ("a", 1),
            ("a", 2),
            ("b", 1),
            ("a", 3),
        ]
        assert await store.head() == Head(4, recorded[-1].hash)
        assert await store.read() == recorded

    async def test_events_come_back_as_they_went_in(self, store: EventStore) -> None:
        events = (chunk(0, text="naïve ‮ \x00 🦆"), chunk(1, text=""), claim(1), end())
        await store.append(append("completion/ü", *events))
        recorded = await store.read()
        assert tuple(r.event for r in recorded) == events
        assert all(r.stream == "completion/ü" for r in recorded)

    async def test_the_log_verifies(self, store: EventStore) -> None:
        for number in range(5):
            await store.append(append(f"s{number % 2}", chunk(number), started()))
        assert verify(await whole(store), await store.head()).fault is None

    async def test_an_append_without_events_is_an_error(self, store: EventStore) -> None:
        with pytest.raises(ValueError, match="no events"):
            await store.append(Append(stream="s", events=()))
        assert (await store.head()).position == 0

    async def test_times_never_go_back(self, opener: Opener) -> None:
        times = iter([50, 20, 60, 10])
        store = await opener(clock=lambda: next(times))
        recorded = [(await store.append(append("s")))[0] for _ in range(4)]
        assert [r.recorded_at for r in recorded] == [50, 50, 60, 60]
        await store.close()

    async def test_times_do_not_go_back_after_reopening_either(self, opener: Opener) -> None:
        for clock in (lambda: 50, lambda: 20):
            store = await opener(clock=clock)
            [recorded] = await store.append(append("s"))
            assert recorded.recorded_at == 50
            await store.close()

    async def test_a_cancelled_caller_disturbs_nobody(self, store: EventStore) -> None:
        tasks = [asyncio.create_task(store.append(append("s"))) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert verify(await whole(store), await store.head()).fault is None
        kept = [task.result()[0] for task in tasks[1::2]]
        assert set(positions(kept)) <= set(positions(await whole(store)))
