"""State kept up to date by following the log, and State as it was at any position."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from domain import state as fold
from domain.state import State
from infrastructure.event_store import (
    EventStore,
    LogUnavailable,
    PositionOutOfRange,
    Snapshot,
)

log = logging.getLogger(__name__)

PAGE = 1000
SNAPSHOT_EVERY = 5000
"""Events that change State between two snapshots."""

RETRY = 0.5
"""Seconds before a log that could not be read is read again."""


async def state_at(store: EventStore, position: int) -> tuple[State, int]:
    """State as it was right after a position, and the position of the last event in it.

    Raises:
        PositionOutOfRange: the position is beyond the head.
    """
    if position > (await store.head()).position:
        raise PositionOutOfRange(f"the log ends before position {position}")
    snapshot = await store.load_snapshot(fold.FOLD_VERSION, position)
    state, after = (fold.decode(snapshot.data), snapshot.position) if snapshot else (State(), 0)
    while page := await store.read(after, PAGE, tokens=False, up_to=position):
        state = fold.fold((recorded.event for recorded in page), state)
        after = page[-1].position
    return state, after


class Projection:
    """State of the whole log, folded as events commit.

    Attributes:
        state: State right after `position`.
        position: the last event in it; token events, which never change State, aside.
    """

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[], None]] = []
        self._snapshot_at = 0
        self.state = State()
        self.position = 0

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    async def catch_up(self) -> None:
        """Fold everything that is committed now."""
        head = (await self._store.head()).position
        self.state, self.position = await state_at(self._store, head)
        self._snapshot_at = self.position
        self._wake()

    async def run(self) -> None:
        """Follow the log for ever."""
        while True:
            try:
                async with aclosing(self._store.follow(self.position, tokens=False)) as batches:
                    async for batch in batches:
                        for recorded in batch:
                            self.state = fold.apply(self.state, recorded.event)
                            self.position = recorded.position
                        self._wake()
                        await self._maybe_snapshot()
            except LogUnavailable as error:
                log.warning("cannot follow the log, trying again: %s", error)
                await asyncio.sleep(RETRY)

    async def wait_past(self, position: int, timeout: float) -> None:
        """Wait until State has folded beyond a position.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: it has not.
        """
        async with asyncio.timeout(timeout):
            while self.position <= position:
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.add(waiter)
                try:
                    await waiter
                finally:
                    self._waiters.discard(waiter)

    async def snapshot(self) -> None:
        """Keep State, so that the next start need not fold the log from its beginning."""
        position, state = self.position, self.state
        self._snapshot_at = position
        await self._store.save_snapshot(fold.FOLD_VERSION, Snapshot(position, fold.encode(state)))

    async def _maybe_snapshot(self) -> None:
        if self.position - self._snapshot_at >= SNAPSHOT_EVERY:
            await self.snapshot()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in self._listeners:
            listener()
