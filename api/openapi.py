"""`/openapi`: the HTTP interface described, for people's tools.

Litestar derives paths and parameters from the routes. What it cannot know is added: bodies
that are read strictly by hand, streams, and the one shape of every error. Only JSON is
served: pages that draw it fetch their scripts from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec
from litestar import Litestar, Response, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig

from api.command_routes import CommandView
from api.errors import ErrorBody
from api.event_view import EventPage, EventView
from api.exo_view import StateView
from api.health import Health, Readiness
from api.instances import Received
from api.openai.json_body import INT64
from api.openai.request import (
    LONGEST_METADATA_KEY,
    LONGEST_METADATA_VALUE,
    MOST_METADATA,
    MOST_STOPS,
    NO_OPS,
    ROLES,
)
from api.openai.wire import ChatCompletion, ChatCompletionChunk, Model, ModelList
from api.services import Provided
from domain.events import EVENT_TYPES

Json = dict[str, Any]

TYPES = (
    ChatCompletion,
    ChatCompletionChunk,
    CommandView,
    ErrorBody,
    EventPage,
    EventView,
    Health,
    Model,
    ModelList,
    Readiness,
    Received,
    StateView,
)
PREFIX = "#/components/schemas/"


def openapi_route(routes: Sequence[HTTPRouteHandler]) -> HTTPRouteHandler:
    """The route that describes some routes."""

    @cache
    def described() -> bytes:
        return msgspec.json.encode(document(routes))

    @get(["/openapi", "/openapi.json"], sync_to_thread=False)
    def openapi(services: Provided) -> Response[bytes]:
        return Response(described(), media_type="application/json")

    return openapi


def document(routes: Sequence[HTTPRouteHandler]) -> Json:
    """The OpenAPI document of some routes."""
    config = OpenAPIConfig(
        title="inferlog",
        version=version("inferlog"),
        description="An OpenAI-compatible inference server whose only truth is its log.",
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, method, path: handler.handler_name,
    )
    services = {"services": Provide(lambda: None, sync_to_thread=False)}
    # An application of its own, never served: Litestar's pages about it are not wanted.
    app = Litestar(routes, dependencies=services, openapi_config=config, logging_config=None)
    made: Json = app.openapi_schema.to_schema()
    _, components = msgspec.json.schema_components(TYPES, ref_template=PREFIX + "{name}")
    made["components"]["schemas"] |= components | BODIES
    operations = {
        operation["operationId"]: operation
        for path in made["paths"].values()
        for operation in path.values()
    }
    for operation in operations.values():
        _mend(operation)
    for name, body in BODY_OF.items():
        operations[name]["requestBody"] = {"required": True, "content": _json(body)}
    for name, (parameter, description) in NUMBERS.items():
        operations[name].setdefault("parameters", []).append(
            {
                "name": parameter,
                "in": "query",
                "description": description,
                "schema": {"type": "integer", "minimum": 0},
            }
        )
    for name, (answer, event) in STREAMS.items():
        content = {} if answer is None else _json(answer)
        content["text/event-stream"] = {"schema": _event(event)}
        operations[name]["responses"]["200"]["content"] = content
    operations["ready"]["responses"]["503"] = _response("No model is ready.", "Readiness")
    return made


def _mend(operation: Json) -> None:
    responses = operation["responses"]
    # Litestar's own shape of an error, which is never sent.
    responses.pop("400", None)
    for status, words in (("4XX", "The request is at fault."), ("5XX", "The server is.")):
        responses[status] = _response(words, "ErrorBody")
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "type":
            parameter["schema"] = {"type": "array", "items": {"enum": sorted(EVENT_TYPES)}}


def _response(description: str, type: str) -> Json:
    return {"description": description, "content": _json(type)}


def _json(type: str) -> Json:
    return {"application/json": {"schema": _ref(type)}}


def _ref(type: str) -> Json:
    return {"$ref": PREFIX + type}


def _event(type: str) -> Json:
    """One server-sent event, whose data is JSON in a string."""
    data: Json = {"type": "string", "contentMediaType": "application/json"}
    data["contentSchema"] = _ref(type)
    if type == "ChatCompletionChunk":
        data["contentSchema"] = {"anyOf": [_ref(type), _ref("ErrorBody")]}
        data = {"anyOf": [{"const": "[DONE]"}, data]}
    return {
        "type": "object",
        "properties": {"id": {"type": "string"}, "data": data},
        "required": ["data"],
    }


def _nullable(schema: Mapping[str, Any]) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


BODY_OF = {"create_chat_completion": "ChatCompletionRequest", "create_instance": "InstanceRequest"}
"""The body that an operation takes."""

NUMBERS = {
    "stream_chat_completion": ("starting_after", "The number of the last event that is known."),
    "get_state": ("at", "The position after which it was so."),
}
"""Parameters that are numbers where they are given: see `api.calls.number_in_query`."""

STREAMS = {
    "create_chat_completion": ("ChatCompletion", "ChatCompletionChunk"),
    "stream_chat_completion": (None, "ChatCompletionChunk"),
    "list_events": ("EventPage", "EventView"),
}
"""What an operation answers in one piece, and each event of it where it is streamed."""

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_TOKENS = {"type": "integer", "minimum": 1, "maximum": INT64 - 1}
_PARTS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": _TEXT},
        "required": ["type", "text"],
        "additionalProperties": False,
    },
}
_MESSAGE = {
    "type": "object",
    "properties": {"role": {"enum": list(ROLES)}, "content": {"anyOf": [_TEXT, _PARTS]}},
    "required": ["role", "content"],
    "additionalProperties": False,
}
_STOP = {"type": "string", "minLength": 1}
_OPTIONAL: Json = {
    "max_tokens": _TOKENS,
    "max_completion_tokens": _TOKENS,
    "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 1},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 1},
    "seed": {"type": "integer", "minimum": -INT64, "maximum": INT64 - 1},
    "stop": {"anyOf": [_STOP, {"type": "array", "maxItems": MOST_STOPS, "items": _STOP}]},
    "stream": _FLAG,
    "stream_options": {
        "type": "object",
        "properties": {"include_usage": _nullable(_FLAG)},
        "additionalProperties": False,
    },
    "user": _TEXT,
    "metadata": {
        "type": "object",
        "maxProperties": MOST_METADATA,
        "propertyNames": {"maxLength": LONGEST_METADATA_KEY},
        "additionalProperties": {"type": "string", "maxLength": LONGEST_METADATA_VALUE},
    },
    # Not served yet: only what asks for nothing.
    **{name: {"enum": list(values)} for name, values in NO_OPS.items()},
}
BODIES: Json = {
    "ChatCompletionRequest": {
        "type": "object",
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
            **{name: _nullable(schema) for name, schema in _OPTIONAL.items()},
        },
        "required": ["model", "messages"],
        "additionalProperties": False,
    },
    "InstanceRequest": {
        "type": "object",
        "properties": {"model_id": {"type": "string", "minLength": 1}},
        "required": ["model_id"],
        "additionalProperties": False,
    },
}
"""Bodies of requests, which are read by hand: see `api.openai.request`."""
