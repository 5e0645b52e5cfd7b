"""Each event in half a line, for people."""

from __future__ import annotations

from typing import assert_never

from api.cli.output import short_id, size
from domain import events as e
from infrastructure.event_store import Recorded


def summary(recorded: Recorded) -> str:
    """What happened. Never fails: what cannot be read is shown as it is stored."""
    try:
        return _summary(recorded.event)
    except Exception as error:  # a damaged event, or one from a newer inferlog
        return f"{recorded.payload.decode(errors='replace')} ({error})"


def tokens(count: int) -> str:
    """A number of tokens."""
    return f"{count:,} token{'' if count == 1 else 's'}"


def text_of(deltas: tuple[e.Delta, ...]) -> str:
    """The text of an answer's pieces, whatever their kind."""
    return "".join(d.arguments if isinstance(d, e.ToolCall) else d.text for d in deltas)


def status(status: e.RunnerStatus) -> str:
    """A runner's status, with its reason where it failed."""
    name = type(status).__name__
    return f"{name}: {status.error_message}" if isinstance(status, e.Failed) else name


def _summary(event: e.Event) -> str:
    match event:
        case e.CommandAccepted() | e.CommandRefused() | e.RequestRefused():
            return _request(event)
        case e.RefusalsSummarized():
            codes = ", ".join(f"{count} {code}" for code, count in event.codes.items())
            return f"{event.count:,} refusals of {event.actor}: {codes}"
        case e.TaskCreated() | e.TaskAcknowledged() | e.AttemptEnded():
            return _task(event)
        case e.ChunkGenerated():
            return _chunk(event)
        case e.TaskStatusUpdated():
            detail = f": {event.detail}" if event.detail else ""
            return f"{event.status}, {tokens(event.completion_tokens)}{detail}"
        case e.TaskFailed():
            return f"{event.code} after {tokens(event.completion_tokens)}: {event.message}"
        case e.ModelDownloadProgress() | e.ModelPrepared() | e.ModelPreparationFailed():
            return _model(event)
        case e.InstanceCreated() | e.InstanceDeleted() | e.RunnerStatusUpdated():
            return _instance(event)
        case e.NodeStarted():
            versions = ", ".join(f"{name} {version}" for name, version in event.versions.items())
            return f"start {event.epoch}: {versions}"
        case e.NodeStopped():
            return f"end of start {event.epoch}"
    assert_never(event)


def _request(event: e.CommandAccepted | e.CommandRefused | e.RequestRefused) -> str:
    by = event.caller.actor
    match event:
        case e.CommandAccepted():
            return f"{event.kind} by {by}"
        case e.CommandRefused():
            return f"{event.kind} by {by}: {event.code}: {event.message}"
        case e.RequestRefused():
            return f"{event.status} {event.method} {event.path} by {by}: {event.message}"
    assert_never(event)


def _task(event: e.TaskCreated | e.TaskAcknowledged | e.AttemptEnded) -> str:
    match event:
        case e.TaskCreated():
            sampling = event.sampling
            return (
                f"{event.prompt_tokens:,} prompt tokens, at most {sampling.max_tokens:,} more, "
                f"temperature {sampling.temperature:g}, {event.model_id}"
            )
        case e.TaskAcknowledged():
            return f"attempt {event.attempt} by runner {short_id(event.runner_id)}"
        case e.AttemptEnded():
            why = f": {event.error_message}" if event.error_message else ""
            after = tokens(event.committed_tokens)
            return f"attempt {event.attempt}: {event.reason} after {after}{why}"
    assert_never(event)


def _chunk(event: e.ChunkGenerated) -> str:
    parts = [f"#{event.first_index}"]
    if len(event.token_ids) > 1:
        parts[0] += f"–{event.first_index + len(event.token_ids) - 1}"
    if event.deltas:
        parts.append(f"“{text_of(event.deltas)}”")
    if event.finish_reason is not None:
        parts.append(f"finish: {event.finish_reason}")
    if event.error_message is not None:
        parts.append(event.error_message)
    return " ".join(parts)


def _model(event: e.ModelDownloadProgress | e.ModelPrepared | e.ModelPreparationFailed) -> str:
    match event:
        case e.ModelDownloadProgress():
            of = f" of {size(event.total_bytes)}" if event.total_bytes else ""
            return f"{event.model_id}: {event.phase} {size(event.done_bytes)}{of}"
        case e.ModelPrepared():
            return (
                f"{event.model_id}: {event.architecture}, {size(event.size_bytes)}, context "
                f"{event.context_length:,}"
            )
        case e.ModelPreparationFailed():
            return f"{event.model_id}: {event.error_message}"
    assert_never(event)


def _instance(event: e.InstanceCreated | e.InstanceDeleted | e.RunnerStatusUpdated) -> str:
    match event:
        case e.InstanceCreated():
            return f"{event.model_id} from {event.source}, placed by {event.placed_by}"
        case e.InstanceDeleted():
            return "to be unloaded"
        case e.RunnerStatusUpdated():
            return f"runner {short_id(event.runner_id)}: {status(event.status)}"
    assert_never(event)
