"""What the event store costs: `python -m tests.bench store`.

Each figure is a ratio of two that were measured in turn, as only ratios carry over to other
machines.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from infrastructure.event_store import AttemptIs, EventStore
from infrastructure.log_reader import LogReader
from infrastructure.sqlite.store import SqliteEventStore
from infrastructure.verify import verify_log
from tests.bench.report import Row, compare
from tests.contract.samples import append, chunk, claim, started

PAIRS = 3
PRODUCERS = 64
EACH = 150
FOLLOWERS = 200
SAMPLES = 100


def rows() -> Iterator[Row]:
    """Group commit, size, verification and latency."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for durable, kind in ((False, "tokens"), (True, "synced")):
            grouped, alone = [], []
            for _ in range(PAIRS):
                alone.append(asyncio.run(_throughput(folder / "log.db", 1, durable)))
                grouped.append(asyncio.run(_throughput(folder / "log.db", PRODUCERS, durable)))
            title = f"{PRODUCERS} producers against one, {kind}"
            yield compare(title, "events/s", grouped, alone)
        yield _size(folder / "size.db")
        yield _verification(folder / "size.db")
        database, ring = [], []
        for _ in range(PAIRS):
            ring.append(asyncio.run(_latency(folder / "log.db", 8192)))
            # Without a ring, every page comes from the database.
            database.append(asyncio.run(_latency(folder / "log.db", 0)))
        title = f"append to follower, {FOLLOWERS} there, database against ring"
        yield compare(title, "ms", database, ring)


async def _throughput(path: Path, producers: int, durable: bool) -> float:
    """Tokens a second from several producers, each of which waits for its own."""
    store = await SqliteEventStore.open(path)
    start = (await store.head()).position
    names = [f"completion/{start}-{n}" for n in range(producers)]
    await store.append_all([append(name, started(), claim(1)) for name in names])

    async def produce(name: str) -> None:
        for index in range(EACH):
            token = append(name, chunk(index), guards=(AttemptIs(1),), durable=durable)
            await store.append(token)

    begin = time.perf_counter()
    await asyncio.gather(*(produce(name) for name in names))
    elapsed = time.perf_counter() - begin
    await store.close()
    return producers * EACH / elapsed


def _size(path: Path) -> Row:
    """What a token takes up in the file against what it says."""
    count = 20_000

    async def fill() -> None:
        store = await SqliteEventStore.open(path)
        for first in range(0, count, 1000):
            await store.append(append("s", *(chunk(n) for n in range(first, first + 1000))))
        await store.close()

    asyncio.run(fill())
    with LogReader(path) as reader:
        said = sum(len(r.payload) + len(r.content or b"") for r in reader.events())
    title = "a token event's bytes in the file against its own"
    return compare(title, "bytes", [path.stat().st_size / count], [said / count])


def _verification(path: Path) -> Row:
    """Verifying against only reading."""
    verifying, reading = [], []
    with LogReader(path) as reader:
        events = reader.head().position
        for _ in range(PAIRS):
            begin = time.perf_counter()
            assert sum(1 for _ in reader.events()) == events
            reading.append(events / (time.perf_counter() - begin))
            begin = time.perf_counter()
            assert verify_log(reader).fault is None
            verifying.append(events / (time.perf_counter() - begin))
    return compare("verifying against reading", "events/s", verifying, reading)


async def _latency(path: Path, feed_events: int) -> float:
    """Median milliseconds from an append to a follower's sight of it, others idle."""
    store = await SqliteEventStore.open(path, feed_events=feed_events)
    seen: list[float] = []
    start = (await store.head()).position
    tasks = [
        asyncio.create_task(_watch(store, f"completion/{start}-{n}", start, seen))
        for n in range(FOLLOWERS)
    ]
    began = []
    for index in range(SAMPLES):
        await asyncio.sleep(0.002)
        began.append(time.perf_counter())
        await store.append(append(f"completion/{start}-0", chunk(index)))
        while len(seen) < len(began):
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.close()
    return 1000 * statistics.median(b - a for a, b in zip(began, seen, strict=True))


async def _watch(store: EventStore, stream: str, after: int, seen: list[float]) -> None:
    async with aclosing(store.follow(after, stream=stream)) as batches:
        async for batch in batches:
            seen.extend(time.perf_counter() for _ in batch)


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
