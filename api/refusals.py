"""Refusals in the log: one by one up to a rate, then counted, so that no flood fills the disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from domain import streams
from domain.events import Event, RefusalsSummarized, RequestRefused
from infrastructure.event_store import Append, EventStore, StoreError

log = logging.getLogger(__name__)

RATE = 1.0
"""Refusals a second that an actor may have recorded one by one, in the long run."""

BURST = 100
"""Refusals in a row that are recorded one by one."""

SUMMARY_EVERY = 30.0
"""Seconds between two summaries of what was only counted."""

RECORD_TIMEOUT = 2.0
"""Seconds that a refused client waits at most for its refusal to be recorded."""


class _Bucket:
    """Tokens that fill up again with time."""

    def __init__(self, now: float) -> None:
        self.tokens = float(BURST)
        self.at = now

    def take(self, now: float) -> bool:
        self.tokens = min(BURST, self.tokens + (now - self.at) * RATE)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class _Tally:
    """What was counted for an actor since the last summary."""

    def __init__(self, since: int) -> None:
        self.since = since
        self.until = since
        self.codes: Counter[str] = Counter()


class Refusals:
    """Records refusals.

    Args:
        clock: microseconds since the epoch.
        monotonic: seconds, never going back.
    """

    def __init__(
        self,
        store: EventStore,
        clock: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._buckets: dict[str, _Bucket] = {}
        self._tallies: dict[str, _Tally] = {}

    def admit(self, actor: str, code: str) -> bool:
        """Whether a refusal may be recorded by itself; if not, it is counted."""
        now = self._monotonic()
        bucket = self._buckets.setdefault(actor, _Bucket(now))
        if bucket.take(now):
            return True
        self._count(actor, code)
        return False

    async def record(self, refused: RequestRefused) -> None:
        """Record a request that failed before it became a command, or count it.

        Never raises for the log's sake: the client is to hear why it was refused.
        """
        if not self.admit(refused.caller.actor, refused.code):
            return
        append = Append(stream=streams.SERVER, events=(refused,))
        try:
            async with asyncio.timeout(RECORD_TIMEOUT):
                await self._store.append(append)
        except (StoreError, TimeoutError) as error:
            log.warning("a refusal was only counted: %s", error)
            self._count(refused.caller.actor, refused.code)

    async def run(self) -> None:
        """Record what was counted, again and again."""
        while True:
            await asyncio.sleep(SUMMARY_EVERY)
            await self.flush()

    async def flush(self) -> None:
        """Record what was counted."""
        if not self._tallies:
            return
        tallies, self._tallies = self._tallies, {}
        summaries: tuple[Event, ...] = tuple(
            RefusalsSummarized(
                actor=actor,
                count=tally.codes.total(),
                since=tally.since,
                until=tally.until,
                codes=dict(tally.codes),
            )
            for actor, tally in tallies.items()
        )
        try:
            await self._store.append(Append(stream=streams.SERVER, events=summaries))
        except StoreError as error:
            log.warning("refusals are counted on: %s", error)
            self._put_back(tallies)

    def _count(self, actor: str, code: str) -> None:
        now = self._clock()
        tally = self._tallies.setdefault(actor, _Tally(now))
        tally.until = now
        tally.codes[code] += 1

    def _put_back(self, tallies: dict[str, _Tally]) -> None:
        for actor, before in tallies.items():
            since = self._tallies.setdefault(actor, before)
            if since is not before:
                since.since = before.since
                since.codes.update(before.codes)
