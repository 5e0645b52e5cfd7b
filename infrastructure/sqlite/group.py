"""A group of appends, decided one by one on top of each other, before anything is kept.

No I/O happens here. What a group changes is an overlay over the writer's memory; the writer
takes it over once the group is committed, and forgets it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import msgspec

from domain import chain, codec
from domain.events import TOKEN_TYPE
from infrastructure.event_store import (
    Append,
    AttemptIs,
    CommandKey,
    DecidedAt,
    DuplicateKey,
    Fenced,
    Guard,
    GuardFailed,
    IsOpen,
    Recorded,
    StaleDecision,
    StreamClosed,
    VersionConflict,
    VersionIs,
)

Result = tuple[Recorded, ...] | GuardFailed


class StreamHead(msgspec.Struct, frozen=True):
    """Where a stream stands. Version 0: it does not exist yet."""

    id: int
    version: int = 0
    attempt: int = 0
    open: bool = True


class Tip(msgspec.Struct, frozen=True, kw_only=True):
    """Where the log stands.

    Attributes:
        state_position: of the last event that changes State.
        next_stream_id: for the next new stream.
    """

    position: int
    hash: bytes
    recorded_at: int
    state_position: int
    next_stream_id: int


class Prepared(msgspec.Struct, frozen=True):
    """An append with its events encoded, which is done before it queues."""

    append: Append
    encoded: tuple[codec.Encoded, ...]
    size: int

    @classmethod
    def of(cls, append: Append) -> Prepared:
        """Encode an append.

        Raises:
            ValueError: it has no events.
        """
        if not append.events:
            raise ValueError(f"an append to {append.stream} has no events")
        encoded = tuple(codec.encode(event) for event in append.events)
        size = sum(len(e.payload) + len(e.content or b"") for e in encoded)
        return cls(append, encoded, size)


class Group:
    """Appends that are committed together.

    Attributes:
        tip: where the log stands once the group is committed.
        streams: the streams that changed.
        recorded: its events.
        commands: the commands that it adds to the index, each with its stream and position.
    """

    def __init__(
        self,
        tip: Tip,
        heads: Mapping[str, StreamHead],
        taken: Sequence[CommandKey],
        clock: Callable[[], int],
    ) -> None:
        """Begin a group.

        Args:
            heads: of every stream that the group's appends name and that exists.
            taken: commands in the index that share an id or a key with the group's commands.
        """
        self.tip = tip
        self.streams: dict[str, StreamHead] = {}
        self.commands_of_streams: dict[str, str] = {}
        self.recorded: list[Recorded] = []
        self.commands: list[tuple[CommandKey, str, int]] = []
        self.first_new_stream = tip.next_stream_id
        self._heads = heads
        self._clock = clock
        self._ids = {command.command_id: command for command in taken}
        self._keys = {
            (command.actor, command.idempotency_key): command
            for command in taken
            if command.idempotency_key is not None
        }

    def add(self, prepared: Prepared) -> Result:
        """Record one append in the group, or say why not; nothing of it is kept then."""
        append = prepared.append
        head = self.streams.get(append.stream) or self._heads.get(append.stream)
        failure = self._duplicate(append.command) or self._guard(append, head)
        if failure is not None:
            return failure
        if head is None:
            head = StreamHead(self.tip.next_stream_id)
            if append.command is not None:
                self.commands_of_streams[append.stream] = append.command.command_id
        if append.command is not None:
            self._index(append.command, append.stream)
        recorded = self._record(prepared, head)
        self.streams[append.stream] = StreamHead(
            head.id,
            recorded[-1].version,
            head.attempt if append.attempt is None else append.attempt,
            head.open and not append.closes,
        )
        last = recorded[-1]
        of_state = [r.position for r in recorded if r.type != TOKEN_TYPE]
        self.tip = Tip(
            position=last.position,
            hash=last.hash,
            recorded_at=last.recorded_at,
            state_position=of_state[-1] if of_state else self.tip.state_position,
            next_stream_id=max(self.tip.next_stream_id, head.id + 1),
        )
        return recorded

    def _duplicate(self, command: CommandKey | None) -> DuplicateKey | None:
        if command is None:
            return None
        earlier = self._ids.get(command.command_id)
        if earlier is None and command.idempotency_key is not None:
            earlier = self._keys.get((command.actor, command.idempotency_key))
        if earlier is None:
            return None
        return DuplicateKey(earlier.command_id, earlier.body_digest)

    def _guard(self, append: Append, head: StreamHead | None) -> GuardFailed | None:
        for guard in append.guards:
            failure = self._check(guard, append.stream, head)
            if failure is not None:
                return failure
        return None

    def _check(self, guard: Guard, stream: str, head: StreamHead | None) -> GuardFailed | None:
        match guard:
            case VersionIs(version):
                actual = 0 if head is None else head.version
                if actual != version:
                    return VersionConflict(f"{stream} is at version {actual}, not {version}")
            case AttemptIs(attempt):
                if head is None or not head.open:
                    return Fenced(f"{stream} is not open")
                if head.attempt != attempt:
                    return Fenced(f"{stream} is at attempt {head.attempt}, not {attempt}")
            case IsOpen():
                if head is None or not head.open:
                    return StreamClosed(f"{stream} is not open")
            case DecidedAt(position):
                if self.tip.state_position > position:
                    return StaleDecision(
                        f"decided at {position}; State changed at {self.tip.state_position}"
                    )
            case _:
                assert_never(guard)
        return None

    def _index(self, command: CommandKey, stream: str) -> None:
        self._ids[command.command_id] = command
        if command.idempotency_key is not None:
            self._keys[command.actor, command.idempotency_key] = command
        self.commands.append((command, stream, self.tip.position + 1))

    def _record(self, prepared: Prepared, head: StreamHead) -> tuple[Recorded, ...]:
        stream = prepared.append.stream
        previous = self.tip.hash
        recorded_at = max(self.tip.recorded_at, self._clock())
        first = len(self.recorded)
        for number, encoded in enumerate(prepared.encoded, start=1):
            position, version = self.tip.position + number, head.version + number
            previous = chain.link(
                previous,
                position=position,
                stream=stream,
                version=version,
                type=encoded.type,
                schema_version=encoded.schema_version,
                recorded_at=recorded_at,
                key_ref=None,
                payload=encoded.payload,
                content=encoded.content,
            )
            self.recorded.append(
                Recorded(
                    position=position,
                    stream=stream,
                    version=version,
                    type=encoded.type,
                    schema_version=encoded.schema_version,
                    recorded_at=recorded_at,
                    payload=encoded.payload,
                    content=encoded.content,
                    key_ref=None,
                    hash=previous,
                )
            )
        return tuple(self.recorded[first:])
