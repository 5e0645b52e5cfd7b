"""Connections to the log's file: one that writes, and others that can only read."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from infrastructure.event_store import StoreError

OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""

BUSY_TIMEOUT = 5.0
"""Seconds to wait for another process's lock, as a reader takes one to recover the WAL."""

READERS = 4
"""Connections that read at once; more readers queue."""

WRITER_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    # What a long read made the WAL grow to is given back when it has ended.
    "journal_size_limit=67108864",
    "wal_autocheckpoint=1000",
    "cache_size=-16384",
    "temp_store=MEMORY",
)
READER_PRAGMAS = ("query_only=1", "wal_autocheckpoint=0", "cache_size=-4096")


def check_version() -> None:
    """Refuse an SQLite that cannot hold the log.

    Raises:
        StoreError: it is too old.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError(
            f"this Python comes with SQLite {sqlite3.sqlite_version}, and the log needs "
            f"{needed} or newer; use a newer Python"
        )


def uri(path: Path, **options: str | int) -> str:
    """SQLite's URI of a file."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"file:{quote(str(path))}?{query}"


def writer_engine(path: Path) -> Engine:
    """The engine of the writer's one connection, to a file that exists."""
    # Never made anew: an empty log in place of one that was there would begin at position 1.
    address = uri(path, mode="rw")

    def connect() -> sqlite3.Connection:
        # Autocommit, as Python's own BEGIN comes too late and is never IMMEDIATE.
        connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)
        _pragmas(connection, WRITER_PRAGMAS)
        if sys.platform == "darwin":  # fsync leaves data in the drive's cache there
            _pragmas(connection, ("fullfsync=1", "checkpoint_fullfsync=1"))
        return connection

    engine = create_engine(
        "sqlite+pysqlite://", creator=connect, poolclass=NullPool, hide_parameters=True
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Taking the write lock at once; a read lock that has to grow cannot wait for its turn.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def reader_engine(path: Path, *, immutable: bool = False) -> Engine:
    """An engine that reads without leaving a trace, also from a log that is damaged.

    Args:
        immutable: the file is at rest. SQLite then makes no file beside it, and does not
            notice when it changes.
    """
    address = uri(path, mode="ro", immutable=int(immutable))

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            address,
            uri=True,
            isolation_level=None,
            timeout=BUSY_TIMEOUT,
            check_same_thread=False,
        )
        # Text that is no longer UTF-8 comes out longer than it went in, so that whoever
        # verifies it sees the damage rather than an exception.
        connection.text_factory = lambda text: text.decode(errors="backslashreplace")
        _pragmas(connection, READER_PRAGMAS)
        return connection

    engine = create_engine(
        "sqlite+pysqlite://", creator=connect, poolclass=NullPool, hide_parameters=True
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")  # several queries see one state of the log

    return engine


def async_reader_engine(path: Path) -> AsyncEngine:
    """The engine of a server's readers, through aiosqlite."""
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{uri(path, mode='ro')}&uri=true",
        pool_size=READERS,
        max_overflow=0,
        hide_parameters=True,
    )

    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _: object) -> None:
        _pragmas(connection, READER_PRAGMAS)

    return engine


def _pragmas(connection: Any, pragmas: tuple[str, ...]) -> None:
    cursor = connection.cursor()
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
