"""Messages of a completion as the JSON that a client reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from api import errors, sse
from api.errors import ApiError
from api.openai import wire
from domain import completion as fold
from domain import events as e
from domain.completion import Message, Progress

PREFIX = "chatcmpl-"
DONE = b"[DONE]"

_encode = msgspec.json.Encoder().encode


class Numbered(msgspec.Struct, frozen=True):
    """A message and its place among those that the client sees, from 0 and without gaps."""

    ordinal: int
    message: Message


class Transcript:
    """Folds a completion's events and numbers the messages that they add.

    Usage comes right before the end, so whether a client asked for it changes the number of
    nothing that one could continue after.
    """

    def __init__(self, include_usage: bool) -> None:
        self._include_usage = include_usage
        self.progress = Progress()
        self._next = 0

    def add(self, event: e.Event) -> list[Numbered]:
        """The messages that one more event adds."""
        self.progress, messages = fold.step(self.progress, event)
        numbered = []
        for message in messages:
            if self._include_usage or not isinstance(message, fold.Usage):
                numbered.append(Numbered(self._next, message))
                self._next += 1
        return numbered


class Renderer:
    """Writes the messages of one completion as server-sent events."""

    def __init__(self, created: e.TaskCreated | None, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._created = created

    def events(self, messages: Iterable[Numbered]) -> bytes:
        """Server-sent events for some messages, ready to be sent."""
        return b"".join(sse.event(each.ordinal, self.data(each.message)) for each in messages)

    def data(self, message: Message) -> bytes:
        """A message's data."""
        match message:
            case fold.Role():
                delta = wire.Delta(role="assistant", content="")
                return self._chunk(wire.ChunkChoice(index=message.choice, delta=delta))
            case fold.Text():
                delta = _delta(message.delta)
                return self._chunk(wire.ChunkChoice(index=message.choice, delta=delta))
            case fold.Finish():
                choice = wire.ChunkChoice(
                    index=message.choice,
                    delta=wire.Delta(),
                    finish_reason=_finish_reason(message.reason),
                )
                return self._chunk(choice)
            case fold.Usage():
                return self._chunk(usage=_usage(message))
            case fold.Failure():
                return _encode(errors.body(ApiError(message.code, message.message)))
            case fold.Done():
                return DONE
        assert_never(message)

    def _chunk(
        self, choice: wire.ChunkChoice | None = None, usage: wire.Usage | None = None
    ) -> bytes:
        created = self._created
        assert created is not None, "chunks follow the task's creation"
        return _encode(
            wire.ChatCompletionChunk(
                id=PREFIX + created.task_id,
                created=_seconds(created),
                model=created.model_id,
                system_fingerprint=_fingerprint(created),
                choices=[] if choice is None else [choice],
                usage=usage if self._include_usage else msgspec.UNSET,
            )
        )


class _Answer:
    """A choice as it grows."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls: dict[int, e.ToolCall] = {}
        self.finish: wire.FinishReason | None = None

    def add(self, delta: e.Delta) -> None:
        match delta:
            case e.Content():
                self.content.append(delta.text)
            case e.Reasoning():
                self.reasoning.append(delta.text)
            case e.RefusalText():
                self.refusal.append(delta.text)
            case e.ToolCall():
                before = self.calls.get(delta.index)
                self.calls[delta.index] = delta if before is None else _joined(before, delta)
            case _:
                assert_never(delta)

    def message(self) -> wire.AnswerMessage:
        calls = [
            wire.ToolCall(
                id=call.id or "",
                function=wire.Function(name=call.name or "", arguments=call.arguments),
            )
            for _, call in sorted(self.calls.items())
        ]
        text = "".join(self.content)
        return wire.AnswerMessage(
            content=text if text or not (calls or self.refusal) else None,
            refusal="".join(self.refusal) or None,
            reasoning_content="".join(self.reasoning) or msgspec.UNSET,
            tool_calls=calls or msgspec.UNSET,
        )


def whole(created: e.TaskCreated, messages: Iterable[Message]) -> wire.ChatCompletion | None:
    """A finished completion in one piece, or None where a part of it is missing."""
    answers: dict[int, _Answer] = {}
    usage: wire.Usage | None = None
    for message in messages:
        match message:
            case fold.Role():
                answers[message.choice] = _Answer()
            case fold.Text():
                answers[message.choice].add(message.delta)
            case fold.Finish():
                answers[message.choice].finish = _finish_reason(message.reason)
            case fold.Usage():
                usage = _usage(message)
            case fold.Failure() | fold.Done():
                pass
    choices = [
        wire.Choice(index=index, message=answer.message(), finish_reason=answer.finish)
        for index, answer in sorted(answers.items())
        if answer.finish is not None
    ]
    if usage is None or not choices or len(choices) < len(answers):
        return None
    return wire.ChatCompletion(
        id=PREFIX + created.task_id,
        created=_seconds(created),
        model=created.model_id,
        system_fingerprint=_fingerprint(created),
        choices=choices,
        usage=usage,
    )


def _delta(delta: e.Delta) -> wire.Delta:
    match delta:
        case e.Content():
            return wire.Delta(content=delta.text)
        case e.Reasoning():
            return wire.Delta(reasoning_content=delta.text)
        case e.RefusalText():
            return wire.Delta(refusal=delta.text)
        case e.ToolCall():
            return wire.Delta(tool_calls=[_tool_call(delta)])
    assert_never(delta)


def _tool_call(call: e.ToolCall) -> wire.ToolCallDelta:
    """Id, type and name stand in a call's first piece only: clients join all that they get."""
    return wire.ToolCallDelta(
        index=call.index,
        id=msgspec.UNSET if call.id is None else call.id,
        type=msgspec.UNSET if call.id is None else "function",
        function=wire.FunctionDelta(
            name=msgspec.UNSET if call.name is None else call.name, arguments=call.arguments
        ),
    )


def _joined(before: e.ToolCall, more: e.ToolCall) -> e.ToolCall:
    return msgspec.structs.replace(before, arguments=before.arguments + more.arguments)


def _finish_reason(reason: e.FinishReason) -> wire.FinishReason:
    assert reason != "error", "the fold tells errors by the terminal event"
    return reason


def _usage(usage: fold.Usage) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def _seconds(created: e.TaskCreated) -> int:
    return created.created_at // 1_000_000


def _fingerprint(created: e.TaskCreated) -> str:
    """Answers with one seed can be the same only where this is the same."""
    return f"fp_{created.model.weights_digest[:12]}"
