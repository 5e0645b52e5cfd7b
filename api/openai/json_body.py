"""A request's body as JSON, strictly, and its fields with the names that errors give them.

The standard library's decoder is used for what it lets one see: keys that occur twice and
numbers of any length. What it lets through that JSON does not allow is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from api.errors import ApiError, quote

LONGEST_NUMBER = 40
"""Digits from which a whole number is as good as infinite."""

INT64 = 2**63


class Fields:
    """One JSON object, of which fields are taken by name. What is left at the end is unknown.

    Every `take` gives None for a field that is absent or null.

    Args:
        path: the object's own name within the body, empty for the body itself.
    """

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            wrong_type(path or None, "an object", value)
        self._fields: dict[str, Any] = dict(value)
        self._path = path

    def name(self, key: str) -> str:
        """A field's full name, as in `messages[0].content`."""
        return f"{self._path}.{key}" if self._path else key

    def left(self) -> list[str]:
        """Full names of the fields that nobody took and that are not null."""
        return [self.name(key) for key, value in self._fields.items() if value is not None]

    def take(self, key: str) -> Any:
        """A field as it is."""
        return self._fields.pop(key, None)

    def take_if(self, key: str, *accepted: Any) -> None:
        """Drop a field whose value is one of `accepted`, which change nothing."""
        value = self._fields.get(key)
        if any(type(value) is type(each) and value == each for each in accepted) or (
            is_number(value) and any(is_number(each) and value == each for each in accepted)
        ):
            del self._fields[key]

    def text(self, key: str) -> str | None:
        """A string."""
        value = self.take(key)
        return None if value is None else as_text(value, self.name(key))

    def flag(self, key: str) -> bool | None:
        """A boolean."""
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            wrong_type(self.name(key), "a boolean", value)
        return value

    def number(self, key: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A number from `low` (or only above it) to `high`."""
        value = self.take(key)
        if value is None:
            return None
        if not is_number(value):
            wrong_type(self.name(key), "a number", value)
        if not (low < value if above else low <= value) or not value <= high:
            start = f"above {low:g}" if above else f"from {low:g}"
            invalid(self.name(key), f"expected a number {start} to {high:g}, got {_show(value)}")
        return float(value)

    def integer(self, key: str, low: int, high: int) -> int | None:
        """A whole number from `low` to `high`."""
        value = self.take(key)
        if value is None:
            return None
        if not is_number(value):
            wrong_type(self.name(key), "an integer", value)
        if not low <= value <= high:
            invalid(self.name(key), f"expected an integer from {low} to {high}, got {_show(value)}")
        if value != int(value):
            invalid(self.name(key), f"expected an integer, got {_show(value)}")
        return int(value)


def decode(body: bytes) -> Any:
    """The body's JSON value.

    Raises:
        ApiError: it is not JSON in UTF-8, or JSON that readers would not agree on.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiError(
            "bad_request",
            f"The request's body is not UTF-8: byte {error.start} cannot be decoded.",
        ) from None
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        raise ApiError(
            "bad_request",
            f"The request's body is not JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}.",
        ) from None
    except RecursionError:
        raise ApiError("bad_request", "The request's body is nested too deeply.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                invalid(key, "the key occurs twice in one object")
            seen.add(key)
    return made


def _constant(name: str) -> NoReturn:
    raise ApiError("bad_request", f"The request's body is not JSON: {name} is no number there.")


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_NUMBER else float(digits)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; in Python booleans are, too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_text(value: Any, name: str) -> str:
    """A string that can be encoded."""
    if not isinstance(value, str):
        wrong_type(name, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        invalid(name, "the string holds half of a surrogate pair, which is no character")
    return value


def as_list(value: Any, name: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        wrong_type(name, "an array", value)
    return value


def one_of(values: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(repr(value) for value in values)


def invalid(name: str, why: str) -> NoReturn:
    """Refuse a field's value."""
    raise ApiError("bad_request", f"Invalid value for {quote(name)}: {why}.", name)


def wrong_type(name: str | None, expected: str, value: Any) -> NoReturn:
    """Refuse a field's type."""
    where = f"for {quote(name)}" if name else "of the request's body"
    raise ApiError(
        "bad_request", f"Invalid type {where}: expected {expected}, got {_kind(value)}.", name
    )


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _show(value: float) -> str:
    return str(value) if abs(value) < 10**LONGEST_NUMBER else f"{value:g}"
