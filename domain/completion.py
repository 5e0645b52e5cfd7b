"""One completion's stream, folded into the messages that its client sees.

The same fold serves a live stream, a reconnect, and a replay a year later. A message's
place in the sequence is its ordinal: the same on every connection and on every day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from domain import events as e
from domain.errors import Code


class Role(msgspec.Struct, frozen=True):
    """A choice begins."""

    choice: int


class Text(msgspec.Struct, frozen=True):
    """More of a choice."""

    choice: int
    delta: e.Delta


class Finish(msgspec.Struct, frozen=True):
    """A choice is complete."""

    choice: int
    reason: e.FinishReason


class Usage(msgspec.Struct, frozen=True):
    """What it cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int


class Failure(msgspec.Struct, frozen=True):
    """It ended with an error."""

    code: Code
    message: str


class Done(msgspec.Struct, frozen=True):
    """Nothing follows."""


Message = Role | Text | Finish | Usage | Failure | Done


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the fold is.

    Attributes:
        created: the task, once known.
        refused: the refusal, where the command was turned down.
        begun: choices whose role was sent.
        completion_tokens: tokens seen so far.
        ended: the terminal event, once there.
    """

    created: e.TaskCreated | None = None
    refused: e.CommandRefused | None = None
    begun: frozenset[int] = frozenset()
    completion_tokens: int = 0
    ended: e.TaskStatusUpdated | e.TaskFailed | None = None


def step(progress: Progress, event: e.Event) -> tuple[Progress, tuple[Message, ...]]:
    """Fold one more event of a completion's stream; give the messages that it adds.

    Usage is always among them: whether a client sees it is for the rendering to say.
    """
    match event:
        case e.TaskCreated():
            return msgspec.structs.replace(progress, created=event), ()
        case e.ChunkGenerated():
            return _chunk(progress, event)
        case e.TaskStatusUpdated():
            ended = msgspec.structs.replace(progress, ended=event)
            return ended, (*_ending(ended, event), Done())
        case e.TaskFailed():
            ended = msgspec.structs.replace(progress, ended=event)
            return ended, (Failure(event.code, event.message), Done())
        case e.CommandRefused():
            refused = msgspec.structs.replace(progress, refused=event)
            return refused, (Failure(event.code, event.message), Done())
        case _:
            return progress, ()


def _chunk(progress: Progress, event: e.ChunkGenerated) -> tuple[Progress, tuple[Message, ...]]:
    messages: list[Message] = []
    reason = event.finish_reason
    # An error chunk's message reaches the client through the terminal event beside it.
    finishes = reason is not None and reason != "error"
    begun = progress.begun
    if (event.deltas or finishes) and event.choice not in begun:
        messages.append(Role(event.choice))
        begun |= {event.choice}
    messages += [Text(event.choice, delta) for delta in event.deltas]
    if reason is not None and finishes:
        messages.append(Finish(event.choice, reason))
    after = msgspec.structs.replace(
        progress,
        begun=begun,
        completion_tokens=progress.completion_tokens + len(event.token_ids),
    )
    return after, tuple(messages)


def _ending(progress: Progress, event: e.TaskStatusUpdated) -> tuple[Message, ...]:
    match event.status:
        case "Complete":
            created = progress.created
            prompt = created.prompt_tokens if created is not None else 0
            return (Usage(prompt, progress.completion_tokens),)
        case "TimedOut":
            return (Failure("deadline_exceeded", event.detail or "The request ran out of time."),)
        case "Cancelled":
            return (Failure("cancelled", event.detail or "The request was cancelled."),)
    assert_never(event.status)


def messages(events: Iterable[e.Event]) -> Iterator[Message]:
    """All messages of a completion's events."""
    progress = Progress()
    for event in events:
        progress, more = step(progress, event)
        yield from more


def failure(
    task_id: str, attempt: int, tokens: int, code: Code, message: str
) -> tuple[e.Event, e.Event]:
    """The events with which a task fails: an error chunk, then the terminal event."""
    return (
        e.ChunkGenerated(
            attempt=attempt,
            first_index=tokens,
            finish_reason="error",
            error_message=message,
        ),
        e.TaskFailed(
            task_id=task_id,
            attempt=attempt,
            code=code,
            completion_tokens=tokens,
            message=message,
        ),
    )
