"""Events and appends for the tests of stores."""

from __future__ import annotations

from domain import events as e
from infrastructure.event_store import Append, CommandKey, Guard


def chunk(index: int = 0, attempt: int = 1, text: str = " word") -> e.ChunkGenerated:
    """One token of an answer."""
    return e.ChunkGenerated(
        attempt=attempt,
        first_index=index,
        token_ids=(1000 + index,),
        deltas=(e.Content(text),),
        offset=index * 20_000,
    )


def claim(attempt: int, task: str = "t") -> e.TaskAcknowledged:
    """An attempt begins."""
    return e.TaskAcknowledged(
        task_id=task, attempt=attempt, node_id="n", epoch=1, instance_id="i", runner_id="r"
    )


def end(attempt: int = 1, task: str = "t") -> e.TaskStatusUpdated:
    """A task ends well."""
    return e.TaskStatusUpdated(
        task_id=task, attempt=attempt, status="Complete", completion_tokens=1
    )


def started(epoch: int = 1, node: str = "n") -> e.NodeStarted:
    """An event that changes State and belongs to nothing else."""
    return e.NodeStarted(node_id=node, epoch=epoch)


def append(
    stream: str,
    *events: e.Event,
    guards: tuple[Guard, ...] = (),
    durable: bool = False,
    command: CommandKey | None = None,
) -> Append:
    """An append, with a node's start where no event is given."""
    return Append(
        stream=stream,
        events=events or (started(),),
        guards=guards,
        durable=durable,
        command=command,
    )


def key(
    command_id: str, idempotency_key: str | None = None, actor: str = "anonymous"
) -> CommandKey:
    """A command's entry in the index."""
    return CommandKey(
        command_id=command_id,
        kind="ChatCompletion",
        actor=actor,
        idempotency_key=idempotency_key,
        body_digest=f"digest of {command_id}",
    )
