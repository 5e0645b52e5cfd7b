"""`/instance` and `/state`: what is loaded, and loading and unloading it, as in exo."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post, route
from litestar.params import FromPath

from api import calls, exo_view
from api.errors import ApiError, quote
from api.exo_view import Json, StateView
from api.openai.json_body import Fields, decode
from api.services import Provided, Services
from domain.commands import Caller, CreateInstance, DeleteInstance
from domain.state import State
from infrastructure.command_bus import Accepted, Refused
from infrastructure.event_store import PositionOutOfRange
from infrastructure.projection import state_at

PLACED_BY = "api"
"""Who placed an instance that was asked for over HTTP."""


class Received(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A command was taken on."""

    message: str = "Command received."
    command_id: str
    instance_id: str


@get("/state")
async def get_state(request: Request[Any, Any, Any], services: Provided) -> StateView:
    """Everything alive, now or right after any event of the log."""
    at = calls.number_in_query(request, "at")
    if at is None:
        return exo_view.view(services.projection.state, services.projection.position)
    try:
        state, _ = await state_at(services.store, at)
    except PositionOutOfRange as error:
        raise ApiError("position_out_of_range", f"{error}.", "at") from error
    return exo_view.view(state, at)


@post("/instance", status_code=200)
async def create_instance(request: Request[Any, Any, Any], services: Provided) -> Received:
    """Load a model: `{"model_id": …}`, as `inferlog serve --model` takes it."""
    body = await calls.read_body(request, services.settings.max_body)
    _refuse_if_stopping(services)
    fields = Fields(decode(body))
    model_id = fields.text("model_id")
    if not model_id:
        raise ApiError("bad_request", "You must name a model in 'model_id'.", "model_id")
    for name in fields.left():
        raise ApiError("bad_request", f"{quote(name)} is not known.", name)
    instance_id = services.ids()
    command = CreateInstance(
        command_id=services.ids(),
        instance_id=instance_id,
        model_id=model_id,
        source=_source(services.projection.state, model_id),
        node_id=services.node_id,
        runner_ids=(services.ids(),),
        placed_by=PLACED_BY,
    )
    key = calls.idempotency_key(request)
    accepted = await _dispatch(services, command, calls.caller_of(request.scope, key), body)
    # A repeat names the instance that the first request made.
    return Received(command_id=accepted.command_id, instance_id=accepted.stream.partition("/")[2])


@get("/instance/{instance_id:str}", sync_to_thread=False)
def get_instance(services: Provided, instance_id: FromPath[str]) -> Json:
    """One instance."""
    instance = services.projection.state.instances.get(instance_id)
    if instance is None:
        raise ApiError("not_found", f"There is no instance {quote(instance_id)}.")
    return exo_view.instance_view(instance_id, instance)


@delete("/instance/{instance_id:str}", status_code=200)
async def delete_instance(
    request: Request[Any, Any, Any], services: Provided, instance_id: FromPath[str]
) -> Received:
    """Unload a model. Its requests end with an error."""
    _refuse_if_stopping(services)
    command = DeleteInstance(command_id=services.ids(), instance_id=instance_id)
    # Without an idempotency key: all deletions have the same body, and a second one of the
    # same instance finds nothing to delete.
    accepted = await _dispatch(services, command, calls.caller_of(request.scope), b"")
    return Received(command_id=accepted.command_id, instance_id=instance_id)


@route(
    "/instance/{instance_id:str}",
    http_method="OPTIONS",
    status_code=204,
    sync_to_thread=False,
    include_in_schema=False,
)
def instance_options(instance_id: FromPath[str]) -> Response[None]:
    """The methods of an instance. Litestar would name only the first that was registered."""
    return Response(None, headers={"allow": "DELETE, GET, OPTIONS"})


async def _dispatch(
    services: Services, command: CreateInstance | DeleteInstance, caller: Caller, body: bytes
) -> Accepted:
    try:
        return await services.bus.dispatch(command, caller, body)
    except Refused as refused:
        raise ApiError.refused(refused.refusal, recorded=True) from refused


def _refuse_if_stopping(services: Services) -> None:
    if services.stopping.is_set():
        raise ApiError("shutting_down", "The server is stopping.")


def _source(state: State, model_id: str) -> str:
    """What a model is made from: as before, or else its id says so."""
    for instance in state.instances.values():
        if instance.model_id == model_id:
            return instance.source
    model = state.models.get(model_id)
    return model.prepared.source if model is not None and model.prepared is not None else model_id
