"""A process that appends until it is killed, and says on its output what was acknowledged."""

from __future__ import annotations

import asyncio
import os
import sys

from infrastructure.event_store import AttemptIs, VersionIs
from infrastructure.sqlite.store import SqliteEventStore
from tests.contract.samples import append, chunk, claim, end, key, started

TOKENS = 5


async def produce(store: SqliteEventStore, name: str) -> None:
    """Streams from their command to their end, one after another."""
    count = 0
    while True:
        count += 1
        stream = f"completion/{name}-{count}"
        begins = append(
            stream,
            started(),
            guards=(VersionIs(0),),
            durable=True,
            command=key(f"{name}-{count}", f"{name}-{count}"),
        )
        recorded = [*await store.append(begins)]
        recorded += await store.append(append(stream, claim(1), guards=(AttemptIs(0),)))
        for index in range(TOKENS):
            recorded += await store.append(append(stream, chunk(index), guards=(AttemptIs(1),)))
            for event in recorded:
                os.write(1, f"{event.position} {event.hash.hex()}\n".encode())
            recorded.clear()
        await store.append(append(stream, end(1), guards=(AttemptIs(1),), durable=True))


async def main() -> None:
    """Append from several tasks at once."""
    store = await SqliteEventStore.open(sys.argv[1])
    name = str((await store.head()).position)
    await asyncio.gather(*(produce(store, f"{name}-{n}") for n in range(8)))


if __name__ == "__main__":
    asyncio.run(main())
