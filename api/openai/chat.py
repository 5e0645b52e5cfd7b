"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from litestar import Request, Response, post
from litestar.response.base import ASGIResponse

from api import calls
from api.errors import ApiError
from api.openai.following import Following, answered, streamed
from api.openai.request import ChatRequest, parse
from api.prompting import Prompt
from api.services import Provided, Services
from domain import commands
from domain.commands import Caller
from domain.decide import unservable
from domain.events import ModelPrepared
from infrastructure.command_bus import Accepted, Refused
from infrastructure.event_store import LogUnavailable

PARSE_IN_THREAD = 64 * 1024
"""Bytes of a body from which it is parsed beside the event loop."""


@post("/v1/chat/completions", status_code=200)
async def create_chat_completion(
    request: Request[Any, Any, Any], services: Provided
) -> ASGIResponse:
    """Answer a conversation, in one piece or as a stream of server-sent events."""
    body = await calls.read_body(request, services.settings.max_body)
    if services.stopping.is_set():
        raise ApiError("shutting_down", "The server is stopping.")
    caller = calls.caller_of(request.scope, calls.idempotency_key(request))
    chat = await _parsed(body, services.settings.lenient)
    accepted = await _accepted(services, chat, caller, body)
    following = Following(
        services.store,
        accepted.stream,
        max(accepted.position - 1, 0),
        include_usage=chat.include_usage or not chat.stream,
    )
    if chat.stream:
        return await streamed(request, services, following)
    answer = await answered(request, services, following)
    return Response(answer).to_asgi_response(app=None, request=request)


async def _parsed(body: bytes, lenient: bool) -> ChatRequest:
    if len(body) < PARSE_IN_THREAD:
        return parse(body, lenient=lenient)
    return await asyncio.to_thread(parse, body, lenient=lenient)


async def _accepted(services: Services, chat: ChatRequest, caller: Caller, body: bytes) -> Accepted:
    """Have the request taken on, or find the one that it repeats."""
    try:
        if (first := await _repeated(services, caller, body)) is not None:
            return first
        command = await _command(services, chat)
        return await services.bus.dispatch(command, caller, body)
    except Refused as refused:
        raise ApiError.refused(refused.refusal, recorded=True) from refused
    except LogUnavailable as error:
        raise ApiError("log_unavailable", f"The log is unavailable: {error}") from error


async def _repeated(services: Services, caller: Caller, body: bytes) -> Accepted | None:
    """The completion that this request repeats, whatever has become of its model since.

    A key that was used for something else is left to the bus, which records the conflict.
    """
    if caller.idempotency_key is None:
        return None
    first = await services.store.command_by_key(caller.actor, caller.idempotency_key)
    if first is None or first.body_digest != sha256(body).hexdigest():
        return None
    return Accepted(command_id=first.command_id, stream=first.stream, position=0, repeat=True)


async def _command(services: Services, chat: ChatRequest) -> commands.ChatCompletion:
    """The command that a request stands for, its prompt prepared and its seed drawn."""
    model = _servable(services, chat.model)
    prompt = await services.prompter.prepare(model, chat.messages)
    most = _max_tokens(chat, prompt, model, services.settings.max_tokens)
    return commands.ChatCompletion(
        command_id=services.ids(),
        model_id=chat.model,
        model=model.model,
        created_at=services.clock(),
        prompt_text=prompt.text,
        token_ids=prompt.token_ids,
        sampling=commands.Sampling(
            seed=services.seeds() if chat.seed is None else chat.seed,
            temperature=chat.temperature,
            top_p=chat.top_p,
            max_tokens=most,
        ),
        stop=chat.stop,
        stream=chat.stream,
        user=chat.user,
        metadata=chat.metadata,
        ignored=chat.ignored,
    )


def _servable(services: Services, model_id: str) -> ModelPrepared:
    """The model's folder, without which no prompt can be prepared."""
    state = services.projection.state
    if (refusal := unservable(state, model_id)) is not None:
        raise ApiError.refused(refusal, recorded=False)
    prepared = state.models[model_id].prepared
    assert prepared is not None, "a servable model has its folder"
    return prepared


def _max_tokens(chat: ChatRequest, prompt: Prompt, model: ModelPrepared, default: int) -> int:
    """Tokens that may be generated: as asked, else the rest of the context up to a default."""
    context = model.context_length
    length = len(prompt.token_ids)
    wanted = 1 if chat.max_tokens is None else chat.max_tokens
    if length + wanted > context:
        asked = "" if chat.max_tokens is None else f" and {wanted:,} for the answer"
        raise ApiError(
            "context_length_exceeded",
            f"The model's context is {context:,} tokens, but {length + wanted:,} were asked for: "
            f"{length:,} in the messages{asked or ' and at least 1 for the answer'}. "
            "Shorten the messages or the answer.",
            "messages",
        )
    return chat.max_tokens or min(context - length, default)
