"""The log's schema: looked at before anything is written, then brought up to date."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text

import migrations
from infrastructure.event_store import LogTooNew, StoreError
from infrastructure.sqlite.connect import reader_engine


def revision(path: Path) -> str | None:
    """The revision of the log in a file, or None where there is no log yet.

    Nothing is written, not even beside the file.

    Raises:
        LogTooNew: a newer inferlog wrote it.
        StoreError: the file is something else.
    """
    if not path.exists() or path.stat().st_size == 0:
        return None
    wal = path.with_name(path.name + "-wal")
    engine = reader_engine(path, immutable=not wal.exists())
    with engine.connect() as connection:
        found = read_revision(connection, path)
    engine.dispose()
    return found


def read_revision(connection: Connection, path: Path) -> str | None:
    """The same, on a connection.

    Raises:
        LogTooNew: a newer inferlog wrote it.
        StoreError: the file is something else.
    """
    tables = set(connection.scalars(text("SELECT name FROM sqlite_master")))
    if not tables:
        return None
    if "alembic_version" not in tables:
        raise StoreError(f"{path} is a database, but not a log of inferlog")
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if found is not None and found not in migrations.REVISIONS:
        raise LogTooNew(
            f"{path} was written by a newer inferlog (its format is {found}, and this one knows "
            f"up to {migrations.REVISIONS[-1]}). It was left as it is; use that version or a "
            "newer one."
        )
    return found
