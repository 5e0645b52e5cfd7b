"""The live feed by itself: what it takes from memory, what from the database, whom it wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from infrastructure.event_store import LogUnavailable, Recorded
from infrastructure.feed import PAGE, Feed
from tests.contract.base import Batches, positions, take


class Log:
    """A log in a list, and a feed over it that counts reads of the list."""

    def __init__(self, *, events: int = 100, size: int = 1 << 20) -> None:
        self.log: list[Recorded] = []
        self.versions: dict[str, int] = {}
        self.reads = 0
        self.feed = Feed(0, self.page, events=events, size=size)

    async def page(
        self, after: int, limit: int, *, stream: str | None, tokens: bool, up_to: int
    ) -> list[Recorded]:
        self.reads += 1
        await asyncio.sleep(0)
        return [
            event
            for event in self.log[after:up_to]
            if stream in (None, event.stream) and (tokens or event.type != "ChunkGenerated")
        ][:limit]

    def commit(self, *streams: str, type: str = "ChunkGenerated", size: int = 10) -> None:
        batch = []
        for stream in streams:
            self.versions[stream] = self.versions.get(stream, 0) + 1
            event = Recorded(
                position=len(self.log) + 1,
                stream=stream,
                version=self.versions[stream],
                type=type,
                schema_version=1,
                recorded_at=0,
                payload=bytes(size),
                content=None,
                key_ref=None,
                hash=b"",
            )
            self.log.append(event)
            batch.append(event)
        self.feed.publish(batch)

    def follow(self, after: int, stream: str | None = None, tokens: bool = True) -> Batches:
        return self.feed.follow(after, stream=stream, tokens=tokens)


async def _next(follower: Batches) -> Sequence[Recorded]:
    return await anext(follower)


async def waiting(*followers: Batches) -> list[asyncio.Task[Sequence[Recorded]]]:
    """Followers that have taken all there is and wait for more."""
    tasks = [asyncio.create_task(_next(follower)) for follower in followers]
    await asyncio.sleep(0.001)
    return tasks


async def test_a_new_requests_stream_never_touches_the_database() -> None:
    log = Log(events=20)
    log.commit(*["other"] * 200)  # the log's past is long out of the ring
    log.commit("new", "other", "new")
    assert positions(await take(log.follow(0, stream="new"), 2)) == [201, 203]
    assert log.reads == 0


async def test_a_stream_whose_beginning_left_the_ring_is_read() -> None:
    log = Log(events=20)
    log.commit("old", *["other"] * 30, "old")
    follower = log.follow(0, stream="old")
    assert positions(await take(follower, 2)) == [1, 32]
    assert log.reads == 1
    log.commit(*["other"] * 30, "old")
    assert positions(await take(follower, 1)) == [63]
    assert log.reads == 1  # it knows the version that has to follow


async def test_a_stream_that_lost_events_from_the_ring_is_read_again() -> None:
    log = Log(events=4)
    log.commit("s")
    follower = log.follow(0, stream="s")
    assert positions(await take(follower, 1)) == [1]
    log.commit(*["s"] * 3, *["other"] * 3)
    log.commit(*["other"] * 4)
    assert positions(await take(follower, 3)) == [2, 3, 4]
    log.commit("s", *["s", "other"] * 3)
    assert positions(await take(follower, 4)) == [12, 13, 15, 17]


async def test_events_of_one_stream_wake_its_followers_alone() -> None:
    log = Log()
    log.commit(*(f"s{n}" for n in range(50)))
    followers = [log.follow(50, stream=f"s{n}") for n in range(50)]
    tasks = await waiting(*followers)
    futures = {stream: set(waiters) for stream, waiters in log.feed._waiting.items()}
    log.commit("s7", "s7")
    await asyncio.sleep(0.001)
    assert [n for n, task in enumerate(tasks) if task.done()] == [7]
    for stream, waiters in log.feed._waiting.items():
        assert waiters == futures[stream]  # not even woken to look
    log.feed.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_that_stops_waiting_leaves_nothing_behind() -> None:
    log = Log()
    log.commit("s")
    for task in await waiting(log.follow(1), log.follow(1, stream="s")):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert log.feed._waiting == {}


async def test_the_ring_is_bounded_by_bytes_too() -> None:
    log = Log(events=1000, size=1000)
    log.commit(*["s"] * 50, size=100)
    assert len(log.feed._ring) == 10
    log.commit("huge", size=5000)
    assert len(log.feed._ring) == 0
    assert log.feed._by_stream == {}
    assert log.feed._bytes == 0
    log.commit("s")
    assert len(await take(log.follow(0), 52)) == 52


async def test_a_follower_far_behind_is_handed_pages() -> None:
    log = Log(events=5 * PAGE)
    log.commit(*["s"] * (2 * PAGE + 10))
    for stream in (None, "s"):
        follower = log.follow(0, stream=stream)
        sizes = [len(await anext(follower)) for _ in range(3)]
        assert sizes == [PAGE, PAGE, 10]
    assert log.reads == 0


async def test_a_follower_of_state_skips_pages_full_of_tokens() -> None:
    log = Log(events=2 * PAGE)
    log.commit(*["s"] * (5 * PAGE))
    log.commit("s", type="NodeStarted")
    assert positions(await take(log.follow(0, tokens=False), 1)) == [5 * PAGE + 1]


async def test_a_follower_that_comes_back_after_closing_is_told() -> None:
    log = Log()
    log.commit("s")
    follower = log.follow(0)
    await take(follower, 1)
    log.feed.close()
    with pytest.raises(LogUnavailable, match="the log was closed"):
        await anext(follower)
