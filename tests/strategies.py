"""Hypothesis strategies for the domain's types, made from their annotations."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from domain.commands import Command
from domain.events import Event

_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(min_value=-(2**63), max_value=2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    NoneType: st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated type, as far as the domain uses types."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return values(args[0])
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(arg) for arg in args))
    if origin in (dict, Mapping):
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs(hint)
    raise TypeError(f"no strategy for {hint!r}")


def structs(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Instances of a struct."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {field.name: values(hints[field.name]) for field in msgspec.structs.fields(cls)}
    return st.fixed_dictionaries(fields).map(lambda chosen: cls(**chosen))


events: st.SearchStrategy[Event] = st.one_of([structs(cls) for cls in get_args(Event)])
commands: st.SearchStrategy[Command] = st.one_of([structs(cls) for cls in get_args(Command)])
