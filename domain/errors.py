"""The names of everything that can go wrong for a client.

How each looks on the wire (status, type, headers) stands in `api/errors.py`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Code = Literal[
    "bad_request",
    "context_length_exceeded",
    "position_out_of_range",
    "invalid_host",
    "model_not_found",
    "unknown_path",
    "not_found",
    "method_not_allowed",
    "idempotency_conflict",
    "cancelled",
    "request_too_large",
    "rate_limit_exceeded",
    "generation_failed",
    "runner_crashed",
    "model_load_failed",
    "instance_deleted",
    "internal_error",
    "model_unavailable",
    "shutting_down",
    "log_unavailable",
    "deadline_exceeded",
]


class Refusal(msgspec.Struct, frozen=True):
    """Why a command is turned down, in words for the client."""

    code: Code
    message: str
    param: str | None = None
