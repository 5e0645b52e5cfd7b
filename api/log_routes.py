"""The log over HTTP: `/events`, a page at a time or followed live, and `/events/{position}`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.params import PathParameter, QueryParameter
from litestar.response.base import ASGIResponse

from api import sse
from api.calls import last_event_id
from api.errors import ApiError, quote
from api.event_view import EventView, page, view
from api.services import Provided, Services
from api.sse import EventStream, Pull
from domain.events import EVENT_TYPES, TOKEN_TYPE
from infrastructure.event_store import EventStore, PositionOutOfRange, Recorded

LIMIT = 100
MOST = 1000

After = Annotated[int, QueryParameter(ge=0, description="The position before the first event.")]
Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="Events of one page.")]


@get("/events")
async def list_events(
    request: Request[Any, Any, Any],
    services: Provided,
    after: After = 0,
    limit: Limit = LIMIT,
    stream: Annotated[
        str, QueryParameter(description="Only this stream's, as `completion/ID`.")
    ] = "",
    types: Annotated[
        tuple[str, ...], QueryParameter(name="type", description="Only of these types.")
    ] = (),
) -> ASGIResponse:
    """Events after a position: a page, or all there are and will be as server-sent events.

    Which of the two it is depends on the `Accept` header. `limit` is the page's.
    """
    wanted = _types(types)
    if _wants_stream(request):
        cursor = last_event_id(request)
        return await _followed(
            services, after if cursor is None else cursor, stream or None, wanted
        )
    events = await services.store.read(after, limit + 1, stream=stream or None, types=wanted)
    return Response(page(events, limit, after)).to_asgi_response(app=None, request=request)


@get("/events/{position:int}")
async def get_event(services: Provided, position: Annotated[int, PathParameter(ge=1)]) -> EventView:
    """One event."""
    head = (await services.store.head()).position
    if position > head:
        raise ApiError("not_found", f"There is no event {position}: the log ends at {head}.")
    [recorded] = await services.store.read(position - 1, 1)
    return view(recorded)


def _types(names: Sequence[str]) -> frozenset[str] | None:
    """Event types as asked for: `type` again and again, or with commas."""
    wanted = frozenset(name for each in names for name in each.split(","))
    for name in sorted(wanted):
        if name not in EVENT_TYPES:
            raise ApiError("bad_request", f"There are no events of type {quote(name)}.", "type")
    return wanted or None


def _wants_stream(request: Request[Any, Any, Any]) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


async def _followed(
    services: Services, after: int, stream: str | None, types: Collection[str] | None
) -> EventStream[Sequence[Recorded]]:
    head = (await services.store.head()).position
    if after > head:
        raise PositionOutOfRange(f"the log ends at position {head}")
    if services.stopping.is_set():
        raise ApiError("shutting_down", "The server is stopping.")
    batches = _batches(services.store, after, stream, types)
    return EventStream(Pull(batches), _encode, services.stopping)


async def _batches(
    store: EventStore, after: int, stream: str | None, types: Collection[str] | None
) -> AsyncGenerator[Sequence[Recorded], None]:
    tokens = types is None or TOKEN_TYPE in types
    async with aclosing(store.follow(after, stream=stream, tokens=tokens)) as batches:
        async for batch in batches:
            # Nothing is yielded for nothing: the silence then counts towards a keep-alive.
            if wanted := [each for each in batch if types is None or each.type in types]:
                yield wanted


def _encode(batch: Sequence[Recorded]) -> bytes:
    return b"".join(sse.event(each.position, msgspec.json.encode(view(each))) for each in batch)
