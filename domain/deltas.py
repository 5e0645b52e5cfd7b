"""Pieces of an answer, as a model's tokens give them."""

from __future__ import annotations

import msgspec


class Content(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Text of the answer."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Text of the model's thinking."""

    text: str


class RefusalText(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Text with which the model declines."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A piece of one tool call; `id` and `name` stand in its first piece only."""

    index: int
    id: str | None
    name: str | None
    arguments: str


Delta = Content | Reasoning | RefusalText | ToolCall


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token's natural log probability and those of the likeliest instead of it."""

    token_id: int
    token: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()
