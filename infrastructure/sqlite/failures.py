"""What an error of the database means."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError

from infrastructure.event_store import StoreError


def reason_of(error: BaseException) -> str:
    """Why something went wrong, without the statement it went wrong in."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    if isinstance(cause, sqlite3.Error | OSError | StoreError):
        return str(cause)
    return f"{type(cause).__name__}: {cause}"


def certainly_failed(error: Exception) -> bool:
    """Whether a commit's error means that it did not reach the disk.

    SQLite says FULL while it writes pages, of which the commit is the last. After any other
    error, such as a failed sync, the commit may be there.
    """
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL"
