"""Whether a command is taken on, and what follows from it."""

from __future__ import annotations

from typing import assert_never

import msgspec

from domain import events as e
from domain.commands import ChatCompletion, Command, CreateInstance, DeleteInstance
from domain.errors import Refusal
from domain.state import State


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a server was started with.

    Attributes:
        queue: tasks that may wait for a runner.
    """

    queue: int = 256


Decision = tuple[e.Event, ...] | Refusal


def decide(state: State, command: Command, policy: Policy) -> Decision:
    """The events that follow from a command, or why it is refused."""
    match command:
        case ChatCompletion():
            return _chat_completion(state, command, policy)
        case CreateInstance():
            return _create_instance(state, command)
        case DeleteInstance():
            if command.instance_id not in state.instances:
                return Refusal("not_found", f"There is no instance {command.instance_id!r}.")
            return (e.InstanceDeleted(instance_id=command.instance_id),)
    assert_never(command)


def unservable(state: State, model_id: str) -> Refusal | None:
    """Why no request for a model can be taken on now, or None if one can.

    A model whose folder is there but which is not loaded yet is servable: requests wait.
    """
    instances = [id for id, instance in state.instances.items() if instance.model_id == model_id]
    if not instances:
        return Refusal("model_not_found", f"The model {model_id!r} does not exist.", "model")
    model = state.models.get(model_id)
    if model is not None and model.error is not None:
        return Refusal("model_load_failed", f"The model {model_id!r} failed: {model.error}")
    if model is None or model.prepared is None:
        return Refusal(
            "model_unavailable",
            f"The model {model_id!r} is still being prepared; try again shortly.",
        )
    reasons = [given_up(state, id) for id in instances]
    if all(reason is not None for reason in reasons):
        return Refusal("model_load_failed", f"The model {model_id!r} failed: {reasons[0]}")
    return None


def given_up(state: State, instance_id: str) -> str | None:
    """Why an instance will not come up again, or None while it may."""
    for shard in state.instances[instance_id].shards:
        runner = state.runners.get(shard.runner_id)
        if runner is not None and runner.given_up and isinstance(runner.status, e.Failed):
            return runner.status.error_message
    return None


def _chat_completion(state: State, command: ChatCompletion, policy: Policy) -> Decision:
    if (refusal := unservable(state, command.model_id)) is not None:
        return refusal
    waiting = sum(task.status == "Pending" for task in state.tasks.values())
    if waiting >= policy.queue:
        return Refusal(
            "rate_limit_exceeded",
            f"{waiting} requests are waiting already, as many as this server allows. "
            "Try again when some have ended.",
        )
    return (
        e.TaskCreated(
            task_id=command.command_id,
            model_id=command.model_id,
            model=command.model,
            created_at=command.created_at,
            sampling=command.sampling,
            prompt_tokens=len(command.token_ids),
            stream=command.stream,
            ignored=command.ignored,
            prompt_text=command.prompt_text,
            token_ids=command.token_ids,
            stop=command.stop,
            user=command.user,
            metadata=command.metadata,
        ),
    )


def _create_instance(state: State, command: CreateInstance) -> Decision:
    if command.instance_id in state.instances:
        return Refusal("bad_request", f"The instance {command.instance_id!r} exists already.")
    world = len(command.runner_ids)
    shards = tuple(
        e.Shard(runner_id=runner_id, node_id=command.node_id, rank=rank, world_size=world)
        for rank, runner_id in enumerate(command.runner_ids)
    )
    return (
        e.InstanceCreated(
            instance_id=command.instance_id,
            model_id=command.model_id,
            source=command.source,
            placed_by=command.placed_by,
            shards=shards,
        ),
    )
