"""The event store in one SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from infrastructure import feed as live
from infrastructure.event_store import (
    Append,
    CommandRow,
    EventStore,
    Head,
    LogUnavailable,
    PositionOutOfRange,
    Recorded,
    Snapshot,
    StreamInfo,
)
from infrastructure.rows import recorded, select_events
from infrastructure.sqlite.connect import check_version
from infrastructure.sqlite.failures import reason_of
from infrastructure.sqlite.group import Prepared, Result
from infrastructure.sqlite.jobs import Batch, Submission, Write
from infrastructure.sqlite.reader import Reader
from infrastructure.sqlite.writer import Writer

CLOSED = live.CLOSED


def wall_clock() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


class SqliteEventStore(EventStore):
    """A log in a file that belongs to this process while it is open.

    Made by `open`, on the event loop that it is used on.
    """

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        """Set up a store that is not open yet; see `open`."""
        self._writer = Writer(path, clock, self._deliver)
        self._reader = Reader(path)
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None
        self._head: Head
        self._feed: live.Feed

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Callable[[], int] = wall_clock,
        feed_events: int = live.EVENTS,
        feed_bytes: int = live.BYTES,
    ) -> SqliteEventStore:
        """Open a log, or begin one, and bring its schema up to date.

        Args:
            path: the file; its folder is made if need be.
            clock: microseconds since the epoch.
            feed_events: most events that the live feed keeps in memory.
            feed_bytes: most bytes that it keeps.

        Raises:
            LogInUse: another process has it.
            LogTooNew: a newer inferlog wrote it; it is untouched.
            LogUnavailable: it cannot be read or written.
            StoreError: the file is not a log, or it is damaged.
        """
        check_version()
        path = _real(path)
        store = cls(path, clock)
        try:
            tip = await asyncio.wrap_future(store._writer.start())
        except BaseException as error:
            store._writer.drain()
            store._writer.release()
            if isinstance(error, SQLAlchemyError | OSError):
                raise LogUnavailable(f"{path} cannot be opened: {reason_of(error)}") from error
            raise
        store._head = Head(tip.position, tip.hash)
        store._feed = live.Feed(tip.position, store._page, events=feed_events, size=feed_bytes)
        return store

    async def append_all(self, appends: Sequence[Append]) -> list[Result]:
        """See `EventStore.append_all`. Cancelled, it may still record what it was given."""
        self._refuse_if_closed()
        if not appends:
            return []
        submission = Submission(
            [Prepared.of(append) for append in appends], self._loop.create_future()
        )
        self._writer.submit(submission)
        return await submission.future

    async def head(self) -> Head:
        """See `EventStore.head`."""
        return self._head

    async def read(
        self,
        after: int = 0,
        limit: int = 100,
        *,
        stream: str | None = None,
        types: Collection[str] | None = None,
        tokens: bool = True,
        up_to: int | None = None,
    ) -> list[Recorded]:
        """See `EventStore.read`."""
        head = self._head.position
        if after > head:
            raise PositionOutOfRange(f"the log ends at {head}, before {after}")
        # The database may be a moment ahead of what was published. Readers that saw more than
        # the feed's head could name it as a cursor, and the feed would not know it yet.
        up_to = head if up_to is None else min(up_to, head)
        return await self._page(
            after, limit, stream=stream, types=types, tokens=tokens, up_to=up_to
        )

    async def _page(
        self,
        after: int,
        limit: int,
        *,
        stream: str | None,
        tokens: bool,
        up_to: int,
        types: Collection[str] | None = None,
    ) -> list[Recorded]:
        if limit < 1 or after >= up_to:
            return []
        query = select_events(after, limit, stream=stream, types=types, tokens=tokens, up_to=up_to)
        return recorded(await self._reader.rows(query))

    def follow(
        self, after: int = 0, *, stream: str | None = None, tokens: bool = True
    ) -> AsyncGenerator[Sequence[Recorded], None]:
        """See `EventStore.follow`."""
        return self._feed.follow(after, stream=stream, tokens=tokens)

    async def stream(self, name: str) -> StreamInfo | None:
        """See `EventStore.stream`."""
        return await self._reader.stream(name)

    async def command(self, command_id: str) -> CommandRow | None:
        """See `EventStore.command`."""
        return await self._reader.command(command_id)

    async def command_by_key(self, actor: str, idempotency_key: str) -> CommandRow | None:
        """See `EventStore.command_by_key`."""
        return await self._reader.command_by_key(actor, idempotency_key)

    async def load_snapshot(self, version: int, at_most: int | None = None) -> Snapshot | None:
        """See `EventStore.load_snapshot`."""
        head = self._head.position
        return await self._reader.snapshot(version, head if at_most is None else at_most)

    async def save_snapshot(self, version: int, snapshot: Snapshot) -> None:
        """See `EventStore.save_snapshot`."""
        self._refuse_if_closed()
        if snapshot.position > self._head.position:
            raise PositionOutOfRange(f"the log ends before position {snapshot.position}")
        write = Write(version, snapshot)
        self._writer.submit(write)
        await asyncio.wrap_future(write.done)

    @property
    def unavailable(self) -> str | None:
        """See `EventStore.unavailable`."""
        return CLOSED if self._closing is not None else self._writer.unavailable

    async def close(self) -> None:
        """See `EventStore.close`. Followers end with LogUnavailable."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.wrap_future(self._writer.drain())
        self._feed.close()
        await self._reader.close()
        # Only now, as a reader would keep the WAL from being emptied and removed.
        await asyncio.wrap_future(self._writer.release())

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise LogUnavailable(CLOSED)

    def _deliver(self, batch: Batch) -> None:
        """Take a batch from the writer's thread to the event loop."""
        # A loop that was closed under the store has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._delivered, batch)

    def _delivered(self, batch: Batch) -> None:
        if batch.recorded:
            last = batch.recorded[-1]
            self._head = Head(last.position, last.hash)
            self._feed.publish(batch.recorded)
        for submission in batch.submissions:
            if submission.future.done():  # its caller was cancelled
                continue
            if submission.error is not None:
                submission.future.set_exception(submission.error)
            else:
                submission.future.set_result(submission.results)


def _real(path: Path | str) -> Path:
    # By its real name, so that a link to the log does not lead around its lock.
    return Path(path).expanduser().resolve()
