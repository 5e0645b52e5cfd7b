"""The outermost layer, around every route and every error.

Litestar's own middleware does not see unknown paths and wrong methods, so what concerns
every exchange stands here, around Litestar as a whole: the request's id, who may ask, and
the record of what was refused.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from urllib.parse import urlsplit

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from api import errors
from api.calls import caller_of
from api.errors import ApiError
from api.services import Services
from domain.events import RequestRefused
from infrastructure.settings import Settings

log = logging.getLogger(__name__)

REQUEST_ID = "request_id"
"""Key in the scope's state: the id of this exchange."""

REFUSAL = "refusal"
"""Key in the scope's state: an error that is being answered and not recorded yet."""

_SANE_ID = re.compile(r"[!-~]{1,128}")
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
LONGEST_PATH = 500


class Frame:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._hosts = _hosts(services.settings)
        self._origins = _names(services.settings.allow_origin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == ScopeType.HTTP:
            await self._exchange(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _exchange(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        state[REQUEST_ID] = request_id = self._request_id(scope)
        begun = False

        async def framed(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if (error := state.pop(REFUSAL, None)) is not None:
                    await self._record(scope, error)
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        try:
            self._check_host(scope)
            self._check_origin(scope)
            await self._app(scope, receive, framed)
        except ApiError as error:
            await respond(scope, framed, error)
        except Exception:
            if begun:
                raise  # the server cuts the connection, which a client can tell from an end
            log.exception("%s %s failed", scope["method"], scope["path"])
            await respond(scope, framed, internal_error())

    def _request_id(self, scope: HTTPScope) -> str:
        given = _header(scope, b"x-request-id")
        if given is not None and _SANE_ID.fullmatch(given):
            return given
        return self._services.ids()

    def _check_host(self, scope: HTTPScope) -> None:
        """A page that made its own name point here must not be answered."""
        if self._hosts is None:
            return
        given = [value for name, value in scope["headers"] if name == b"host"]
        host = _host_name(given[0].decode("latin-1")) if len(given) == 1 else None
        if host is None or host not in self._hosts:
            named = errors.quote(given[0].decode("latin-1")) if given else "none"
            raise ApiError(
                "invalid_host",
                f"The Host header ({named}) does not name this server. Start it with "
                "--allow-host NAME (INFERLOG_ALLOW_HOST) to allow another name.",
            )

    def _check_origin(self, scope: HTTPScope) -> None:
        """A browser sends simple requests anywhere, and only hides the answer from the page."""
        origin = _header(scope, b"origin")
        if origin is None or scope["method"] in _SAFE_METHODS or "*" in self._origins:
            return
        own = urlsplit(origin).netloc == _header(scope, b"host")
        if not own and origin not in self._origins:
            raise ApiError(
                "invalid_host",
                f"Pages of {errors.quote(origin)} may not call this server. Start it with "
                "--allow-origin ORIGIN (INFERLOG_ALLOW_ORIGIN) to allow them.",
            )

    async def _record(self, scope: HTTPScope, error: ApiError) -> None:
        await self._services.refusals.record(
            RequestRefused(
                caller=caller_of(scope),
                method=errors.shorten(scope["method"], 32),
                path=errors.shorten(scope["path"], LONGEST_PATH),
                status=error.status,
                code=error.code,
                param=error.param,
                message=error.message,
            )
        )


def internal_error() -> ApiError:
    """What a client hears of a bug; the rest is in the server's own output."""
    return ApiError("internal_error", "The server failed to answer. Its output says why.")


async def respond(scope: HTTPScope, send: Send, error: ApiError) -> None:
    """Answer with an error, outside of Litestar."""
    if not error.recorded:
        scope["state"][REFUSAL] = error
    content = msgspec.json.encode(errors.body(error))
    headers = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        **errors.headers(error),
    }
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def _header(scope: HTTPScope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return value.decode("latin-1")
    return None


def _names(setting: str) -> frozenset[str]:
    return frozenset(name.strip() for name in setting.split(",") if name.strip())


def _hosts(settings: Settings) -> frozenset[str] | None:
    """The names accepted in the Host header; None accepts all."""
    allowed = {_plain(name) for name in _names(settings.allow_host)}
    if "*" in allowed:
        return None
    return frozenset({"localhost", "127.0.0.1", "::1", _plain(settings.host), *allowed})


def _plain(name: str) -> str:
    """A name in its one spelling: lower case, addresses as Python writes them."""
    name = name.strip().removeprefix("[").removesuffix("]").removesuffix(".").lower()
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _host_name(header: str) -> str | None:
    """The name in a Host header, without its port."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^:/@\[\]\s]+)(:\d*)?", header)
    return None if match is None else _plain(match[1])
