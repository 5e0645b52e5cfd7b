"""What an OpenAI client is sent, as types."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

FinishReason = Literal["stop", "length", "tool_calls"]


class FunctionDelta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of a tool call's function."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of a tool call; clients join the pieces by index."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a chunk adds to its choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """One choice's share of a chunk."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """One message of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class Function(Struct, frozen=True, kw_only=True):
    """The function that a tool call names."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True):
    """A tool that the model wants called."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The model's answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Choice(Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage


class Model(Struct, frozen=True, kw_only=True):
    """A model that answers requests, or will once it is loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "inferlog"


class ModelList(Struct, frozen=True, kw_only=True):
    """All models."""

    object: Literal["list"] = "list"
    data: list[Model]
