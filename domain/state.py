"""State: what is alive, folded from the log.

State holds ids and statuses, no user text, and forgets what has ended; the past lives in
the log. Token events never change it, so rebuilding it skips them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar, assert_never

import msgspec

from domain import events as e

FOLD_VERSION = 1
"""Version of State's shape and of `apply`; snapshots of another version are not used."""

LOAD_TRIES = 3
"""Deaths while loading, in a row, after which an instance is given up."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node and how often it has started."""

    epoch: int
    alive: bool


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model's folder on a node: on its way, there, or failed.

    Attributes:
        prepared: the facts once the folder is complete.
        checked: whether the folder was seen since its node started.
        error: why it could not be made.
        phase: what is being done to make it, with `done_bytes` of `total_bytes`.
    """

    node_id: str
    prepared: e.ModelPrepared | None = None
    checked: bool = True
    error: str | None = None
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is to be kept loaded."""

    model_id: str
    source: str
    placed_by: str
    shards: tuple[e.Shard, ...]


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's process.

    Attributes:
        failures: deaths in a row since it was last ready.
        since: when it took this status, microseconds since the epoch.
    """

    instance_id: str
    node_id: str
    status: e.RunnerStatus
    failures: int = 0
    since: int = 0

    @property
    def given_up(self) -> bool:
        """Whether it will not be started again."""
        status = self.status
        return isinstance(status, e.Failed) and (status.permanent or self.failures >= LOAD_TRIES)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A chat completion that has not ended.

    Attributes:
        attempt: number of the latest attempt, 0 before the first claim.
        runner_id: who runs it, while `status` is Running.
        committed: tokens in the log when the last attempt ended.
        faults: deaths of its runner without a new token of it in the log.
    """

    model_id: str
    created_at: int
    prompt_tokens: int
    status: Literal["Pending", "Running"] = "Pending"
    attempt: int = 0
    node_id: str | None = None
    instance_id: str | None = None
    runner_id: str | None = None
    committed: int = 0
    faults: int = 0


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything alive, by id."""

    nodes: Mapping[str, Node] = {}
    models: Mapping[str, Model] = {}
    instances: Mapping[str, Instance] = {}
    runners: Mapping[str, Runner] = {}
    tasks: Mapping[str, Task] = {}


K = TypeVar("K")
V = TypeVar("V")


def _with(mapping: Mapping[K, V], key: K, value: V) -> dict[K, V]:
    return {**mapping, key: value}


def _without(mapping: Mapping[K, V], key: K) -> dict[K, V]:
    return {k: v for k, v in mapping.items() if k != key}


def _pending(task: Task) -> Task:
    return msgspec.structs.replace(
        task, status="Pending", node_id=None, instance_id=None, runner_id=None
    )


def _node_started(state: State, event: e.NodeStarted) -> State:
    """A node's start ends its earlier runners and frees their tasks."""
    return msgspec.structs.replace(
        state,
        nodes=_with(state.nodes, event.node_id, Node(epoch=event.epoch, alive=True)),
        runners={
            id: msgspec.structs.replace(runner, status=e.Idle(), failures=0)
            if runner.node_id == event.node_id
            else runner
            for id, runner in state.runners.items()
        },
        models={
            id: msgspec.structs.replace(model, checked=False)
            for id, model in state.models.items()
            if model.node_id != event.node_id or model.prepared is not None
        },
        tasks={
            id: _pending(task) if task.node_id == event.node_id else task
            for id, task in state.tasks.items()
        },
    )


def _model(state: State, id: str, model: Model) -> State:
    return msgspec.structs.replace(state, models=_with(state.models, id, model))


def _on_its_way(state: State, event: e.ModelDownloadProgress) -> Model:
    before = state.models.get(event.model_id)
    # A folder that was whole before and is only read again still serves.
    still = before.prepared if before is not None and event.phase == "hashing" else None
    return Model(
        node_id=event.node_id,
        prepared=still,
        checked=False,
        phase=event.phase,
        done_bytes=event.done_bytes,
        total_bytes=event.total_bytes,
    )


def _instance_created(state: State, event: e.InstanceCreated) -> State:
    instance = Instance(
        model_id=event.model_id,
        source=event.source,
        placed_by=event.placed_by,
        shards=event.shards,
    )
    runners = dict(state.runners)
    for shard in event.shards:
        runners[shard.runner_id] = Runner(
            instance_id=event.instance_id, node_id=shard.node_id, status=e.Idle()
        )
    # A new instance is a new try at a folder that could not be made before.
    failed = state.models.get(event.model_id)
    retry = failed is not None and failed.error is not None
    return msgspec.structs.replace(
        state,
        instances=_with(state.instances, event.instance_id, instance),
        runners=runners,
        models=_without(state.models, event.model_id) if retry else state.models,
    )


def _instance_deleted(state: State, event: e.InstanceDeleted) -> State:
    return msgspec.structs.replace(
        state,
        instances=_without(state.instances, event.instance_id),
        runners={
            id: runner
            for id, runner in state.runners.items()
            if runner.instance_id != event.instance_id
        },
    )


def _runner_updated(state: State, event: e.RunnerStatusUpdated) -> State:
    before = state.runners.get(event.runner_id)
    node = state.nodes.get(event.node_id)
    if before is None or (node is not None and event.epoch < node.epoch):
        return state  # its instance was deleted, or its node has started anew
    match event.status:
        case e.Failed():
            failures = before.failures + 1
        case e.Ready():
            failures = 0
        case _:
            failures = before.failures
    after = Runner(
        instance_id=before.instance_id,
        node_id=before.node_id,
        status=event.status,
        failures=failures,
        since=event.at,
    )
    return msgspec.structs.replace(state, runners=_with(state.runners, event.runner_id, after))


def _acknowledged(state: State, event: e.TaskAcknowledged) -> State:
    task = state.tasks.get(event.task_id)
    if task is None:
        return state
    running = msgspec.structs.replace(
        task,
        status="Running",
        attempt=event.attempt,
        node_id=event.node_id,
        instance_id=event.instance_id,
        runner_id=event.runner_id,
    )
    return msgspec.structs.replace(state, tasks=_with(state.tasks, event.task_id, running))


def _attempt_ended(state: State, event: e.AttemptEnded) -> State:
    task = state.tasks.get(event.task_id)
    if task is None or task.attempt != event.attempt:
        return state
    advanced = event.committed_tokens > task.committed
    fault = event.reason != "drained" and not advanced
    freed = msgspec.structs.replace(
        _pending(task), committed=event.committed_tokens, faults=task.faults + fault
    )
    return msgspec.structs.replace(state, tasks=_with(state.tasks, event.task_id, freed))


def apply(state: State, event: e.Event) -> State:  # noqa: C901 - one flat table of all events
    """State after one more event. Never changes the state it is given."""
    match event:
        case e.TaskCreated():
            task = Task(
                model_id=event.model_id,
                created_at=event.created_at,
                prompt_tokens=event.prompt_tokens,
            )
            return msgspec.structs.replace(state, tasks=_with(state.tasks, event.task_id, task))
        case e.TaskAcknowledged():
            return _acknowledged(state, event)
        case e.AttemptEnded():
            return _attempt_ended(state, event)
        case e.TaskStatusUpdated() | e.TaskFailed():
            return msgspec.structs.replace(state, tasks=_without(state.tasks, event.task_id))
        case e.ModelDownloadProgress():
            return _model(state, event.model_id, _on_its_way(state, event))
        case e.ModelPrepared():
            return _model(state, event.model_id, Model(node_id=event.node_id, prepared=event))
        case e.ModelPreparationFailed():
            failed = Model(node_id=event.node_id, error=event.error_message)
            return _model(state, event.model_id, failed)
        case e.InstanceCreated():
            return _instance_created(state, event)
        case e.InstanceDeleted():
            return _instance_deleted(state, event)
        case e.RunnerStatusUpdated():
            return _runner_updated(state, event)
        case e.NodeStarted():
            return _node_started(state, event)
        case e.NodeStopped():
            stopped = Node(epoch=event.epoch, alive=False)
            return msgspec.structs.replace(state, nodes=_with(state.nodes, event.node_id, stopped))
        case (
            e.ChunkGenerated()
            | e.CommandAccepted()
            | e.CommandRefused()
            | e.RequestRefused()
            | e.RefusalsSummarized()
        ):
            return state
    assert_never(event)


def fold(events: Iterable[e.Event], state: State | None = None) -> State:
    """State after a sequence of events, from the beginning or from a snapshot."""
    state = State() if state is None else state
    for event in events:
        state = apply(state, event)
    return state


def encode(state: State) -> bytes:
    """State as a snapshot keeps it."""
    return msgspec.msgpack.encode(state)


def decode(data: bytes) -> State:
    """State from a snapshot of this `FOLD_VERSION`."""
    return msgspec.msgpack.decode(data, type=State)
