"""The log as the command line reads it: no lock taken, nothing written.

It works on a log that a running server owns, on one at rest, and on one that a killed server
left with its WAL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Integer, Row, Select, func, select, type_coerce
from sqlalchemy.exc import SQLAlchemyError

from domain.events import TOKEN_TYPE
from infrastructure import tables as t
from infrastructure.event_store import (
    CommandRow,
    Head,
    LogUnavailable,
    PositionOutOfRange,
    Recorded,
    Snapshot,
    StoreError,
    StreamInfo,
)
from infrastructure.rows import (
    COMMANDS,
    OF_STATE,
    STREAMS,
    recorded,
    select_events,
    select_snapshot,
)
from infrastructure.sqlite.connect import reader_engine
from infrastructure.sqlite.failures import reason_of
from infrastructure.sqlite.schema import read_revision

PAGE = 1000

Found = TypeVar("Found")

_STREAM = (t.streams.c.name, t.streams.c.version, t.streams.c.attempt)
_HEAD = select(t.log_head.c.position, t.log_head.c.hash)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """A log in numbers.

    Attributes:
        events: how many there are of each type, the commonest first.
        size: bytes on the disk, the WAL included.
        first_at: when the first event was recorded, microseconds since the epoch, or None.
        last_at: when the last one was.
    """

    head: Head
    events: dict[str, int]
    streams: int
    open_streams: int
    commands: int
    size: int
    first_at: int | None
    last_at: int | None


class LogReader:
    """Reads a log file. Each call is a transaction of its own, so nobody waits for it."""

    def __init__(self, path: Path) -> None:
        """Open a log to read.

        Raises:
            StoreError: there is no log, or it is not one.
            LogTooNew: a newer inferlog wrote it.
            LogUnavailable: it cannot be read.
        """
        self._path = path.expanduser().resolve()
        self._wal = self._path.with_name(self._path.name + "-wal")
        if not self._path.is_file():
            raise StoreError(f"there is no log at {self._path}")
        self._connection: Connection | None = None
        self._at_rest: tuple[int, ...] | None = None
        try:
            if self._read(lambda connection: read_revision(connection, self._path)) is None:
                raise StoreError(f"the log at {self._path} is empty")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            connection.engine.dispose()

    def head(self) -> Head:
        """The end of the log."""
        return Head(*self._read(lambda connection: connection.execute(_HEAD).one()))

    def page(
        self,
        after: int = 0,
        limit: int = PAGE,
        *,
        stream: str | None = None,
        types: Collection[str] | None = None,
        tokens: bool = True,
        up_to: int | None = None,
    ) -> list[Recorded]:
        """A page of events after a position; see `EventStore.read`.

        Raises:
            PositionOutOfRange: `after` is beyond the head.
        """
        if after and after > (head := self.head().position):
            raise PositionOutOfRange(f"the log ends at {head}, before {after}")
        query = select_events(after, limit, stream=stream, types=types, tokens=tokens, up_to=up_to)
        return recorded(self._rows(query))

    def events(
        self,
        after: int = 0,
        *,
        stream: str | None = None,
        types: Collection[str] | None = None,
        tokens: bool = True,
        up_to: int | None = None,
    ) -> Iterator[Recorded]:
        """All events after a position, read in pages.

        Raises:
            PositionOutOfRange: `after` is beyond the head.
        """
        while page := self.page(after, stream=stream, types=types, tokens=tokens, up_to=up_to):
            yield from page
            after = page[-1].position

    def tail(self, after: int) -> tuple[list[Recorded], Head, list[StreamInfo]]:
        """The events after a position, the head and all streams, at one moment."""

        def read(connection: Connection) -> tuple[list[Recorded], Head, list[StreamInfo]]:
            events = recorded(connection.execute(select_events(after, None)))
            head = Head(*connection.execute(_HEAD).one())
            # As stored: a flag that is neither 0 nor 1 is damage, not a yes.
            flag = type_coerce(t.streams.c.open, Integer).label("open")
            rows = connection.execute(STREAMS.with_only_columns(*_STREAM, flag))
            return events, head, [StreamInfo(**dict(row._mapping)) for row in rows]

        return self._read(read)

    def streams(self) -> Iterator[StreamInfo]:
        """Every stream's head, by name, read in pages."""
        after = ""
        while True:
            query = STREAMS.where(t.streams.c.name > after).order_by(t.streams.c.name).limit(PAGE)
            page = self._rows(query)
            if not page:
                return
            yield from (StreamInfo(**dict(row._mapping)) for row in page)
            after = page[-1].name

    def command(self, command_id: str) -> CommandRow | None:
        """A command's entry in the index, which names its stream."""
        query = COMMANDS.where(t.commands.c.command_id == command_id)
        rows = self._rows(query)
        return CommandRow(**dict(rows[0]._mapping)) if rows else None

    def load_snapshot(self, version: int, at_most: int) -> Snapshot | None:
        """The latest snapshot of a fold's version, up to a position."""
        query = select_snapshot(version, at_most)
        rows = self._rows(query)
        return Snapshot(*rows[0]) if rows else None

    def stats(self) -> Stats:
        """The log in numbers."""
        return self._read(self._stats)

    def _stats(self, connection: Connection) -> Stats:
        count = func.count()
        # Token events are most of the log, and are counted without being read.
        by_type = select(t.events.c.type, count).where(OF_STATE).group_by(t.events.c.type)
        events = dict(connection.execute(by_type).tuples().all())
        total = connection.scalar(select(count).select_from(t.events)) or 0
        if tokens := total - sum(events.values()):
            events[TOKEN_TYPE] = tokens
        streams = select(count).select_from(t.streams)
        at = select(t.events.c.recorded_at).limit(1)
        files = (self._path, self._wal)
        return Stats(
            head=Head(*connection.execute(_HEAD).one()),
            events=dict(sorted(events.items(), key=lambda item: -item[1])),
            streams=connection.scalar(streams) or 0,
            open_streams=connection.scalar(streams.where(t.streams.c.open)) or 0,
            commands=connection.scalar(select(count).select_from(t.commands)) or 0,
            size=sum(file.stat().st_size for file in files if file.exists()),
            # Times never go back along the log.
            first_at=connection.scalar(at.order_by(t.events.c.position)),
            last_at=connection.scalar(at.order_by(t.events.c.position.desc())),
        )

    def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        return self._read(lambda connection: connection.execute(query).all())

    def _read(self, read: Callable[[Connection], Found]) -> Found:
        """Read in one transaction; once more if the log was at rest and no longer is."""
        while True:
            try:
                found = read(self._connection or self._connect())
                if self._connection is not None:
                    self._connection.rollback()
            except (SQLAlchemyError, OSError) as error:
                changed = self._changed()
                self.close()
                if not changed:
                    raise LogUnavailable(
                        f"{self._path} cannot be read: {reason_of(error)}"
                    ) from error
            else:
                if not self._changed():
                    return found
                self.close()

    def _connect(self) -> Connection:
        """Connect as the log is now.

        A log at rest is read as immutable, or SQLite would leave a WAL and an index beside
        it, and could not read it in a folder that may not be written to. A server that starts
        meanwhile makes a WAL before it changes the log, and what was read since is thrown away.
        """
        self._at_rest = self._signature()
        engine = reader_engine(self._path, immutable=self._at_rest is not None)
        self._connection = engine.connect()
        return self._connection

    def _changed(self) -> bool:
        """Whether a log that was at rest no longer is what it was."""
        try:
            return self._at_rest is not None and self._at_rest != self._signature()
        except OSError:
            return False

    def _signature(self) -> tuple[int, ...] | None:
        """What tells a log at rest from the same log later; None while it is in use."""
        if self._wal.exists():
            return None
        stat = self._path.stat()
        return (stat.st_ino, stat.st_size, stat.st_mtime_ns)
