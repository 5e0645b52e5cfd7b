"""The writer's connection and the statements it runs. Used by the writer's thread only."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RootTransaction,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import sqlite

import migrations
from infrastructure import tables as t
from infrastructure.event_store import CommandKey, Snapshot, StoreError
from infrastructure.rows import OF_STATE
from infrastructure.sqlite.connect import BUSY_TIMEOUT, writer_engine
from infrastructure.sqlite.group import Group, StreamHead, Tip
from infrastructure.sqlite.lock import Lock
from infrastructure.sqlite.schema import read_revision, revision

LEAST_FREE = 1 << 20
"""Bytes free on the disk before a log that was full is tried again. Without it, room that
the WAL happens to have would let small writes through and large ones fail, over and over."""

Item = TypeVar("Item")

_DIALECT = sqlite.dialect(paramstyle="qmark")

# Compiled once and run with rows as tuples, in the order of the columns: for many rows,
# SQLAlchemy's way from a dict to a tuple costs more than SQLite's from there to the disk.
_INSERT_STREAMS = str(insert(t.streams).compile(dialect=_DIALECT))
_INSERT_EVENTS = str(insert(t.events).compile(dialect=_DIALECT))
_INSERT_COMMANDS = str(insert(t.commands).compile(dialect=_DIALECT))
_UPDATE_STREAMS = str(
    update(t.streams)
    .where(t.streams.c.id == bindparam("stream_id"))
    .values({name: bindparam(name) for name in ("version", "attempt", "open")})
    .compile(dialect=_DIALECT)
)
_SELECT_HEADS = select(
    t.streams.c.name,
    t.streams.c.id,
    t.streams.c.version,
    t.streams.c.attempt,
    t.streams.c.open,
)
_SELECT_COMMANDS = select(
    t.commands.c.command_id,
    t.commands.c.kind,
    t.commands.c.actor,
    t.commands.c.idempotency_key,
    t.commands.c.body_digest,
)


class LogFile:
    """The log's file, opened to write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: Lock | None = None
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._synchronous = "FULL"

    @property
    def _open(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def acquire(self) -> None:
        """Make the log this process's own, and look at it before anything is written.

        Raises:
            LogInUse: another process has it.
            LogTooNew: a newer inferlog wrote it.
            StoreError: the file is something else.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = Lock(self._path)
        revision(self._path)
        self._path.touch(mode=0o600)  # what users say is for nobody else to read

    def release(self) -> None:
        """Leave the log to others."""
        if self._lock is not None:
            self._lock.release()

    def open(self) -> Tip:
        """Connect, bring the schema up to date, and read where the log stands."""
        self._engine = writer_engine(self._path)
        self._connection = self._engine.connect()
        self._synchronous = "FULL"  # as the connection's pragmas set it
        with self._connection.begin():
            if read_revision(self._connection, self._path) != migrations.REVISIONS[-1]:
                migrations.upgrade(self._connection)
            return self._tip()

    def close(self) -> None:
        """Let go of the connection, whatever state it is in."""
        connection, self._connection = self._connection, None
        engine, self._engine = self._engine, None
        if connection is not None:
            connection.invalidate()
            connection.close()
        if engine is not None:
            engine.dispose()

    def checkpoint(self) -> None:
        """Move all of the WAL into the database, as far as no reader of it is in the way."""
        self._pragma("busy_timeout=1000")
        try:
            self._pragma("wal_checkpoint(TRUNCATE)")
        finally:
            self._pragma(f"busy_timeout={BUSY_TIMEOUT * 1000:.0f}")

    def probe(self) -> None:
        """Write and sync a little, to see whether that works again.

        This also settles for good what became of a commit that failed: should its pages lie
        complete in the WAL behind the last commit known, the write goes over them, and no
        later recovery can bring them back.
        """
        free = shutil.disk_usage(self._path.parent).free
        if free < LEAST_FREE:
            raise OSError(f"database or disk is full ({free} bytes free)")
        with self.begin(durable=True):
            self._open.execute(update(t.log_head).values(position=t.log_head.c.position))
        # After a failed sync the kernel may take pages of the WAL for written that are not, so
        # they are written once more, elsewhere, and the WAL begins anew.
        self.checkpoint()

    @contextmanager
    def begin(self, *, durable: bool) -> Iterator[RootTransaction]:
        """A transaction, which commits at the end of the block unless it was ended before.

        Args:
            durable: sync it to the disk before the commit returns.
        """
        level = "FULL" if durable else "NORMAL"
        if level != self._synchronous:
            self._pragma(f"synchronous={level}")
            self._synchronous = level
        with self._open.begin() as transaction:
            yield transaction

    def _pragma(self, pragma: str) -> None:
        """Past SQLAlchemy, which would begin a transaction, where pragmas do nothing."""
        driver = self._open.connection.driver_connection
        assert driver is not None
        driver.execute(f"PRAGMA {pragma}").close()

    def _tip(self) -> Tip:
        """Where the log stands, checked against its last event.

        Raises:
            StoreError: the head does not fit the events.
        """
        head = self._open.execute(select(t.log_head.c.position, t.log_head.c.hash)).one()
        last = self._open.execute(
            select(t.events.c.position, t.events.c.hash, t.events.c.recorded_at)
            .order_by(t.events.c.position.desc())
            .limit(1)
        ).one_or_none()
        if (head.position, head.hash) != ((last.position, last.hash) if last else (0, bytes(32))):
            raise StoreError(
                f"{self._path} is damaged: its head says position {head.position}, its last "
                f"event is {last.position if last else 0}, or their hashes differ"
            )
        state_position = self._open.scalar(select(func.max(t.events.c.position)).where(OF_STATE))
        return Tip(
            position=head.position,
            hash=head.hash,
            recorded_at=last.recorded_at if last else 0,
            state_position=state_position or 0,
            next_stream_id=(self._open.scalar(select(func.max(t.streams.c.id))) or 0) + 1,
        )

    def heads(self, names: Collection[str]) -> dict[str, StreamHead]:
        """The heads of those of these streams that exist."""
        found: dict[str, StreamHead] = {}
        for some in _slices(list(names)):
            rows = self._open.execute(_SELECT_HEADS.where(t.streams.c.name.in_(some)))
            found.update((name, StreamHead(*head)) for name, *head in rows)
        return found

    def taken(self, commands: Sequence[CommandKey]) -> list[CommandKey]:
        """Commands in the index that have the id or the key of one of these."""
        found: list[CommandKey] = []
        for some in _slices(commands):
            ids = [command.command_id for command in some]
            keys = [(c.actor, c.idempotency_key) for c in some if c.idempotency_key is not None]
            same: ColumnElement[bool] = t.commands.c.command_id.in_(ids)
            if keys:
                pair = tuple_(t.commands.c.actor, t.commands.c.idempotency_key)
                same = same | pair.in_(keys)
            rows = self._open.execute(_SELECT_COMMANDS.where(same))
            found.extend(CommandKey(**dict(row._mapping)) for row in rows)
        return found

    def write(self, group: Group) -> None:
        """Write a group's rows and move the head."""
        new, changed = [], []
        for name, head in group.streams.items():
            if head.id >= group.first_new_stream:
                command = group.commands_of_streams.get(name)
                new.append((head.id, name, command, head.version, head.attempt, head.open))
            else:
                changed.append((head.version, head.attempt, head.open, head.id))
        self._many(_INSERT_STREAMS, new)
        self._many(_UPDATE_STREAMS, changed)
        self._many(
            _INSERT_EVENTS,
            [
                (
                    event.position,
                    group.streams[event.stream].id,
                    event.version,
                    event.type,
                    event.schema_version,
                    event.recorded_at,
                    event.payload.decode(),
                    event.content,
                    event.key_ref,
                    event.hash,
                )
                for event in group.recorded
            ],
        )
        self._many(
            _INSERT_COMMANDS,
            [
                (
                    command.command_id,
                    command.kind,
                    command.actor,
                    command.idempotency_key,
                    command.body_digest,
                    group.streams[stream].id,
                    position,
                )
                for command, stream, position in group.commands
            ],
        )
        self._open.execute(
            update(t.log_head).values(position=group.tip.position, hash=group.tip.hash)
        )

    def _many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            self._open.exec_driver_sql(statement, rows)

    def save_snapshot(self, version: int, snapshot: Snapshot) -> None:
        """Keep a snapshot, in place of one of the same position and those of other versions."""
        with self.begin(durable=False):
            same = t.snapshots.c.position == snapshot.position
            self._open.execute(
                delete(t.snapshots).where(or_(t.snapshots.c.fold_version != version, same))
            )
            self._open.execute(
                insert(t.snapshots).values(
                    fold_version=version, position=snapshot.position, data=snapshot.data
                )
            )


def _slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Few enough at a time for SQLite's limit on bound values, which was once 999."""
    for start in range(0, len(items), 250):
        yield items[start : start + 250]
