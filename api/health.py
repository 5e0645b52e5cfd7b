"""`/health` and `/ready`."""

from __future__ import annotations

from litestar import Response, get
from msgspec import UNSET, Struct, UnsetType

from api import errors
from api.errors import ApiError, ErrorInfo
from api.services import Provided
from domain import events as e
from domain.state import Instance, Model, State


class Health(Struct, frozen=True, kw_only=True):
    """The server answers. `log` is `ok`, or why the log cannot be written."""

    status: str = "ok"
    log: str


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether a model answers now, and what is awaited where none does."""

    status: str
    models: dict[str, str]
    """What is said of each instance, by its model."""
    error: ErrorInfo | UnsetType = UNSET


@get("/health", sync_to_thread=False)
def health(services: Provided) -> Health:
    """Whether the server is alive, which it is where this is answered at all."""
    return Health(log=services.store.unavailable or "ok")


@get("/ready", sync_to_thread=False)
def ready(services: Provided) -> Response[Readiness]:
    """Whether a model is loaded: 200, or 503 with what is awaited."""
    state = services.projection.state
    models = {
        instance.model_id: status_of(state, instance_id)
        for instance_id, instance in state.instances.items()
    }
    if services.stopping.is_set():
        return _not_ready(ApiError("shutting_down", "The server is stopping."), models)
    if (reason := services.store.unavailable) is not None:
        return _not_ready(ApiError("log_unavailable", f"The log is unavailable: {reason}"), models)
    if any(is_ready(state, id) for id in state.instances):
        return Response(Readiness(status="ready", models=models))
    said = [f"{model}: {status}" for model, status in models.items()]
    text = "; ".join(said) or "No model is to be loaded: there is no instance."
    return _not_ready(ApiError("model_unavailable", text), models)


def _not_ready(error: ApiError, models: dict[str, str]) -> Response[Readiness]:
    return Response(
        Readiness(status=error.message, models=models, error=errors.body(error).error),
        status_code=error.status,
        headers=errors.headers(error),
    )


def is_ready(state: State, instance_id: str) -> bool:
    """Whether all of an instance's runners take tasks."""
    runners = _runners(state, state.instances[instance_id])
    return bool(runners) and all(isinstance(status, e.Ready) for status in runners)


def status_of(state: State, instance_id: str) -> str:
    """What an instance is doing, in words."""
    instance = state.instances[instance_id]
    model = state.models.get(instance.model_id)
    if model is None or model.prepared is None:
        return _preparation(model)
    runners = _runners(state, instance)
    for status in runners:
        if isinstance(status, e.Failed):
            return f"failed: {status.error_message}"
    for status in runners:
        if not isinstance(status, e.Ready):
            return _WORDS[type(status)]
    return "ready"


_WORDS: dict[type[e.Status], str] = {
    e.Idle: "starting",
    e.Connecting: "connecting",
    e.Connected: "connected",
    e.Loading: "loading",
    e.Loaded: "loaded",
    e.WarmingUp: "warming up",
    e.Running: "ready",
    e.ShuttingDown: "shutting down",
    e.Shutdown: "shut down",
}


def _runners(state: State, instance: Instance) -> list[e.RunnerStatus]:
    return [
        state.runners[shard.runner_id].status
        for shard in instance.shards
        if shard.runner_id in state.runners
    ]


def _preparation(model: Model | None) -> str:
    if model is None:
        return "preparing"
    if model.error is not None:
        return f"failed: {model.error}"
    if not model.total_bytes:
        return f"preparing ({model.phase})" if model.phase else "preparing"
    percent = min(100 * model.done_bytes // model.total_bytes, 100)
    return f"preparing ({model.phase}, {percent} %)"
