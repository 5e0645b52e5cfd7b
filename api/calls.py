"""What a route learns of its request: the body, and who sent it."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.types import HTTPScope

from api.errors import ApiError, quote, shorten
from domain.commands import Caller

ANONYMOUS = "anonymous"
LONGEST_KEY = 255
LONGEST_NUMBER = 100
LONGEST_HEADER = 200
MOST_HEADERS = 20

_KEPT = ("user-agent", "x-stainless-")


class ClientGone(Exception):
    """The client closed its connection; nobody hears an answer."""


async def read_body(request: Request[Any, Any, Any], limit: int) -> bytes:
    """The request's body.

    Raises:
        ApiError: it is larger than `limit`, as announced or as it arrives.
        ClientGone: the client went away before its end.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientGone
        size += len(message["body"])
        if size > limit:
            raise _too_large(limit)
        parts.append(message["body"])
        if not message.get("more_body"):
            return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        "request_too_large",
        f"The request's body is larger than {limit:,} bytes (INFERLOG_MAX_BODY).",
    )


def caller_of(scope: HTTPScope, idempotency_key: str | None = None) -> Caller:
    """Who asks, with the facts about the client's software that are worth keeping."""
    kept: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1")
        if name.startswith(_KEPT) and len(kept) < MOST_HEADERS:
            kept[shorten(name, LONGEST_HEADER)] = shorten(
                raw_value.decode("latin-1"), LONGEST_HEADER
            )
    client = scope.get("client")
    return Caller(
        actor=ANONYMOUS,
        request_id=scope["state"]["request_id"],
        client=f"{client[0]}:{client[1]}" if client else "",
        headers=kept,
        idempotency_key=idempotency_key,
    )


def idempotency_key(request: Request[Any, Any, Any]) -> str | None:
    """The client's idempotency key, if it sent one.

    Raises:
        ApiError: it is empty or too long to be one.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= LONGEST_KEY:
        raise ApiError(
            "bad_request",
            f"An idempotency key has 1 to {LONGEST_KEY} characters.",
            "Idempotency-Key",
        )
    return key


def last_event_id(request: Request[Any, Any, Any]) -> int | None:
    """The number of the last event that a client has had, if it says so.

    Raises:
        ApiError: it is no number.
    """
    return _number(request.headers.get("last-event-id") or None, "Last-Event-ID")


def number_in_query(request: Request[Any, Any, Any], name: str) -> int | None:
    """A parameter that is a number where it is given.

    As an optional parameter of a route it would also be given by the word `null`.

    Raises:
        ApiError: it is no number.
    """
    return _number(request.query_params.get(name), name)


def _number(given: str | None, name: str) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) <= LONGEST_NUMBER):
        raise ApiError("bad_request", f"Expected a whole number, not {quote(given)}.", name)
    return int(given)
