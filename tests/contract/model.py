"""The event store as a list: what a store must do, without how."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from domain.events import TOKEN_TYPE, Event
from infrastructure.event_store import (
    Append,
    AttemptIs,
    DecidedAt,
    Guard,
    IsOpen,
    Recorded,
    StreamInfo,
    VersionIs,
)


class Entry(msgspec.Struct, frozen=True):
    """An event of the model's log."""

    position: int
    stream: str
    version: int
    event: Event

    @property
    def is_token(self) -> bool:
        """Whether it never changes State."""
        return type(self.event).__name__ == TOKEN_TYPE


class Model:
    """A log in memory."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.ids: set[str] = set()
        self.keys: set[tuple[str, str]] = set()

    def of(self, stream: str) -> list[Entry]:
        """A stream's events."""
        return [entry for entry in self.log if entry.stream == stream]

    def info(self, name: str) -> StreamInfo | None:
        """A stream's head, from its events alone."""
        entries = self.of(name)
        if not entries:
            return None
        appended = Append(stream=name, events=tuple(entry.event for entry in entries))
        return StreamInfo(
            name=name,
            version=len(entries),
            attempt=appended.attempt or 0,
            open=not appended.closes,
        )

    def append(self, append: Append) -> str | None:
        """Record an append, or name the guard that fails."""
        command = append.command
        if command is not None:
            key = (command.actor, command.idempotency_key or "")
            if command.command_id in self.ids or (command.idempotency_key and key in self.keys):
                return "DuplicateKey"
        for guard in append.guards:
            if (failure := self._failure(guard, append.stream)) is not None:
                return failure
        if command is not None:
            self.ids.add(command.command_id)
            if command.idempotency_key:
                self.keys.add((command.actor, command.idempotency_key))
        for event in append.events:
            version = len(self.of(append.stream)) + 1
            self.log.append(Entry(len(self.log) + 1, append.stream, version, event))
        return None

    def _failure(self, guard: Guard, stream: str) -> str | None:
        info = self.info(stream)
        match guard:
            case VersionIs(version):
                return None if len(self.of(stream)) == version else "VersionConflict"
            case AttemptIs(attempt):
                holds = info is not None and info.open and info.attempt == attempt
                return None if holds else "Fenced"
            case IsOpen():
                return None if info is not None and info.open else "StreamClosed"
            case DecidedAt(position):
                later = [e for e in self.log[position:] if not e.is_token]
                return "StaleDecision" if later else None

    def read(
        self,
        after: int,
        limit: int,
        stream: str | None,
        types: Collection[str] | None,
        tokens: bool,
        up_to: int | None,
    ) -> list[Entry]:
        """A page."""
        return [
            entry
            for entry in self.log
            if entry.position > after
            and (up_to is None or entry.position <= up_to)
            and (stream is None or entry.stream == stream)
            and (types is None or type(entry.event).__name__ in types)
            and (tokens or not entry.is_token)
        ][:limit]


def as_entries(events: Collection[Recorded]) -> list[Entry]:
    """What a store answered, to be compared."""
    return [Entry(r.position, r.stream, r.version, r.event) for r in events]
