"""`GET /commands/{id}`: a command, what has become of it, and its events."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import get
from litestar.params import FromPath

from api.errors import ApiError, ErrorInfo, body, quote
from api.event_view import EventPage, iso, page
from api.log_routes import LIMIT, After, Limit
from api.openai.render import PREFIX
from api.services import Provided
from domain import events as e
from domain.commands import Caller, ChatCompletion
from infrastructure.event_store import CommandRow, EventStore, Recorded

Status = Literal["accepted", "running", "complete", "failed", "timed_out", "cancelled", "refused"]

_ENDED: dict[e.Ended, Status] = {
    "Complete": "complete",
    "TimedOut": "timed_out",
    "Cancelled": "cancelled",
}


class CommandView(msgspec.Struct, frozen=True, kw_only=True):
    """A command.

    Attributes:
        status: `accepted` waits, `running` is being worked on, the others are final.
        outcome: the terminal event's own account, once there.
        error: what a client was told, where it ended badly.
    """

    object: Literal["command"] = "command"
    id: str
    kind: str
    actor: str
    stream: str
    position: int
    recorded_at: int
    recorded_at_iso: str
    caller: Caller
    body_digest: str
    status: Status
    outcome: dict[str, Any] | None
    error: ErrorInfo | None
    events: EventPage


class _Account:
    """What a command's events say of it."""

    def __init__(self) -> None:
        self.first: Recorded | None = None
        self.caller = Caller(actor="", request_id="")
        self.status: Status = "accepted"
        self.outcome: dict[str, Any] | None = None
        self.error: ErrorInfo | None = None

    def add(self, recorded: Recorded) -> None:
        self.first = self.first or recorded
        match event := recorded.event:
            case e.CommandAccepted():
                self.caller = event.caller
                self.status = "accepted" if event.kind == ChatCompletion.__name__ else "complete"
            case e.CommandRefused():
                self.caller = event.caller
                self._ended("refused", recorded, event.message)
            case e.TaskAcknowledged():
                self.status = "running"
            case e.AttemptEnded():
                self.status = "accepted"
            case e.TaskStatusUpdated():
                self._ended(_ENDED[event.status], recorded, None)
            case e.TaskFailed():
                self._ended("failed", recorded, event.message)
            case _:
                pass

    def _ended(self, status: Status, recorded: Recorded, message: str | None) -> None:
        self.status = status
        self.outcome = msgspec.json.decode(recorded.payload)
        event = recorded.event
        if message is not None and isinstance(event, e.CommandRefused | e.TaskFailed):
            param = event.param if isinstance(event, e.CommandRefused) else None
            self.error = body(ApiError(event.code, message, param)).error


@get("/commands/{command_id:str}")
async def get_command(
    services: Provided, command_id: FromPath[str], after: After = 0, limit: Limit = LIMIT
) -> CommandView:
    """A command by its id, or a completion by its own, with a page of its events."""
    store = services.store
    row = await store.command(command_id.removeprefix(PREFIX))
    if row is None:
        raise ApiError("not_found", f"There is no command {quote(command_id)}.")
    account = _Account()
    for recorded in await _events(store, row, 0, 1000, tokens=False):
        account.add(recorded)
    first = account.first
    assert first is not None, "the index names an event that is in the log"
    return CommandView(
        id=row.command_id,
        kind=row.kind,
        actor=row.actor,
        stream=row.stream,
        position=row.position,
        recorded_at=first.recorded_at,
        recorded_at_iso=iso(first.recorded_at),
        caller=account.caller,
        body_digest=row.body_digest,
        status=account.status,
        outcome=account.outcome,
        error=account.error,
        events=page(await _events(store, row, after, limit + 1), limit, after),
    )


async def _events(
    store: EventStore, row: CommandRow, after: int, limit: int, *, tokens: bool = True
) -> list[Recorded]:
    """A command's events: all of its completion's, or those recorded along with it."""
    after = max(after, row.position - 1)
    if row.kind == ChatCompletion.__name__:
        return await store.read(after, limit, stream=row.stream, tokens=tokens)
    # An immediate command and what follows from it stand side by side; the rest of an
    # instance's stream is its own life.
    return await store.read(after, limit, stream=row.stream, up_to=row.position + 1)
