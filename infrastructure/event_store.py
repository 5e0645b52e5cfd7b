"""The port to the event store: what every backend must do, and the errors it may raise.

Errors::

    StoreError
    ├── GuardFailed
    │   ├── VersionConflict      the stream is not at the version named
    │   ├── Fenced               the attempt was superseded, or its stream has ended
    │   ├── StreamClosed         the stream has had its terminal event
    │   ├── StaleDecision        State moved on since the command was decided
    │   └── DuplicateKey         this actor used this idempotency key before
    ├── PositionOutOfRange       a cursor beyond the head
    ├── LogUnavailable           disk full or I/O error: nothing was recorded
    ├── LogInUse                 another process owns this log
    └── LogTooNew                a newer inferlog wrote this log
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Sequence

import msgspec

from domain import codec
from domain.events import Event, TaskAcknowledged, is_terminal


class StoreError(Exception):
    """Base of everything the store raises."""


class GuardFailed(StoreError):
    """An append's guard did not hold; that append alone was not recorded."""


class VersionConflict(GuardFailed):
    """The stream is not at the version the append named."""


class Fenced(GuardFailed):
    """The attempt was superseded, or its stream has ended."""


class StreamClosed(GuardFailed):
    """The stream has had its terminal event."""


class StaleDecision(GuardFailed):
    """Events that change State were appended after the decision."""


class DuplicateKey(GuardFailed):
    """This actor used this idempotency key before.

    Attributes:
        command_id: the command that the key belongs to.
        body_digest: SHA-256 of that command's body, in hex.
    """

    def __init__(self, command_id: str, body_digest: str) -> None:
        super().__init__(f"the key belongs to command {command_id}")
        self.command_id = command_id
        self.body_digest = body_digest


class PositionOutOfRange(StoreError):
    """A cursor beyond the head."""


class LogUnavailable(StoreError):
    """The log cannot be written or read; nothing of this call was recorded."""


class LogInUse(StoreError):
    """Another process owns this log."""


class LogTooNew(StoreError):
    """A newer inferlog wrote this log; it was left untouched."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One event as it stands in the log.

    Attributes:
        position: place in the whole log, from 1, without gaps.
        version: place within its stream, from 1.
        recorded_at: microseconds since the epoch; never less than the event before.
        key_ref: the key that seals `content`, or None.
        hash: 32 bytes, see `domain.chain`.
    """

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    recorded_at: int
    payload: bytes
    content: bytes | None
    key_ref: str | None
    hash: bytes

    @property
    def event(self) -> Event:
        """The event itself, decoded."""
        return codec.decode(self.type, self.schema_version, self.payload, self.content)


class VersionIs(msgspec.Struct, frozen=True):
    """Guard: the stream is at this version (0: it does not exist yet)."""

    version: int


class AttemptIs(msgspec.Struct, frozen=True):
    """Guard: this is the stream's attempt and the stream is open."""

    attempt: int


class IsOpen(msgspec.Struct, frozen=True):
    """Guard: the stream exists and has had no terminal event."""


class DecidedAt(msgspec.Struct, frozen=True):
    """Guard: no event that changes State came after this position."""

    position: int


Guard = VersionIs | AttemptIs | IsOpen | DecidedAt


class CommandKey(msgspec.Struct, frozen=True, kw_only=True):
    """A command's entry in the index over commands, unique by (actor, idempotency_key)."""

    command_id: str
    kind: str
    actor: str
    idempotency_key: str | None
    body_digest: str


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Events for one stream, recorded together or not at all.

    Attributes:
        guards: all must hold.
        durable: survive power loss before this is acknowledged.
        command: enters the index of commands in the same transaction.
    """

    stream: str
    events: tuple[Event, ...]
    guards: tuple[Guard, ...] = ()
    durable: bool = False
    command: CommandKey | None = None

    @property
    def attempt(self) -> int | None:
        """The attempt that these events begin, if they claim the task."""
        claims = [event.attempt for event in self.events if isinstance(event, TaskAcknowledged)]
        return claims[-1] if claims else None

    @property
    def closes(self) -> bool:
        """Whether these events end their stream."""
        return any(is_terminal(event) for event in self.events)


class Head(msgspec.Struct, frozen=True):
    """The end of the log: its last position (0 when empty) and that event's hash."""

    position: int
    hash: bytes


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's head: last version, current attempt, and whether it is open."""

    name: str
    version: int
    attempt: int
    open: bool


class CommandRow(msgspec.Struct, frozen=True, kw_only=True):
    """A command in the index."""

    command_id: str
    kind: str
    actor: str
    stream: str
    position: int
    body_digest: str


class Snapshot(msgspec.Struct, frozen=True):
    """State as folded up to and including a position, in the encoding of its fold version."""

    position: int
    data: bytes


class EventStore(ABC):
    """An append-only log with streams, guards and a live feed.

    Positions are contiguous and in commit order. Nobody sees an event that is not committed.
    """

    @abstractmethod
    async def append_all(
        self, appends: Sequence[Append]
    ) -> list[tuple[Recorded, ...] | GuardFailed]:
        """Record appends in one group; each stands or falls by its own guards.

        A commit that was interrupted is settled before this returns, however long the log
        cannot be read; bound the wait where that matters. A caller that is cancelled meanwhile
        is not told, and what it appended may be recorded.

        Raises:
            LogUnavailable: nothing of the group was recorded. Only where the log is closed
                before an interrupted commit is settled, that is not known, and the message
                says so.
        """

    async def append(self, append: Append) -> tuple[Recorded, ...]:
        """Record one append.

        Raises:
            GuardFailed: a guard did not hold; nothing was recorded.
            LogUnavailable: nothing was recorded.
        """
        [result] = await self.append_all([append])
        if isinstance(result, GuardFailed):
            raise result
        return result

    @abstractmethod
    async def head(self) -> Head:
        """The end of the log as committed."""

    @abstractmethod
    async def read(
        self,
        after: int = 0,
        limit: int = 100,
        *,
        stream: str | None = None,
        types: Collection[str] | None = None,
        tokens: bool = True,
        up_to: int | None = None,
    ) -> list[Recorded]:
        """A page of events after a position, oldest first.

        Args:
            types: only these event types.
            tokens: False leaves out token events, by an index.
            up_to: last position wanted.

        Raises:
            PositionOutOfRange: `after` is beyond the head.
        """

    @abstractmethod
    def follow(
        self, after: int = 0, *, stream: str | None = None, tokens: bool = True
    ) -> AsyncGenerator[Sequence[Recorded], None]:
        """Batches of events after a position, then live ones as they commit, for ever.

        Close the iterator (`aclosing`) to stop. A slow follower falls back to reading the
        database and never slows another.

        Raises:
            PositionOutOfRange: `after` is beyond the head.
            LogUnavailable: the log was closed or cannot be read.
        """

    @abstractmethod
    async def stream(self, name: str) -> StreamInfo | None:
        """A stream's head, or None where there is no such stream."""

    @abstractmethod
    async def command(self, command_id: str) -> CommandRow | None:
        """A command's entry in the index."""

    @abstractmethod
    async def command_by_key(self, actor: str, idempotency_key: str) -> CommandRow | None:
        """The command that an actor's idempotency key belongs to."""

    @abstractmethod
    async def load_snapshot(self, version: int, at_most: int | None = None) -> Snapshot | None:
        """The latest snapshot of this fold version at or before a position."""

    @abstractmethod
    async def save_snapshot(self, version: int, snapshot: Snapshot) -> None:
        """Keep a snapshot; it is disposable."""

    @property
    @abstractmethod
    def unavailable(self) -> str | None:
        """None while the log can be written, else the reason why not."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is queued and let go of the log."""
