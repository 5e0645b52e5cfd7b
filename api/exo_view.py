"""State in exo's JSON style, which dashboards and tools of this field read.

Keys are camelCase; what is one of several kinds is an object with one key, its kind.
"""

from __future__ import annotations

from typing import Any

import msgspec

from domain import events as e
from domain.state import Instance, Model, Runner, State, Task

Json = dict[str, Any]


class StateView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything alive, by id."""

    instances: dict[str, Json]
    runners: dict[str, Json]
    tasks: dict[str, Json]
    downloads: dict[str, list[Json]]
    nodes: dict[str, Json]
    last_event_applied_idx: int


def view(state: State, position: int) -> StateView:
    """State as folded up to a position."""
    busy = {task.runner_id for task in state.tasks.values() if task.status == "Running"}
    return StateView(
        instances={id: instance_view(id, instance) for id, instance in state.instances.items()},
        runners={id: _runner(runner, id in busy) for id, runner in state.runners.items()},
        tasks={id: _task(id, task) for id, task in state.tasks.items()},
        downloads=_downloads(state),
        nodes={
            id: {"nodeId": id, "epoch": node.epoch, "alive": node.alive}
            for id, node in state.nodes.items()
        },
        last_event_applied_idx=position,
    )


def instance_view(instance_id: str, instance: Instance) -> Json:
    """An instance: its model, and which node runs which rank of it."""
    return {
        "MlxRingInstance": {
            "instanceId": instance_id,
            "shardAssignments": {
                "modelId": instance.model_id,
                "nodeToRunner": {shard.node_id: shard.runner_id for shard in instance.shards},
                "runnerToShard": {
                    shard.runner_id: {
                        "PipelineShardMetadata": {
                            "modelId": instance.model_id,
                            "deviceRank": shard.rank,
                            "worldSize": shard.world_size,
                        }
                    }
                    for shard in instance.shards
                },
            },
        }
    }


def _runner(runner: Runner, busy: bool) -> Json:
    status = runner.status
    match status:
        case e.Ready() if busy:
            status = e.Running()
        case e.Failed():
            return {"RunnerFailed": {"errorMessage": status.error_message}}
        case _:
            pass
    return {f"Runner{type(status).__name__}": {}}


def _task(task_id: str, task: Task) -> Json:
    return {
        "ChatCompletion": {
            "taskId": task_id,
            "commandId": task_id,
            "modelId": task.model_id,
            "taskStatus": task.status,
            "instanceId": task.instance_id,
            "runnerId": task.runner_id,
            "attempt": task.attempt,
        }
    }


def _downloads(state: State) -> dict[str, list[Json]]:
    downloads: dict[str, list[Json]] = {}
    for model_id, model in state.models.items():
        downloads.setdefault(model.node_id, []).append(_download(model_id, model))
    return downloads


def _download(model_id: str, model: Model) -> Json:
    what = {"nodeId": model.node_id, "modelId": model_id}
    if model.prepared is not None:
        return {"DownloadCompleted": {**what, "totalBytes": model.prepared.size_bytes}}
    if model.error is not None:
        return {"DownloadFailed": {**what, "errorMessage": model.error}}
    progress = {"downloadedBytes": model.done_bytes, "totalBytes": model.total_bytes}
    return {"DownloadOngoing": {**what, "phase": model.phase, "downloadProgress": progress}}
