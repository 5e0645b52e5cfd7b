"""How the worker writes to the log and reads from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from domain.events import TOKEN_TYPE, ChunkGenerated, Event, TaskCreated
from infrastructure.event_store import (
    Append,
    AttemptIs,
    EventStore,
    GuardFailed,
    LogUnavailable,
    Recorded,
)
from infrastructure.projection import Projection

FOLD_TIMEOUT = 10.0
"""Seconds in which State has to know what was appended."""

RETRY = 0.2
PATIENCE = 60.0
"""Seconds that runners pause for a log that cannot be written, before the server gives up."""

PAGE = 1000

Results = list[tuple[Recorded, ...] | GuardFailed]


class Recorder:
    """Appends that are known to State once they return.

    `lose` is called with the reason when the log stays unwritable past `PATIENCE`.
    """

    def __init__(
        self, store: EventStore, projection: Projection, lose: Callable[[str], None]
    ) -> None:
        self._store = store
        self._projection = projection
        self._lose = lose

    async def append(
        self, stream: str, *events: Event, attempt: int | None = None, durable: bool = False
    ) -> None:
        """Append to a stream, for a task only while its attempt is current.

        Raises:
            GuardFailed: the attempt was superseded or the task has ended.
            LogUnavailable: nothing was recorded.
        """
        guards = () if attempt is None else (AttemptIs(attempt),)
        append = Append(stream=stream, events=events, guards=guards, durable=durable)
        await self._folded(await self._store.append(append))

    async def insist(self, append: Append) -> None:
        """Append what has happened and cannot be planned again, waiting out a full disk.

        Raises:
            LogUnavailable: the log was lost for good.
        """
        [recorded] = await self.append_all([append])
        if not isinstance(recorded, GuardFailed):
            await self._folded(recorded)

    async def append_all(self, appends: list[Append]) -> Results:
        """Append a decode step in one group, waiting while the log cannot be written.

        Raises:
            LogUnavailable: the log was lost for good.
        """
        began = time.monotonic()
        while True:
            try:
                return await self._store.append_all(appends)
            except LogUnavailable as error:
                if time.monotonic() - began > PATIENCE:
                    self._lose(f"the log could not be written for {PATIENCE:.0f} s: {error}")
                    raise
                await asyncio.sleep(RETRY)

    async def created(self, stream: str) -> TaskCreated:
        """The task of a completion's stream."""
        [recorded] = await self._store.read(stream=stream, types={TaskCreated.__name__})
        event = recorded.event
        assert isinstance(event, TaskCreated)
        return event

    async def chunks(self, stream: str) -> list[ChunkGenerated]:
        """All token events of a completion's stream."""
        chunks: list[ChunkGenerated] = []
        after = 0
        while page := await self._store.read(after, PAGE, stream=stream, types={TOKEN_TYPE}):
            chunks += [e for recorded in page if isinstance(e := recorded.event, ChunkGenerated)]
            after = page[-1].position
            if len(page) < PAGE:
                break
        return chunks

    async def _folded(self, recorded: tuple[Recorded, ...]) -> None:
        last = [r for r in recorded if r.type != TOKEN_TYPE][-1]
        await self._projection.wait_past(last.position - 1, FOLD_TIMEOUT)
