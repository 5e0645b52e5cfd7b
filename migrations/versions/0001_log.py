"""The log: streams, events, the head, and what is derived from them.

Written by hand, as Alembic's operations know neither STRICT nor what a log must never do.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQLITE = """
CREATE TABLE streams (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    command TEXT,
    version INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    open INTEGER NOT NULL
) STRICT;

CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    stream_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    type TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    payload TEXT NOT NULL,
    content BLOB,
    key_ref TEXT,
    hash BLOB NOT NULL,
    UNIQUE (stream_id, version)
) STRICT;

CREATE INDEX events_of_state ON events (position) WHERE type <> 'ChunkGenerated';

CREATE TABLE log_head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    position INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT;

INSERT INTO log_head (id, position, hash) VALUES (1, 0, zeroblob(32));

CREATE TABLE snapshots (
    fold_version INTEGER NOT NULL,
    position INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (fold_version, position)
) STRICT;

CREATE TABLE cursors (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL
) STRICT;

CREATE TABLE commands (
    command_id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    idempotency_key TEXT,
    body_digest TEXT NOT NULL,
    stream_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    UNIQUE (actor, idempotency_key)
) STRICT;
"""


def upgrade() -> None:
    """Make the tables."""
    for statement in SQLITE.strip().split(";\n"):
        op.execute(statement)
