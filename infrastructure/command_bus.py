"""Commands in, events out: decide on State as folded, and record the decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256

import msgspec

from domain import streams
from domain.commands import Caller, ChatCompletion, Command
from domain.decide import Policy, decide
from domain.errors import Refusal
from domain.events import CommandAccepted, CommandRefused, Event
from infrastructure.event_store import (
    Append,
    CommandKey,
    CommandRow,
    DecidedAt,
    DuplicateKey,
    EventStore,
    Guard,
    LogUnavailable,
    StaleDecision,
    VersionIs,
)
from infrastructure.projection import Projection

DECIDE_TIMEOUT = 10.0
"""Seconds in which a command is decided on current State and recorded."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A command stands in the log.

    Attributes:
        position: of its CommandAccepted, or 0 for a repeat.
        repeat: an earlier command with the same idempotency key, which this one attaches to.
    """

    command_id: str
    stream: str
    position: int
    repeat: bool = False


class Refused(Exception):
    """The command was turned down, and that was recorded."""

    def __init__(self, refusal: Refusal, command_id: str) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.command_id = command_id


def stream_of(command: Command) -> str:
    """The stream that a command's events belong to."""
    if isinstance(command, ChatCompletion):
        return streams.completion(command.command_id)
    return streams.instance(command.instance_id)


class CommandBus:
    """Takes commands on, one at a time.

    Deciding is microseconds and the append is shared with everything else that commits in
    the same group, so one at a time costs little and keeps decisions from going stale.

    `admit` is asked about each refusal before it is recorded by itself: past a rate, refusals
    are only counted.
    """

    def __init__(
        self,
        store: EventStore,
        projection: Projection,
        policy: Policy,
        admit: Callable[[str, str], bool] = lambda actor, code: True,
    ) -> None:
        self._store = store
        self._projection = projection
        self._policy = policy
        self._admit = admit
        self._lock = asyncio.Lock()

    async def dispatch(self, command: Command, caller: Caller, body: bytes) -> Accepted:
        """Decide a command and record what follows from it.

        Raises:
            Refused: it was turned down.
            LogUnavailable: nothing was recorded.
        """
        try:
            async with asyncio.timeout(DECIDE_TIMEOUT), self._lock:
                while True:
                    position = self._projection.position
                    try:
                        return await self._try(command, caller, body)
                    except StaleDecision:
                        # What was missed may be folded by now, and nothing more may come.
                        await self._projection.wait_past(position, DECIDE_TIMEOUT)
        except TimeoutError:
            raise LogUnavailable(
                f"the command could not be recorded within {DECIDE_TIMEOUT:.0f} s"
            ) from None

    async def _try(self, command: Command, caller: Caller, body: bytes) -> Accepted:
        digest = sha256(body).hexdigest()
        kind = type(command).__name__
        # A repeat attaches whatever the server would now say to it as a new command.
        if caller.idempotency_key is not None:
            first = await self._store.command_by_key(caller.actor, caller.idempotency_key)
            if first is not None:
                return await self._attach(first, command, caller, digest, body)
        position = self._projection.position
        decision = decide(self._projection.state, command, self._policy)
        if isinstance(decision, Refusal):
            return await self._refuse(decision, command, caller, digest, body)
        accepted = CommandAccepted(
            command_id=command.command_id,
            kind=kind,
            caller=caller,
            body_digest=digest,
            body=body,
        )
        guards: tuple[Guard, ...] = (DecidedAt(position),)
        if isinstance(command, ChatCompletion):
            guards += (VersionIs(0),)
        key = CommandKey(
            command_id=command.command_id,
            kind=kind,
            actor=caller.actor,
            idempotency_key=caller.idempotency_key,
            body_digest=digest,
        )
        stream = stream_of(command)
        try:
            recorded = await self._store.append(
                Append(
                    stream=stream,
                    events=(accepted, *decision),
                    guards=guards,
                    durable=True,
                    command=key,
                )
            )
        except DuplicateKey as duplicate:  # a repeat that overtook its first
            first = await self._store.command(duplicate.command_id)
            assert first is not None
            return await self._attach(first, command, caller, digest, body)
        await self._projection.wait_past(recorded[0].position, DECIDE_TIMEOUT)
        return Accepted(command_id=command.command_id, stream=stream, position=recorded[0].position)

    async def _attach(
        self,
        first: CommandRow,
        command: Command,
        caller: Caller,
        digest: str,
        body: bytes,
    ) -> Accepted:
        if first.body_digest != digest:
            refusal = Refusal(
                "idempotency_conflict",
                f"The idempotency key was used for another request body, by command "
                f"{first.command_id}. Use a new key for a new request.",
            )
            return await self._refuse(refusal, command, caller, digest, body)
        return Accepted(command_id=first.command_id, stream=first.stream, position=0, repeat=True)

    async def _refuse(
        self,
        refusal: Refusal,
        command: Command,
        caller: Caller,
        digest: str,
        body: bytes,
    ) -> Accepted:
        """Record a refusal and raise it."""
        if self._admit(caller.actor, refusal.code):
            kind = type(command).__name__
            event: Event = CommandRefused(
                command_id=command.command_id,
                kind=kind,
                caller=caller,
                body_digest=digest,
                code=refusal.code,
                param=refusal.param,
                message=refusal.message,
                body=body,
            )
            # A refused deletion must not close the stream of the instance it names.
            own = isinstance(command, ChatCompletion)
            stream = stream_of(command) if own else streams.SERVER
            key = CommandKey(
                command_id=command.command_id,
                kind=kind,
                actor=caller.actor,
                idempotency_key=None,
                body_digest=digest,
            )
            await self._store.append(
                Append(stream=stream, events=(event,), durable=True, command=key)
            )
        raise Refused(refusal, command.command_id)
