"""How everything that can go wrong looks on the wire: the one mapper.

Every route answers an error in OpenAI's shape, ``{"error": {"message", "type", "param",
"code"}}``, with all four keys. Whatever a client sent, the body stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from domain.errors import Code, Refusal

LONGEST_MESSAGE = 2000
"""Characters of a message; what a client sent is quoted in it, and may be megabytes."""

LONGEST_PARAM = 200
LONGEST_QUOTE = 80

ErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]


class Wire(NamedTuple):
    """How a code is sent.

    Attributes:
        code: what stands in the body; None where OpenAI has no code for it.
        retry_after: seconds after which it is worth another try.
        again: False where the client must not try by itself, whatever the status.
    """

    status: int
    type: ErrorType
    code: str | None
    retry_after: int | None = None
    again: bool = True


WIRE: Mapping[Code, Wire] = {
    "bad_request": Wire(400, "invalid_request_error", None),
    "context_length_exceeded": Wire(400, "invalid_request_error", "context_length_exceeded"),
    "position_out_of_range": Wire(400, "invalid_request_error", "position_out_of_range"),
    "invalid_host": Wire(400, "invalid_request_error", None),
    "model_not_found": Wire(404, "invalid_request_error", "model_not_found"),
    "unknown_path": Wire(404, "invalid_request_error", None),
    "not_found": Wire(404, "invalid_request_error", "not_found"),
    "method_not_allowed": Wire(405, "invalid_request_error", "method_not_allowed"),
    "idempotency_conflict": Wire(409, "invalid_request_error", "idempotency_conflict", again=False),
    "cancelled": Wire(409, "invalid_request_error", "cancelled", again=False),
    "request_too_large": Wire(413, "invalid_request_error", "request_too_large"),
    "rate_limit_exceeded": Wire(429, "rate_limit_error", "rate_limit_exceeded", retry_after=1),
    "generation_failed": Wire(500, "server_error", "generation_failed"),
    "runner_crashed": Wire(500, "server_error", "runner_crashed"),
    "model_load_failed": Wire(500, "server_error", "model_load_failed"),
    "instance_deleted": Wire(500, "server_error", "instance_deleted"),
    "internal_error": Wire(500, "server_error", "internal_error"),
    "model_unavailable": Wire(503, "server_error", "model_unavailable", retry_after=2),
    "shutting_down": Wire(503, "server_error", "shutting_down", retry_after=5),
    "log_unavailable": Wire(503, "server_error", "log_unavailable", retry_after=5),
    "deadline_exceeded": Wire(504, "server_error", "deadline_exceeded", again=False),
}


WHEN: Mapping[Code, str] = {
    "bad_request": "a bad value, a wrong shape, an unknown field, not JSON; `param` names it",
    "context_length_exceeded": "the prompt and `max_tokens` go beyond the model's context",
    "position_out_of_range": "a cursor beyond the end of the log",
    "invalid_host": "the Host header names another server; see `INFERLOG_ALLOW_HOST`",
    "model_not_found": "no instance serves a model of this name",
    "unknown_path": "no such path",
    "not_found": "no such completion, command, event or instance",
    "method_not_allowed": "the path is served, but not with this method",
    "idempotency_conflict": "the `Idempotency-Key` was used with another body",
    "cancelled": "the request was cancelled",
    "request_too_large": "the body is larger than `INFERLOG_MAX_BODY`",
    "rate_limit_exceeded": "`INFERLOG_QUEUE` requests are waiting already",
    "generation_failed": "the model failed while it answered",
    "runner_crashed": "the runner died again and again while it worked on this request",
    "model_load_failed": "the model cannot be made or loaded; the message says why",
    "instance_deleted": "the model was unloaded before the answer was complete",
    "internal_error": "a fault of inferlog's; its own log has the details",
    "model_unavailable": "the model's folder is still being downloaded or converted",
    "shutting_down": "the server is stopping; accepted requests go on at its next start",
    "log_unavailable": "the log cannot be written (disk full, I/O error), so nothing is taken on",
    "deadline_exceeded": "a deadline passed; the message names the setting",
}
"""When each is sent, for the documentation."""


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, as OpenAI says it."""

    message: str
    type: ErrorType
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorInfo


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        recorded: it stands in the log already, or is the outcome of a command that does.
        headers: sent besides those that the code brings.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        param: str | None = None,
        *,
        recorded: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.message = shorten(message, LONGEST_MESSAGE)
        self.param = None if param is None else shorten(param, LONGEST_PARAM)
        self.recorded = recorded
        self.headers = dict(headers or {})
        super().__init__(self.message)

    @classmethod
    def refused(cls, refusal: Refusal, *, recorded: bool) -> ApiError:
        """A refusal as an error."""
        return cls(refusal.code, refusal.message, refusal.param, recorded=recorded)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return WIRE[self.code].status


def body(error: ApiError) -> ErrorBody:
    """What is sent for an error."""
    wire = WIRE[error.code]
    return ErrorBody(
        ErrorInfo(message=error.message, type=wire.type, param=error.param, code=wire.code)
    )


def headers(error: ApiError) -> dict[str, str]:
    """The headers that go with an error."""
    wire = WIRE[error.code]
    chosen = dict(error.headers)
    if wire.retry_after is not None:
        chosen["retry-after"] = str(wire.retry_after)
    if not wire.again:
        chosen["x-should-retry"] = "false"
    return chosen


def shorten(text: str, limit: int) -> str:
    """Text of at most `limit` characters that can be encoded, whatever it was made from."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode(errors="replace").decode()


def quote(value: Any) -> str:
    """A value that a client sent, for a message: short."""
    return repr(shorten(value, LONGEST_QUOTE)) if isinstance(value, str) else repr(value)
