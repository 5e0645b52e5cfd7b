"""Small helpers for asking and for reading streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from openai.types.chat import ChatCompletionMessageParam

from tests.api.node import MODEL

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
PATH = "/v1/chat/completions"


def asking(**fields: Any) -> dict[str, Any]:
    """A request's body."""
    return {"model": MODEL, "messages": HI, **fields}


def parsed(text: str) -> list[tuple[int | None, Any]]:
    """Numbers and data of server-sent events, comments left out."""
    found: list[tuple[int | None, Any]] = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line[:1] not in (":", ""))
        if "data" in lines:
            data = lines["data"]
            number = int(lines["id"]) if "id" in lines else None
            found.append((number, data if data == "[DONE]" else json.loads(data)))
    return found


def text_of(events: list[tuple[int | None, Any]]) -> str:
    """The answer's text in a stream."""
    return "".join(
        choice["delta"].get("content", "")
        for _, data in events
        if data != "[DONE]"
        for choice in data.get("choices", ())
    )


async def blocks(response: httpx.Response) -> AsyncIterator[str]:
    """Server-sent events as they come."""
    rest = ""
    async for text in response.aiter_text():
        *whole, rest = (rest + text).split("\n\n")
        for block in whole:
            yield block
