"""What must hold of the live feed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from infrastructure.event_store import (
    EventStore,
    LogUnavailable,
    PositionOutOfRange,
    Recorded,
)
from infrastructure.verify import verify
from tests.contract.base import Base, Opener, positions, take, take_first, whole
from tests.contract.samples import append, chunk, started


class FollowContract(Base):
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
