"""Where the log is: a URL to a backend."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from infrastructure.event_store import EventStore, StoreError
from infrastructure.sqlite.store import SqliteEventStore

LOG_NAME = "log.db"


def log_path(url: str | None, home: Path) -> Path:
    """The file that a URL names.

    Args:
        url: `sqlite:///path`; None or empty: `log.db` in the data folder. A relative path is
            relative to the folder inferlog was started in.
        home: the data folder.

    Raises:
        StoreError: the URL is malformed, or names a database that is not served.
    """
    if not url:
        return home / LOG_NAME
    try:
        parsed = make_url(url)
    except ArgumentError:
        # The URL itself stays out of the message: it may hold a password.
        raise StoreError(
            "INFERLOG_DATABASE_URL is not a URL; it looks like sqlite:////data/log.db"
        ) from None
    backend = parsed.get_backend_name()
    if backend in ("postgresql", "postgres"):
        raise StoreError(
            "PostgreSQL is not served yet. Leave INFERLOG_DATABASE_URL empty, or name a file: "
            "sqlite:////data/log.db"
        )
    if backend != "sqlite" or parsed.drivername not in ("sqlite", "sqlite+aiosqlite"):
        raise StoreError(
            f"{parsed.drivername} is not served. Leave INFERLOG_DATABASE_URL empty, or name a "
            "file: sqlite:////data/log.db"
        )
    if not parsed.database or parsed.database == ":memory:" or parsed.host or parsed.query:
        raise StoreError(
            "INFERLOG_DATABASE_URL names no file; a log needs one and nothing else: "
            "sqlite:////data/log.db (four slashes before an absolute path)"
        )
    return Path(parsed.database)


async def open_store(url: str | None, home: Path) -> EventStore:
    """Open the log that a URL names.

    Args:
        url: see `log_path`.
        home: the data folder.

    Raises:
        StoreError: the URL is wrong, or the log cannot be opened; see
            `SqliteEventStore.open` for the kinds.
    """
    return await SqliteEventStore.open(log_path(url, home))
