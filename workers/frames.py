"""A decode step's rows as appends to the log. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from domain import events as e
from domain import streams
from domain.completion import failure
from infrastructure.event_store import Append, AttemptIs
from workers.protocol import Insert, Row


class Assignment(msgspec.Struct, frozen=True):
    """An attempt at a task, as one row of a runner's batch."""

    uid: int
    task_id: str
    attempt: int


def append_of(row: Row, assignment: Assignment) -> Append:
    """A row's events, guarded so that a superseded attempt records nothing.

    The chunk that finishes a task and the task's end are recorded together.
    """
    tokens = row.first_index + len(row.token_ids)
    task_id, attempt = assignment.task_id, assignment.attempt
    events: tuple[e.Event, ...]
    if row.finish_reason == "error":
        message = row.error_message or "The model failed without saying why."
        events = failure(task_id, attempt, tokens, "generation_failed", message)
    else:
        events = (
            e.ChunkGenerated(
                attempt=attempt,
                choice=row.choice,
                first_index=row.first_index,
                token_ids=row.token_ids,
                deltas=row.deltas,
                logprobs=row.logprobs,
                finish_reason=row.finish_reason,
                offset=row.offset,
            ),
        )
        if row.finish_reason is not None:
            events += (
                e.TaskStatusUpdated(
                    task_id=task_id, attempt=attempt, status="Complete", completion_tokens=tokens
                ),
            )
    return Append(
        stream=streams.completion(task_id),
        events=events,
        guards=(AttemptIs(attempt),),
        durable=row.finish_reason is not None,
    )


def insert_of(uid: int, created: e.TaskCreated, chunks: Iterable[e.ChunkGenerated]) -> Insert:
    """The message that runs a task from where its chunks in the log end."""
    logged: list[int] = []
    emitted = 0
    for chunk in chunks:
        logged += chunk.token_ids
        emitted += sum(
            len(delta.arguments if isinstance(delta, e.ToolCall) else delta.text)
            for delta in chunk.deltas
        )
    return Insert(
        uid=uid,
        task=created.task_id,
        prompt=created.token_ids,
        logged=tuple(logged),
        emitted=emitted,
        sampling=created.sampling,
        stop=created.stop,
    )
