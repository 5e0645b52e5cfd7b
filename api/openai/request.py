"""A chat completion's request, from raw bytes to checked values.

Null is taken as absent everywhere. A field whose value changes nothing is accepted; any
other field that is not served is refused by name, or recorded and ignored by a lenient
server.
"""

from __future__ import annotations

from typing import Any

import msgspec

from api.errors import ApiError, quote
from api.openai.json_body import INT64, Fields, as_list, as_text, decode, invalid, wrong_type
from api.prompting import Message, Role

MOST_STOPS = 4
MOST_METADATA = 16
LONGEST_METADATA_KEY = 64
LONGEST_METADATA_VALUE = 512

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
"""Roles by what they are to a template: `developer` is what newer models call `system`."""

NO_OPS: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields not served yet, with the values that ask for nothing."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as understood.

    Attributes:
        max_tokens: None leaves it to the server.
        seed: None has one drawn.
        ignored: fields that a lenient server passes over, by full name.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    user: str | None
    metadata: dict[str, str] | None
    ignored: tuple[str, ...]


class _Unserved:
    """What to do about fields that are not served."""

    def __init__(self, lenient: bool) -> None:
        self._lenient = lenient
        self.ignored: list[str] = []

    def check(self, fields: Fields) -> None:
        for name in fields.left():
            if not self._lenient:
                raise ApiError(
                    "bad_request",
                    f"{quote(name)} is not supported with this value, or not known. Leave it "
                    "out, or start the server with --lenient, which ignores such fields.",
                    name,
                )
            self.ignored.append(as_text(name, "the name of a field"))


def parse(body: bytes, *, lenient: bool = False) -> ChatRequest:
    """Understand a request's body.

    Raises:
        ApiError: it is not understood, or asks for what is not served.
    """
    fields = Fields(decode(body))
    unserved = _Unserved(lenient)
    model = fields.text("model")
    if not model:
        raise ApiError("bad_request", "You must name a model in 'model'.", "model")
    messages = _messages(fields.take("messages"), unserved)
    older = fields.integer("max_tokens", 1, INT64 - 1)
    newer = fields.integer("max_completion_tokens", 1, INT64 - 1)
    temperature = fields.number("temperature", 0, 2)
    top_p = fields.number("top_p", 0, 1, above=True)
    request = ChatRequest(
        model=model,
        messages=messages,
        max_tokens=older if newer is None else newer,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        seed=fields.integer("seed", -INT64, INT64 - 1),
        stop=_stop(fields.take("stop")),
        stream=bool(fields.flag("stream")),
        include_usage=_include_usage(fields.take("stream_options"), unserved),
        user=fields.text("user"),
        metadata=_metadata(fields.take("metadata")),
        ignored=(),
    )
    for name, values in NO_OPS.items():
        fields.take_if(name, *values)
    unserved.check(fields)
    return msgspec.structs.replace(request, ignored=tuple(sorted(set(unserved.ignored))))


def _messages(value: Any, unserved: _Unserved) -> tuple[Message, ...]:
    if value is None:
        raise ApiError("bad_request", "You must give 'messages'.", "messages")
    items = as_list(value, "messages")
    if not items:
        invalid("messages", "expected at least one message")
    return tuple(_message(item, f"messages[{i}]", unserved) for i, item in enumerate(items))


def _message(value: Any, path: str, unserved: _Unserved) -> Message:
    fields = Fields(value, path)
    name = fields.name("role")
    role = fields.text("role")
    if role is None:
        raise ApiError("bad_request", f"You must give {quote(name)}.", name)
    if role not in ROLES:
        invalid(name, f"expected one of {', '.join(ROLES)}, got {quote(role)}")
    parts = _content(fields.take("content"), fields.name("content"), unserved)
    if role == "assistant":
        # What comes back from clients that send an earlier answer as they received it.
        fields.take_if("tool_calls", [])
        fields.take_if("annotations", [])
    unserved.check(fields)
    return Message(ROLES[role], parts)


def _content(value: Any, name: str, unserved: _Unserved) -> tuple[str, ...]:
    if isinstance(value, str):
        return (as_text(value, name),)
    if not isinstance(value, list):
        wrong_type(name, "a string or an array of text parts", value)
    if not value:
        invalid(name, "expected at least one part")
    return tuple(_part(item, f"{name}[{i}]", unserved) for i, item in enumerate(value))


def _part(value: Any, path: str, unserved: _Unserved) -> str:
    fields = Fields(value, path)
    kind = fields.text("type")
    if kind != "text":
        invalid(fields.name("type"), "only parts of type 'text' are supported")
    text = fields.text("text")
    if text is None:
        wrong_type(fields.name("text"), "a string", None)
    unserved.check(fields)
    return text


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        stops = [as_text(value, "stop")]
    elif isinstance(value, list):
        stops = [as_text(item, f"stop[{i}]") for i, item in enumerate(value)]
    else:
        wrong_type("stop", "a string or an array of strings", value)
    if len(stops) > MOST_STOPS:
        invalid("stop", f"expected at most {MOST_STOPS} strings, got {len(stops)}")
    if not all(stops):
        invalid("stop", "an empty string would stop everything")
    return tuple(stops)


def _include_usage(value: Any, unserved: _Unserved) -> bool:
    if value is None:
        return False
    fields = Fields(value, "stream_options")
    included = bool(fields.flag("include_usage"))
    fields.take_if("include_obfuscation", False)
    unserved.check(fields)
    return included


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        wrong_type("metadata", "an object", value)
    if len(value) > MOST_METADATA:
        invalid("metadata", f"expected at most {MOST_METADATA} pairs, got {len(value)}")
    for key, text in value.items():
        if len(as_text(key, "metadata")) > LONGEST_METADATA_KEY:
            invalid("metadata", f"a key has at most {LONGEST_METADATA_KEY} characters")
        if len(as_text(text, f"metadata.{key}")) > LONGEST_METADATA_VALUE:
            invalid(f"metadata.{key}", f"expected at most {LONGEST_METADATA_VALUE} characters")
    return dict(value)
