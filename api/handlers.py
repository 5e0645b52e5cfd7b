"""What Litestar does with exceptions: every one becomes an error in OpenAI's shape."""

from __future__ import annotations

import logging
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap

from api import errors
from api.calls import ClientGone
from api.errors import ApiError, ErrorBody
from api.frame import REFUSAL, internal_error
from infrastructure.event_store import LogUnavailable, PositionOutOfRange

log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""nginx's status for a client that went away. Nobody reads it."""

AnyRequest = Request[Any, Any, Any]


def _answer(request: AnyRequest, error: ApiError) -> Response[ErrorBody]:
    if not error.recorded:
        request.scope["state"][REFUSAL] = error
    return Response(errors.body(error), status_code=error.status, headers=errors.headers(error))


def _api_error(request: AnyRequest, error: Exception) -> Response[ErrorBody]:
    assert isinstance(error, ApiError)
    return _answer(request, error)


def _http_exception(request: AnyRequest, error: Exception) -> Response[ErrorBody]:
    """Litestar's own refusals: paths, methods and parameters."""
    assert isinstance(error, HTTPException)
    path = errors.quote(request.scope["path"])
    match error.status_code:
        case 404:
            return _answer(request, ApiError("unknown_path", f"There is nothing at {path}."))
        case 405:
            method = errors.quote(request.scope["method"])
            allowed = {name.title(): value for name, value in (error.headers or {}).items()}
            message = f"{method} is not possible at {path}, but {allowed.get('Allow')} is."
            return _answer(request, ApiError("method_not_allowed", message, headers=allowed))
        case 413:
            return _answer(request, ApiError("request_too_large", error.detail))
        case status if status < 500:
            return _answer(request, _bad_parameter(error))
    return _unexpected(request, error)


def _bad_parameter(error: HTTPException) -> ApiError:
    extra = error.extra
    if isinstance(error, ValidationException) and isinstance(extra, list) and extra:
        first = extra[0]
        name, why = str(first.get("key", "")), str(first.get("message", ""))
        return ApiError("bad_request", f"Invalid value for {errors.quote(name)}: {why}", name)
    return ApiError("bad_request", error.detail or "The request is malformed.")


def _position_out_of_range(request: AnyRequest, error: Exception) -> Response[ErrorBody]:
    return _answer(
        request, ApiError("position_out_of_range", f"This is past the end: {error}.", "after")
    )


def _log_unavailable(request: AnyRequest, error: Exception) -> Response[ErrorBody]:
    return _answer(request, ApiError("log_unavailable", f"The log is unavailable: {error}"))


def _client_gone(request: AnyRequest, error: Exception) -> Response[None]:
    return Response(None, status_code=CLIENT_GONE)


def _unexpected(request: AnyRequest, error: Exception) -> Response[ErrorBody]:
    log.error("%s %s failed", request.scope["method"], request.scope["path"], exc_info=error)
    return _answer(request, internal_error())


EXCEPTION_HANDLERS: ExceptionHandlersMap = {
    ApiError: _api_error,
    HTTPException: _http_exception,
    PositionOutOfRange: _position_out_of_range,
    LogUnavailable: _log_unavailable,
    ClientGone: _client_gone,
    Exception: _unexpected,
}
