"""Rows of the log to `Recorded` and the queries for them, shared by every reader."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Select, literal, select

from domain.events import TOKEN_TYPE
from infrastructure.event_store import Recorded
from infrastructure.tables import commands, events, snapshots, streams

_EVENTS = select(
    events.c.position,
    streams.c.name,
    events.c.version,
    events.c.type,
    events.c.schema_version,
    events.c.recorded_at,
    events.c.payload,
    events.c.content,
    events.c.key_ref,
    events.c.hash,
).join_from(events, streams, events.c.stream_id == streams.c.id)

OF_STATE = events.c.type != literal(TOKEN_TYPE, literal_execute=True)
"""Leaves out token events. Their type is written out rather than bound, as only then SQLite
can use the index over the others."""

STREAMS = select(streams.c.name, streams.c.version, streams.c.attempt, streams.c.open)
"""Rows of `StreamInfo`."""

COMMANDS = select(
    commands.c.command_id,
    commands.c.kind,
    commands.c.actor,
    streams.c.name.label("stream"),
    commands.c.position,
    commands.c.body_digest,
).join_from(commands, streams, commands.c.stream_id == streams.c.id)
"""Rows of `CommandRow`."""


def select_snapshot(version: int, at_most: int) -> Select[Any]:
    """The latest snapshot of a fold's version at or before a position."""
    return (
        select(snapshots.c.position, snapshots.c.data)
        .where(snapshots.c.fold_version == version, snapshots.c.position <= at_most)
        .order_by(snapshots.c.position.desc())
        .limit(1)
    )


def select_events(
    after: int,
    limit: int | None,
    *,
    stream: str | None = None,
    types: Collection[str] | None = None,
    tokens: bool = True,
    up_to: int | None = None,
) -> Select[Any]:
    """Events after a position, oldest first; see `EventStore.read`."""
    query = _EVENTS.where(events.c.position > after).limit(limit)
    if up_to is not None:
        query = query.where(events.c.position <= up_to)
    if stream is None:
        query = query.order_by(events.c.position)
    else:
        # Within a stream, versions are in the order of positions, and (stream_id, version) is
        # an index: nothing is sorted, however long the stream.
        stream_id = select(streams.c.id).where(streams.c.name == stream).scalar_subquery()
        query = query.where(events.c.stream_id == stream_id).order_by(events.c.version)
    if types is not None:
        query = query.where(events.c.type.in_(sorted(types)))
    if not tokens or (types is not None and TOKEN_TYPE not in types):
        query = query.where(OF_STATE)
    return query


def recorded(rows: Iterable[Any]) -> list[Recorded]:
    """Rows of `select_events` as events."""
    return [
        Recorded(
            position=position,
            stream=stream,
            version=version,
            type=type,
            schema_version=schema_version,
            recorded_at=recorded_at,
            payload=payload.encode(),
            content=content,
            key_ref=key_ref,
            hash=hash,
        )
        for (
            position,
            stream,
            version,
            type,
            schema_version,
            recorded_at,
            payload,
            content,
            key_ref,
            hash,
        ) in rows
    ]
