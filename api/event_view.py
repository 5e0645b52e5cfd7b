"""An event of the log as JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from infrastructure.event_store import Recorded


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event with everything that the log holds of it.

    Attributes:
        recorded_at: microseconds since the epoch.
        content: what users said and models answered; null where there is none of it.
        hash: the chain's link, in hex.
    """

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    recorded_at: int
    recorded_at_iso: str
    hash: str
    payload: dict[str, Any]
    content: dict[str, Any] | None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some events, oldest first. `next_after` is the `after` of the page that follows."""

    object: Literal["list"] = "list"
    data: list[EventView]
    has_more: bool
    next_after: int


def view(recorded: Recorded) -> EventView:
    """An event as JSON shows it."""
    return EventView(
        position=recorded.position,
        stream=recorded.stream,
        version=recorded.version,
        type=recorded.type,
        schema_version=recorded.schema_version,
        recorded_at=recorded.recorded_at,
        recorded_at_iso=iso(recorded.recorded_at),
        hash=recorded.hash.hex(),
        payload=msgspec.json.decode(recorded.payload),
        content=_content(recorded.content),
    )


def page(events: Sequence[Recorded], limit: int, after: int) -> EventPage:
    """A page made from up to one event more than it may hold."""
    shown = events[:limit]
    return EventPage(
        data=[view(recorded) for recorded in shown],
        has_more=len(events) > limit,
        next_after=shown[-1].position if shown else after,
    )


def iso(microseconds: int) -> str:
    """A moment as RFC 3339 writes it."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def _content(content: bytes | None) -> dict[str, Any] | None:
    if content is None:
        return None
    fields: dict[str, Any] = msgspec.msgpack.decode(content)
    return {name: _readable(value) for name, value in fields.items()}


def _readable(value: Any) -> Any:
    """Bytes as the text that they nearly always are."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case list():
            return [_readable(item) for item in value]
        case dict():
            return {name: _readable(item) for name, item in value.items()}
        case _:
            return value
