"""Whether a log is what it was when it was written.

Every event's hash covers its stored bytes and the hash before it, so one bit that changed
shows at its position. A log that somebody rewrote from some point to its end, hashes
included, does not show by itself; for that, keep a head somewhere else from time to time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from domain import chain
from domain.events import CommandRefused, TaskAcknowledged, TaskFailed, TaskStatusUpdated
from infrastructure.event_store import Head, Recorded, StreamInfo
from infrastructure.log_reader import LogReader

_ENDS = frozenset(cls.__name__ for cls in (TaskStatusUpdated, TaskFailed, CommandRefused))
_CLAIMS = TaskAcknowledged.__name__


class Fault(msgspec.Struct, frozen=True):
    """The first thing wrong with a log.

    Attributes:
        position: the first event that is not as it was written. Beyond the last event: the
            events are, but not what else the log says of them.
        reason: what is wrong.
    """

    position: int
    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        head: the last event that is as it was written.
        fault: what is wrong after it, or None.
    """

    head: Head
    fault: Fault | None = None


class _Claim(msgspec.Struct, frozen=True):
    attempt: int


class Verifier:
    """Verifies a log event by event.

    Attributes:
        head: the last event that was found to be as it was written.
        fault: what is wrong after it, if anything.
    """

    def __init__(self) -> None:
        self.head = Head(0, chain.GENESIS)
        self.fault: Fault | None = None
        self._recorded_at = 0
        self._streams: dict[str, tuple[int, int, bool]] = {}

    def check(self, event: Recorded) -> bool:
        """Verify the next event; False once something is wrong."""
        if self.fault is None:
            reason = self._wrong(event)
            if reason is not None:
                self.fault = Fault(self.head.position + 1, reason)
        return self.fault is None

    def _wrong(self, event: Recorded) -> str | None:
        expected = self.head.position + 1
        if event.position != expected:
            return f"event {expected} is missing; {event.position} follows"
        digest = chain.link(
            self.head.hash,
            position=event.position,
            stream=event.stream,
            version=event.version,
            type=event.type,
            schema_version=event.schema_version,
            recorded_at=event.recorded_at,
            key_ref=event.key_ref,
            payload=event.payload,
            content=event.content,
        )
        if digest != event.hash:
            return f"the hash of event {expected} does not fit its bytes and the event before"
        # The chain cannot tell empty from absent, and no event has empty content or key.
        if event.content == b"" or event.key_ref == "":
            return f"event {expected} has empty content where it had none"
        version, attempt, open = self._streams.get(event.stream, (0, 0, True))
        if event.version != version + 1:
            return (
                f"event {expected} is version {event.version} of {event.stream}, which was "
                f"at {version}"
            )
        if event.recorded_at < self._recorded_at:
            return f"event {expected} was recorded before the one before it"
        if event.type == _CLAIMS:
            attempt = msgspec.json.decode(event.payload, type=_Claim).attempt
        self._streams[event.stream] = (version + 1, attempt, open and event.type not in _ENDS)
        self._recorded_at = event.recorded_at
        self.head = Head(event.position, event.hash)
        return None

    def finish(self, head: Head, streams: Iterable[StreamInfo] | None = None) -> Verdict:
        """Verify what the log says of its events.

        Args:
            head: the log's head, as of the last event verified.
            streams: the heads of all streams, as of then, if they are to be verified too.
        """
        if self.fault is None:
            reason = self._wrong_head(head)
            if reason is None and streams is not None:
                reason = self._wrong_streams(streams)
            if reason is not None:
                self.fault = Fault(self.head.position + 1, reason)
        return Verdict(head=self.head, fault=self.fault)

    def _wrong_head(self, head: Head) -> str | None:
        if head.position != self.head.position:
            return f"the head says {head.position}, and the last event is {self.head.position}"
        if head.hash != self.head.hash:
            return "the head's hash is not that of the last event"
        return None

    def _wrong_streams(self, streams: Iterable[StreamInfo]) -> str | None:
        seen = 0
        for stream in streams:
            expected = self._streams.get(stream.name)
            if expected is None:
                return f"there is a stream {stream.name!r} without events"
            if (stream.version, stream.attempt, stream.open) != expected:
                return (
                    f"stream {stream.name} is at version {expected[0]}, attempt {expected[1]}, "
                    f"{'open' if expected[2] else 'closed'}, and its row says otherwise"
                )
            seen += 1
        if seen != len(self._streams):
            return f"{len(self._streams) - seen} streams have events but no row"
        return None


def verify(
    events: Iterable[Recorded], head: Head, streams: Iterable[StreamInfo] | None = None
) -> Verdict:
    """Verify a log.

    Args:
        events: all of them, from the first, as stored.
        head: the log's head; a head kept elsewhere shows a log that was cut off or rewritten.
        streams: the heads of all streams, if they are to be verified too.
    """
    verifier = Verifier()
    for event in events:
        if not verifier.check(event):
            break
    return verifier.finish(head, streams)


def verify_log(reader: LogReader) -> Verdict:
    """Verify a log's file, also while a server appends to it."""
    verifier = Verifier()
    for event in reader.events(up_to=reader.head().position):
        if not verifier.check(event):
            return verifier.finish(verifier.head)
    # What came meanwhile is few, and is read together with the heads that have to fit it.
    tail, head, streams = reader.tail(verifier.head.position)
    for event in tail:
        verifier.check(event)
    return verifier.finish(head, streams)
