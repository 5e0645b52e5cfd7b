"""What every backend of the event store must do, whatever it is made of.

A backend's tests subclass `StoreContract` and give it a fixture `opener`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

import pytest

from domain import chain
from infrastructure.event_store import (
    Append,
    AttemptIs,
    DecidedAt,
    DuplicateKey,
    EventStore,
    Fenced,
    Head,
    IsOpen,
    LogUnavailable,
    PositionOutOfRange,
    Recorded,
    Snapshot,
    StaleDecision,
    StreamClosed,
    StreamInfo,
    VersionConflict,
    VersionIs,
)
from infrastructure.verify import verify
from tests.contract.samples import append, chunk, claim, end, key, started

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


class _Base:
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


class AppendContract(_Base):
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


class GuardContract(_Base):
    """Guards and keys."""

    async def test_a_version_guard_lets_one_of_two_creators_through(
        self, store: EventStore
    ) -> None:
        await store.append(append("s", guards=(VersionIs(0),)))
        with pytest.raises(VersionConflict):
            await store.append(append("s", guards=(VersionIs(0),)))
        await store.append(append("s", guards=(VersionIs(1),)))

    async def test_an_attempt_guard_fences_the_attempt_before(self, store: EventStore) -> None:
        await store.append(append("s"))
        await store.append(append("s", claim(1), guards=(AttemptIs(0),)))
        await store.append(append("s", chunk(), guards=(AttemptIs(1),)))
        with pytest.raises(Fenced):  # the loser of a race for the same claim
            await store.append(append("s", claim(1), guards=(AttemptIs(0),)))
        await store.append(append("s", claim(2), guards=(AttemptIs(1),)))
        with pytest.raises(Fenced):
            await store.append(append("s", chunk(), guards=(AttemptIs(1),)))
        await store.append(append("s", end(2), guards=(AttemptIs(2),)))
        with pytest.raises(Fenced):
            await store.append(append("s", chunk(), guards=(AttemptIs(2),)))
        assert await store.stream("s") == StreamInfo(name="s", version=5, attempt=2, open=False)

    async def test_an_open_guard_holds_until_the_terminal_event(self, store: EventStore) -> None:
        with pytest.raises(StreamClosed):
            await store.append(append("s", end(), guards=(IsOpen(),)))
        await store.append(append("s"))
        await store.append(append("s", end(), guards=(IsOpen(),)))
        with pytest.raises(StreamClosed):
            await store.append(append("s", end(), guards=(IsOpen(),)))

    async def test_an_attempt_guard_does_not_hold_for_a_stream_that_is_not_there(
        self, store: EventStore
    ) -> None:
        with pytest.raises(Fenced):
            await store.append(append("s", guards=(AttemptIs(0),)))

    async def test_a_decision_is_stale_once_state_changed(self, store: EventStore) -> None:
        await store.append(append("a", started()))
        await store.append(append("b", guards=(DecidedAt(1),)))
        with pytest.raises(StaleDecision):
            await store.append(append("c", guards=(DecidedAt(1),)))

    async def test_token_events_do_not_make_a_decision_stale(self, store: EventStore) -> None:
        await store.append(append("a", started(), chunk(0), chunk(1)))
        await store.append(append("a", chunk(2)))
        await store.append(append("b", guards=(DecidedAt(1),)))
        [result] = await store.append_all([append("c", guards=(DecidedAt(4),))])
        assert isinstance(result, StaleDecision)

    async def test_a_failed_guard_refuses_its_append_alone(self, store: EventStore) -> None:
        results = await store.append_all(
            [
                append("a", guards=(VersionIs(0),)),
                append("b", started(), started(), guards=(VersionIs(7),)),
                append("a", guards=(VersionIs(1),)),
                append("a", guards=(VersionIs(1),)),
                append("c", guards=(VersionIs(0), DecidedAt(0))),
                append("b", guards=(VersionIs(0),)),
            ]
        )
        assert [type(result).__name__ for result in results] == [
            "tuple",
            "VersionConflict",
            "tuple",
            "VersionConflict",
            "StaleDecision",
            "tuple",
        ]
        events = await whole(store)
        assert [(r.position, r.stream, r.version) for r in events] == [
            (1, "a", 1),
            (2, "a", 2),
            (3, "b", 1),
        ]
        assert verify(events, await store.head()).fault is None

    async def test_guards_hold_after_reopening(self, opener: Opener) -> None:
        store = await opener()
        await store.append(append("s", started(), claim(3)))
        await store.append(append("gone", started(), end()))
        await store.close()
        store = await opener()
        for guards, stream, error in (
            ((VersionIs(1),), "s", VersionConflict),
            ((AttemptIs(2),), "s", Fenced),
            ((IsOpen(),), "gone", StreamClosed),
            ((DecidedAt(3),), "s", StaleDecision),
        ):
            with pytest.raises(error):
                await store.append(append(stream, guards=guards))
        await store.append(append("s", guards=(VersionIs(2), AttemptIs(3), IsOpen(), DecidedAt(4))))
        await store.close()

    async def test_an_idempotency_key_belongs_to_the_first_command(self, opener: Opener) -> None:
        store = await opener()
        await store.append(append("completion/1", command=key("1", "k")))
        for _ in range(2):
            with pytest.raises(DuplicateKey) as caught:
                await store.append(append("completion/2", command=key("2", "k")))
            assert caught.value.command_id == "1"
            assert caught.value.body_digest == "digest of 1"
            await store.close()
            store = await opener()
        assert await store.stream("completion/2") is None
        await store.append(append("completion/3", command=key("3", "k", actor="other")))
        await store.close()

    async def test_a_key_used_twice_in_one_group_is_refused_the_second_time(
        self, store: EventStore
    ) -> None:
        first, second, third = await store.append_all(
            [
                append("completion/1", command=key("1", "k")),
                append("completion/2", command=key("2", "k")),
                append("completion/1", command=key("1")),
            ]
        )
        assert isinstance(first, tuple)
        assert isinstance(second, DuplicateKey)
        assert isinstance(third, DuplicateKey)
        assert (await store.head()).position == 1

    async def test_commands_without_a_key_never_collide(self, store: EventStore) -> None:
        await store.append_all([append(f"completion/{n}", command=key(str(n))) for n in range(3)])
        assert (await store.head()).position == 3

    async def test_a_command_is_found_by_its_id_and_by_its_key(self, store: EventStore) -> None:
        await store.append(append("server"))
        await store.append(append("completion/1", started(), started(), command=key("1", "k")))
        found = await store.command("1")
        assert found is not None
        assert (found.stream, found.position, found.kind, found.actor) == (
            "completion/1",
            2,
            "ChatCompletion",
            "anonymous",
        )
        assert await store.command_by_key("anonymous", "k") == found
        assert await store.command_by_key("other", "k") is None


class ReadContract(_Base):
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


class FollowContract(_Base):
    """The live feed."""

    async def test_a_follower_catches_up_and_then_hears_of_each_commit(
        self, opener: Opener
    ) -> None:
        store = await opener()
        await store.append(append("s", *(chunk(n) for n in range(1200))))
        await store.close()
        store = await opener()
        async with aclosing(store.follow()) as batches:
            assert positions(await take(batches, 1200)) == list(range(1, 1201))
            for number in range(1201, 1211):
                await store.append(append("s"))
                assert positions(await take(batches, 1)) == [number]
        await store.close()

    async def test_a_follower_waits_for_what_is_not_there_yet(self, store: EventStore) -> None:
        async with aclosing(store.follow()) as batches:
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            recorded = await store.append(append("s"))
            assert tuple(await waiting) == recorded

    async def test_a_follower_of_a_stream_hears_of_no_other(self, store: EventStore) -> None:
        await store.append_all([append("a"), append("b"), append("a")])
        async with aclosing(store.follow(1, stream="a")) as batches:
            assert positions(await take(batches, 1)) == [3]
            await store.append_all([append("b"), append("a"), append("b"), append("a")])
            assert positions(await take(batches, 2)) == [5, 7]

    async def test_a_follower_without_tokens_hears_of_state_only(self, store: EventStore) -> None:
        await store.append(append("a", chunk(), started(), chunk()))
        async with aclosing(store.follow(tokens=False)) as batches:
            assert positions(await take(batches, 1)) == [2]
            await store.append(append("a", chunk(), chunk()))
            await store.append(append("a", chunk(), started()))
            assert positions(await take(batches, 1)) == [7]

    async def test_following_from_beyond_the_head_is_an_error(self, store: EventStore) -> None:
        await store.append(append("s"))
        async with aclosing(store.follow(1)) as batches:
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            await store.append(append("s"))
            assert positions(await waiting) == [2]
        with pytest.raises(PositionOutOfRange):
            await anext(store.follow(3))

    async def test_a_slow_follower_misses_nothing_and_slows_nobody(self, opener: Opener) -> None:
        store = await opener(feed_events=16)
        async with (
            aclosing(store.follow()) as slow,
            aclosing(store.follow(stream="s1")) as slow_of_stream,
            aclosing(store.follow()) as quick,
        ):
            first = [*await take_first(store, slow), *await take(quick, 1)]
            assert positions(first) == [1, 1]
            for number in range(200):
                recorded = await store.append(append(f"s{number % 3}", chunk(), chunk()))
                assert positions(await take(quick, 2)) == positions(recorded)
            assert positions(await take(slow, 400)) == list(range(2, 402))
            expected = [r.position for r in await whole(store) if r.stream == "s1"]
            assert positions(await take(slow_of_stream, len(expected))) == expected
        await store.close()

    async def test_stopping_a_follower_leaves_the_others(self, store: EventStore) -> None:
        async with aclosing(store.follow()) as stays:
            goes = asyncio.ensure_future(anext(store.follow()))
            await asyncio.sleep(0)
            goes.cancel()
            with pytest.raises(asyncio.CancelledError):
                await goes
            await store.append(append("s"))
            assert positions(await take(stays, 1)) == [1]

    async def test_closing_ends_followers_at_once(self, opener: Opener) -> None:
        store = await opener()
        await store.append(append("s"))
        followers = [store.follow(1), store.follow(1, stream="s"), store.follow(tokens=False)]
        await take(followers[2], 1)
        waiting = [asyncio.ensure_future(anext(follower)) for follower in followers]
        await asyncio.sleep(0.01)
        async with asyncio.timeout(2):
            await store.close()
            for task in waiting:
                with pytest.raises(LogUnavailable, match="the log was closed"):
                    await task

    async def test_writers_race_and_followers_skip_nothing(self, opener: Opener) -> None:
        store = await opener(feed_events=64)
        writers, each = 8, 40

        async def write(number: int) -> None:
            for index in range(each):
                await store.append(append(f"s{number}", chunk(index)))

        async def follow(stream: str | None, count: int, pause: float) -> list[Recorded]:
            seen: list[Recorded] = []
            async with aclosing(store.follow(stream=stream)) as batches:
                async for batch in batches:
                    seen.extend(batch)
                    if len(seen) >= count:
                        return seen
                    await asyncio.sleep(pause)
            raise AssertionError

        async with asyncio.timeout(30):
            results = await asyncio.gather(
                follow(None, writers * each, 0),
                follow(None, writers * each, 0.005),
                *(follow(f"s{n}", each, 0.002 * (n % 3)) for n in range(writers)),
                *(write(n) for n in range(writers)),
            )
        quick, slow, *of_streams = results[: 2 + writers]
        assert quick is not None
        assert slow is not None
        assert positions(quick) == positions(slow) == list(range(1, writers * each + 1))
        for number, seen in enumerate(of_streams):
            assert seen is not None
            assert [r.version for r in seen] == list(range(1, each + 1))
            assert {r.stream for r in seen} == {f"s{number}"}
        assert verify(quick, await store.head()).fault is None
        await store.close()


class ClosingContract(_Base):
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


class StoreContract(AppendContract, GuardContract, ReadContract, FollowContract, ClosingContract):
    """All of it."""


async def take_first(store: EventStore, batches: Batches) -> list[Recorded]:
    """Append one event and see it arrive."""
    await store.append(append("s1"))
    return await take(batches, 1)
