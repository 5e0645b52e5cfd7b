"""Following one completion in the log, for a stream or for an answer in one piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from litestar import Request

from api.errors import ApiError
from api.openai import wire
from api.openai.render import PREFIX, Numbered, Renderer, Transcript, whole
from api.services import Services
from api.sse import KEEP_ALIVE, EventStream, Pull, ServerStopping, Silence, unless_interrupted
from domain.completion import Done, Failure
from infrastructure.event_store import EventStore, LogUnavailable

HEADERS_AFTER = 10.0
"""Seconds that the first message is waited for before a stream's headers leave without it."""

T = TypeVar("T")


class Following:
    """A completion's messages as they commit, from the first one on.

    Args:
        stream: the completion's stream in the log.
        after: a position before its first event.
        include_usage: whether usage is one of the messages.
    """

    def __init__(
        self, store: EventStore, stream: str, after: int, *, include_usage: bool = True
    ) -> None:
        self._store = store
        self._stream = stream
        self._after = after
        self.include_usage = include_usage
        self.transcript = Transcript(include_usage)

    @property
    def id(self) -> str:
        """The completion's id as clients know it."""
        return PREFIX + self._stream.partition("/")[2]

    async def batches(self, starting_after: int = -1) -> AsyncGenerator[list[Numbered], None]:
        """Messages after an ordinal, as many at once as were committed at once."""
        async with aclosing(self._store.follow(self._after, stream=self._stream)) as batches:
            async for batch in batches:
                messages = [
                    message for recorded in batch for message in self.transcript.add(recorded.event)
                ]
                ended = bool(messages) and isinstance(messages[-1].message, Done)
                if wanted := [each for each in messages if each.ordinal > starting_after]:
                    yield wanted
                if ended:
                    return


async def answered(
    request: Request[Any, Any, Any], services: Services, following: Following
) -> wire.ChatCompletion:
    """The completion in one piece, once it has ended.

    Raises:
        ApiError: it failed, or its end could not be awaited.
        ClientGone: the client went away.
    """
    messages: list[Numbered] = []

    async def collect() -> None:
        async with aclosing(following.batches()) as batches:
            async for batch in batches:
                messages.extend(batch)

    await _waiting(request, services, following, collect())
    for each in messages:
        if isinstance(each.message, Failure):
            raise _outcome(each.message)
    created = following.transcript.progress.created
    complete = created and whole(created, (each.message for each in messages))
    if not complete:
        raise ApiError("internal_error", f"{following.id} is incomplete.", recorded=True)
    return complete


async def streamed(
    request: Request[Any, Any, Any],
    services: Services,
    following: Following,
    *,
    starting_after: int | None = None,
) -> EventStream[list[Numbered]]:
    """The completion as server-sent events, from the first message or after an ordinal.

    Raises:
        ApiError: it failed before its first message, or could not be followed.
        ClientGone: the client went away.
    """
    pull = Pull(following.batches(-1 if starting_after is None else starting_after))

    def encode(batch: list[Numbered]) -> bytes:
        created = following.transcript.progress.created
        return Renderer(created, following.include_usage).events(batch)

    try:
        batch = await _waiting(request, services, following, pull.next(HEADERS_AFTER))
        # Who resumes had its headers long ago, and is told in the stream.
        if starting_after is None and batch and isinstance(batch[0].message, Failure):
            raise _outcome(batch[0].message)
    except Silence:
        return EventStream(pull, encode, services.stopping, first=KEEP_ALIVE)
    except BaseException:
        await pull.close()
        raise
    return EventStream(pull, encode, services.stopping, first=encode(batch or []))


async def _waiting(
    request: Request[Any, Any, Any],
    services: Services,
    following: Following,
    work: Coroutine[Any, Any, T],
) -> T:
    try:
        return await unless_interrupted(work, request.receive, services.stopping)
    except ServerStopping:
        raise ApiError(
            "shutting_down",
            f"The server is stopping. {following.id} goes on when it is back: read it at "
            f"/v1/chat/completions/{following.id}/stream.",
            recorded=True,
        ) from None
    except LogUnavailable as error:
        raise ApiError("log_unavailable", f"The log is unavailable: {error}") from error


def _outcome(failure: Failure) -> ApiError:
    """How a completion failed, as an error; the log has it already."""
    return ApiError(failure.code, failure.message, recorded=True)
