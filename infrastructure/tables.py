"""The tables of the log, as SQLAlchemy Core sees them on any backend.

The migrations make them; these definitions only build queries.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from domain.events import TOKEN_TYPE

metadata = MetaData()

streams = Table(
    "streams",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("command", Text),
    Column("version", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("open", Boolean(create_constraint=False), nullable=False),
)
"""Heads of streams, and the command that began each, if one did."""

events = Table(
    "events",
    metadata,
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("stream_id", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    # JSON is kept as text, so that SQL can look inside on any version of any database.
    Column("payload", Text, nullable=False),
    Column("content", LargeBinary),
    Column("key_ref", Text),
    Column("hash", LargeBinary, nullable=False),
    UniqueConstraint("stream_id", "version"),
)
"""The log. Its rows are never changed."""

Index(
    "events_of_state",
    events.c.position,
    sqlite_where=events.c.type != TOKEN_TYPE,
    postgresql_where=events.c.type != TOKEN_TYPE,
)

log_head = Table(
    "log_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
)
"""One row: the end of the log. It moves in the transaction that appends."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("fold_version", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)
"""State as folded up to a position; disposable."""

cursors = Table(
    "cursors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
)
"""How far named readers of the log have come."""

commands = Table(
    "commands",
    metadata,
    Column("command_id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("body_digest", Text, nullable=False),
    Column("stream_id", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    UniqueConstraint("actor", "idempotency_key"),
)
"""An index over the events that began with a command; not a second truth."""
