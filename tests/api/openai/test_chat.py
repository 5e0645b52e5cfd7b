"""Chat completions over HTTP, as OpenAI's client sees them."""

from __future__ import annotations

from openai import AsyncOpenAI

from tests.api.node import MODEL, Node

HI = [{"role": "user", "content": "Hi"}]


async def test_an_answer_comes_in_one_piece(node: Node, sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=HI)
    assert answer.choices[0].message.content == "Hello, world"
    print(answer)


async def test_an_answer_comes_streamed(node: Node, sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    print(chunks)
