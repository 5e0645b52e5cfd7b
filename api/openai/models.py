"""`GET /v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

import uuid

from litestar import get
from litestar.params import FromPath

from api.errors import ApiError, quote
from api.openai.wire import Model, ModelList
from api.services import Provided
from domain.state import State


@get("/v1/models", sync_to_thread=False)
def list_models(services: Provided) -> ModelList:
    """The models that have an instance, loaded or on its way."""
    return ModelList(data=list(_models(services.projection.state).values()))


@get("/v1/models/{model_id:path}", sync_to_thread=False)
def get_model(model_id: FromPath[str], services: Provided) -> Model:
    """One model. Its id may hold slashes, as they are or as `%2F`."""
    name = model_id.removeprefix("/")
    model = _models(services.projection.state).get(name)
    if model is None:
        raise ApiError("model_not_found", f"The model {quote(name)} does not exist.", "model")
    return model


def _models(state: State) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for instance_id, instance in state.instances.items():
        models.setdefault(
            instance.model_id, Model(id=instance.model_id, created=_drawn_at(instance_id))
        )
    return models


def _drawn_at(instance_id: str) -> int:
    """When an id was drawn, in seconds: a UUIDv7 says so itself."""
    try:
        parsed = uuid.UUID(instance_id)
    except ValueError:
        return 0
    return (parsed.int >> 80) // 1000 if parsed.version == 7 else 0
