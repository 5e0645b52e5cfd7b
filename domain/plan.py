"""What a node does next, from the state of all and the sight of its own runners.

A pure chain of small rules, asked again after every event and every tick. An action under
way is named in `local.busy` and not planned again until it is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from domain import events as e
from domain.actions import (
    Action,
    ClaimTask,
    EndAttempt,
    EndTask,
    PrepareModel,
    StartRunner,
    StopRunner,
)
from domain.decide import given_up
from domain.errors import Code
from domain.state import Instance, Runner, State, Task

SECOND = 1_000_000
"""Microseconds."""

MAX_FAULTS = 2
"""Deaths of its runner without a new token, after which a request is given up."""

PREFILL_TOKENS_A_SECOND = 20
"""The slowest prefill that still counts as progress."""


class LocalRunner(msgspec.Struct, frozen=True, kw_only=True):
    """A runner process of this node, as the node sees it.

    Attributes:
        tasks: tasks inserted or being inserted.
        phase: what it last said of itself.
        phase_since: when it said so, microseconds since the epoch.
        progress_at: when its step counter last moved.
    """

    tasks: frozenset[str] = frozenset()
    phase: str = "Idle"
    phase_since: int = 0
    progress_at: int = 0


class Local(msgspec.Struct, frozen=True, kw_only=True):
    """A node's own sight: its runners, and the actions and appends under way."""

    node_id: str
    epoch: int
    runners: Mapping[str, LocalRunner] = {}
    busy: frozenset[str] = frozenset()


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in seconds; 0 switches one off."""

    load: int = 600
    queue: int = 600
    progress: int = 60
    max_batch: int = 32
    """Requests that one runner takes at once."""


def plan(state: State, local: Local, now: int, deadlines: Deadlines) -> list[Action]:
    """The next actions of a node.

    Args:
        now: microseconds since the epoch.
    """
    chosen: dict[str, Action] = {}
    for rule in (
        _stop_runners,
        _prepare_models,
        _start_runners,
        _end_tasks,
        _claim_tasks,
    ):
        for action in rule(state, local, now, deadlines):
            if action.key not in local.busy:
                chosen.setdefault(action.key, action)
    return list(chosen.values())


def _mine(state: State, local: Local) -> Iterator[tuple[str, Instance, e.Shard]]:
    for instance_id, instance in state.instances.items():
        for shard in instance.shards:
            if shard.node_id == local.node_id:
                yield instance_id, instance, shard


def _stop_runners(
    state: State, local: Local, now: int, deadlines: Deadlines
) -> Iterator[StopRunner]:
    for runner_id, runner in local.runners.items():
        if runner_id not in state.runners:
            yield StopRunner(runner_id=runner_id, reason="its instance was deleted")
        elif (reason := _stalled(state, runner, now, deadlines)) is not None:
            yield StopRunner(runner_id=runner_id, reason=reason, kill=True)


def _stalled(state: State, runner: LocalRunner, now: int, deadlines: Deadlines) -> str | None:
    if runner.phase != "Ready":
        if deadlines.load and now - runner.phase_since > deadlines.load * SECOND:
            return f"the model was not loaded within {deadlines.load} s (INFERLOG_LOAD_TIMEOUT)"
        return None
    if not deadlines.progress or not runner.tasks:
        return None
    prompts = (state.tasks[id].prompt_tokens for id in runner.tasks if id in state.tasks)
    allowed = deadlines.progress + max(prompts, default=0) / PREFILL_TOKENS_A_SECOND
    if now - runner.progress_at > allowed * SECOND:
        return f"no progress for {allowed:.0f} s (INFERLOG_PROGRESS_TIMEOUT)"
    return None


def _prepare_models(
    state: State, local: Local, now: int, deadlines: Deadlines
) -> Iterator[PrepareModel]:
    for _, instance, _ in _mine(state, local):
        model = state.models.get(instance.model_id)
        if model is None or not model.checked or (not model.prepared and model.error is None):
            yield PrepareModel(model_id=instance.model_id, source=instance.source)


def _start_runners(
    state: State, local: Local, now: int, deadlines: Deadlines
) -> Iterator[StartRunner]:
    for instance_id, instance, shard in _mine(state, local):
        model = state.models.get(instance.model_id)
        runner = state.runners[shard.runner_id]
        if model is None or model.prepared is None or not model.checked:
            continue
        if shard.runner_id in local.runners:
            continue
        if given_up(state, instance_id) is None and now >= _restart_at(runner):
            yield StartRunner(
                instance_id=instance_id,
                runner_id=shard.runner_id,
                rank=shard.rank,
                world_size=shard.world_size,
                path=model.prepared.path,
            )


def _restart_at(runner: Runner) -> int:
    """The first restart is at once, later ones wait twice as long each time."""
    if not isinstance(runner.status, e.Failed) or runner.failures < 2:
        return 0
    return runner.since + (SECOND << (runner.failures - 2))


def _end_tasks(
    state: State, local: Local, now: int, deadlines: Deadlines
) -> Iterator[EndAttempt | EndTask]:
    for task_id, task in state.tasks.items():
        ending = _attempt_over(state, local, task_id, task) or _cannot_go_on(
            state, task_id, task, now, deadlines
        )
        if ending is not None:
            yield ending


def _attempt_over(
    state: State, local: Local, task_id: str, task: Task
) -> EndAttempt | EndTask | None:
    """A running task whose instance or runner is gone."""
    if task.status != "Running" or task.node_id != local.node_id or task.runner_id is None:
        return None
    if task.instance_id not in state.instances:
        return EndTask(
            task_id=task_id,
            attempt=task.attempt,
            code="instance_deleted",
            message="The model's instance was deleted while it answered.",
        )
    runner = local.runners.get(task.runner_id)
    if runner is not None and task_id in runner.tasks:
        return None
    status = state.runners[task.runner_id].status
    return EndAttempt(
        task_id=task_id,
        attempt=task.attempt,
        reason="runner_died",
        error_message=status.error_message if isinstance(status, e.Failed) else "",
    )


def _cannot_go_on(
    state: State, task_id: str, task: Task, now: int, deadlines: Deadlines
) -> EndTask | None:
    """A waiting task that no runner will ever take."""
    if task.status != "Pending":
        return None
    code: Code
    instances = [id for id, i in state.instances.items() if i.model_id == task.model_id]
    model = state.models.get(task.model_id)
    reasons = [given_up(state, id) for id in instances]
    if task.faults >= MAX_FAULTS:
        code = "runner_crashed"
        message = (
            f"The runner died {task.faults} times while it worked on this request, "
            "which is not tried again."
        )
    elif not instances:
        code = "instance_deleted"
        message = "The model's instance was deleted before it answered."
    elif model is not None and model.error is not None:
        code, message = "model_load_failed", model.error
    elif reasons[0] is not None and all(reason is not None for reason in reasons):
        code, message = "model_load_failed", reasons[0]
    elif deadlines.queue and now - task.created_at > deadlines.queue * SECOND:
        code = "deadline_exceeded"
        message = f"No runner took the request within {deadlines.queue} s (INFERLOG_QUEUE_TIMEOUT)."
    else:
        return None
    return EndTask(task_id=task_id, attempt=task.attempt, code=code, message=message)


def _claim_tasks(state: State, local: Local, now: int, deadlines: Deadlines) -> Iterator[ClaimTask]:
    """Longest waiting first, each to the runner with the most room."""
    room = {
        shard.runner_id: (instance_id, instance.model_id)
        for instance_id, instance, shard in _mine(state, local)
        if shard.rank == 0
        and isinstance(state.runners[shard.runner_id].status, e.Ready)
        and shard.runner_id in local.runners
        and local.runners[shard.runner_id].phase == "Ready"
        and f"runner/{shard.runner_id}" not in local.busy
    }
    load = {runner_id: len(local.runners[runner_id].tasks) for runner_id in room}
    for task_id, task in state.tasks.items():
        if task.status != "Pending" or f"task/{task_id}" in local.busy:
            continue
        able = [
            runner_id
            for runner_id, (_, model_id) in room.items()
            if model_id == task.model_id and load[runner_id] < deadlines.max_batch
        ]
        if able:
            runner_id = min(able, key=lambda id: load[id])
            load[runner_id] += 1
            yield ClaimTask(
                task_id=task_id,
                attempt=task.attempt + 1,
                instance_id=room[runner_id][0],
                runner_id=runner_id,
            )
