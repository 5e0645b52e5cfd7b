"""`GET /v1/chat/completions/{id}/stream`: a recorded or running completion, once more."""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from litestar.params import FromPath, FromQuery
from litestar.response.base import ASGIResponse

from api.calls import last_event_id, number_in_query
from api.errors import ApiError, quote
from api.openai.following import Following, streamed
from api.openai.render import PREFIX
from api.services import Provided
from domain import streams


@get("/v1/chat/completions/{completion_id:str}/stream")
async def stream_chat_completion(
    request: Request[Any, Any, Any],
    services: Provided,
    completion_id: FromPath[str],
    include_usage: FromQuery[bool] = False,
) -> ASGIResponse:
    """The completion's server-sent events, from the first or after one that is known.

    A browser that reconnects repeats its first address, so `Last-Event-ID` is the newer of the
    two and counts.
    """
    stream = streams.completion(completion_id.removeprefix(PREFIX))
    if await services.store.stream(stream) is None:
        raise ApiError("not_found", f"There is no completion {quote(completion_id)}.")
    if services.stopping.is_set():
        raise ApiError("shutting_down", "The server is stopping.")
    known = last_event_id(request)
    if known is None:
        known = number_in_query(request, "starting_after")
    return await streamed(
        request,
        services,
        Following(services.store, stream, 0, include_usage=include_usage),
        starting_after=known,
    )
