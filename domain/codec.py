"""Events to stored bytes and back.

An event becomes its type's name, its shape's version, a JSON payload without user content,
and, where it has any, msgpack content. What is stored is what is hashed; nothing is ever
encoded a second time to be verified.
"""

from __future__ import annotations

from typing import Any

import msgspec

from domain.events import EVENT_TYPES, Event

_json_encode = msgspec.json.Encoder().encode
_json_decode = msgspec.json.Decoder(dict[str, Any]).decode
_content_encode = msgspec.msgpack.Encoder().encode
_content_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


class Encoded(msgspec.Struct, frozen=True):
    """An event as it is stored."""

    type: str
    schema_version: int
    payload: bytes
    content: bytes | None


class UnknownEvent(Exception):
    """The log holds an event that this version does not know; a newer one wrote it."""


def encode(event: Event) -> Encoded:
    """Encode an event for the store."""
    cls = type(event)
    payload: dict[str, Any] = msgspec.to_builtins(event, builtin_types=(bytes,))
    content = {name: payload.pop(name) for name in cls.CONTENT if name in payload}
    return Encoded(
        cls.__name__,
        cls.VERSION,
        _json_encode(payload),
        _content_encode(content) if content else None,
    )


def decode(type_name: str, schema_version: int, payload: bytes, content: bytes | None) -> Event:
    """Rebuild an event from what is stored.

    Raises:
        UnknownEvent: the type or its version is not known here.
    """
    cls = EVENT_TYPES.get(type_name)
    if cls is None or schema_version > cls.VERSION:
        raise UnknownEvent(
            f"the log holds {type_name} version {schema_version}, which this inferlog does not "
            "know; run the version that wrote it, or a newer one"
        )
    fields = _json_decode(payload)
    if content is not None:
        fields.update(_content_decode(content))
    return msgspec.convert(fields, cls, builtin_types=(bytes,))
