"""OpenAI's own client against the server, checking every answer against its types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def sdk(url: str) -> Iterator[OpenAI]:
    """The synchronous client."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", _strict_response_validation=True) as client:
        yield client


@pytest.fixture
async def async_sdk(url: str) -> AsyncIterator[AsyncOpenAI]:
    """The asynchronous client."""
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", _strict_response_validation=True
    ) as client:
        yield client


def test_models_are_listed_and_found(sdk: OpenAI, model: str) -> None:
    assert model in [each.id for each in sdk.models.list()]
    assert sdk.models.retrieve(model).object == "model"


def test_an_answer_in_one_piece(sdk: OpenAI, model: str) -> None:
    answer = sdk.chat.completions.create(
        model=model, messages=HI, max_tokens=16, temperature=0, seed=1
    )
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    counted = answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.total_tokens == counted
    assert answer._request_id


def test_a_stream_says_the_same(sdk: OpenAI, model: str) -> None:
    whole = sdk.chat.completions.create(
        model=model, messages=HI, max_completion_tokens=16, temperature=0, seed=1
    )
    *chunks, usage = sdk.chat.completions.create(
        model=model,
        messages=HI,
        max_completion_tokens=16,
        temperature=0,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    text = "".join(delta.content or "" for delta in deltas)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole.choices[0].finish_reason]
    assert all(chunk.usage is None for chunk in chunks)
    assert (usage.choices, usage.usage) == ([], whole.usage)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in (*chunks, usage)}) == 1


async def test_streams_side_by_side(async_sdk: AsyncOpenAI, model: str) -> None:
    async def ask() -> str | None:
        async with async_sdk.chat.completions.stream(
            model=model, messages=HI, max_tokens=8, temperature=0
        ) as stream:
            answer = await stream.get_final_completion()
        assert answer.choices[0].message.role == "assistant"
        return answer.choices[0].message.content

    answers = await asyncio.gather(*(ask() for _ in range(8)))
    assert len(set(answers)) == 1


def test_every_optional_field_may_be_null_or_change_nothing(sdk: OpenAI, model: str) -> None:
    answer = sdk.chat.completions.create(
        model=model,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        ],
        max_tokens=4,
        stop=None,
        temperature=None,
        top_p=None,
        seed=None,
        n=1,
        presence_penalty=0,
        frequency_penalty=0,
        logprobs=False,
        tools=[],
        response_format={"type": "text"},
        store=False,
        parallel_tool_calls=True,
        user="someone",
        metadata={"key": "value"},
    )
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_errors_arrive_as_their_classes(sdk: OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        sdk.chat.completions.create(model="no such model", messages=HI)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        sdk.chat.completions.create(model=model, messages=HI, temperature=3)
    assert (wrong.value.param, wrong.value.code) == ("temperature", None)
    with pytest.raises(openai.BadRequestError) as long:
        sdk.chat.completions.create(model=model, messages=HI, max_tokens=10**9, stream=True)
    assert long.value.code == "context_length_exceeded"


def test_a_repeat_is_the_same_completion(sdk: OpenAI, model: str) -> None:
    def ask() -> object:
        return sdk.chat.completions.create(
            model=model,
            messages=HI,
            max_tokens=4,
            extra_headers={"Idempotency-Key": f"conformance {sdk!r}"},
        )

    assert ask() == ask()
