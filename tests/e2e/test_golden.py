"""The default model through the whole server, against a PyTorch reference's answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.e2e.harness import Server, default_model_server

FRANCE = "What is the capital of France? Explain briefly."
CLAUSE = " la femme de la France,"
COLOURS = (
    "1. Red: The most popular colour among the 11 colors of the rainbow.\n"
    "2. Blue: The most popular colour among the 11"
)
GOLDEN = {
    # Prompt and max_tokens to prompt tokens, answer and finish reason. The first answer is
    # one clause every seven tokens, so its lengths at 32 and at 39 are both known.
    (FRANCE, 32): (40, "Le Grand Paris," + 4 * CLAUSE, "length"),
    (FRANCE, 39): (40, "Le Grand Paris," + 5 * CLAUSE, "length"),
    ("List three colours.", 32): (
        34,
        COLOURS,
        "length",
    ),
    ("What is 17 plus 25?", 32): (40, "17 + 25 = 32.", "stop"),
}
OTHERS = (
    "Who wrote Hamlet?",
    "Say hello in Spanish.",
    "What is water made of?",
    "Name a planet.",
    "Tell me a short joke.",
)
MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with default_model_server(tmp_path_factory.mktemp("golden") / "home") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="unused", _strict_response_validation=True
    ) as client:
        yield client


def ask(client: openai.OpenAI, prompt: str, max_tokens: int) -> tuple[int, str, str]:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        temperature=0,
    )
    assert answer.usage is not None
    [choice] = answer.choices
    return answer.usage.prompt_tokens, choice.message.content or "", choice.finish_reason


def ask_streamed(client: openai.OpenAI, prompt: str, max_tokens: int) -> tuple[int, str, str]:
    text, prompt_tokens, reason = "", 0, ""
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
        if chunk.usage is not None:
            prompt_tokens = chunk.usage.prompt_tokens
    return prompt_tokens, text, reason


@pytest.mark.parametrize(("prompt", "max_tokens"), GOLDEN)
def test_greedy_answers_are_the_reference_s(
    client: openai.OpenAI, prompt: str, max_tokens: int
) -> None:
    assert ask(client, prompt, max_tokens) == GOLDEN[prompt, max_tokens]


@pytest.mark.parametrize(("prompt", "max_tokens"), GOLDEN)
def test_streamed_greedy_answers_are_the_reference_s(
    client: openai.OpenAI, prompt: str, max_tokens: int
) -> None:
    assert ask_streamed(client, prompt, max_tokens) == GOLDEN[prompt, max_tokens]


def test_eight_prompts_at_once_give_what_each_gives_alone(client: openai.OpenAI) -> None:
    prompts = (*sorted({prompt for prompt, _ in GOLDEN}), *OTHERS)
    alone = [ask(client, prompt, 12) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: ask(client, prompt, 12), prompts))
    assert together == alone


def test_a_seed_gives_the_same_answer_again(client: openai.OpenAI) -> None:
    answers = {
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Invent a name for a cat."}],
            max_tokens=16,
            seed=7,
        )
        .choices[0]
        .message.content
        for _ in range(3)
    }
    assert len(answers) == 1


def test_the_answer_is_what_the_log_says(server: Server, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": FRANCE}],
        max_tokens=8,
        temperature=0,
        user="someone",
        metadata={"case": "7"},
    )
    command_id = answer.id.removeprefix("chatcmpl-")
    page = server.get(f"/events?stream=completion/{command_id}&limit=1000").json()["data"]
    types = [event["type"] for event in page]
    assert types[:3] == ["CommandAccepted", "TaskCreated", "TaskAcknowledged"]
    assert types[-2:] == ["ChunkGenerated", "TaskStatusUpdated"]
    created = page[1]
    assert "capital of France" in created["content"]["prompt_text"]
    assert len(created["content"]["token_ids"]) == created["payload"]["prompt_tokens"] == 40
    assert created["content"]["user"] == "someone"
    assert created["content"]["metadata"] == {"case": "7"}
    logged = "".join(
        delta[1]
        for event in page
        if event["type"] == "ChunkGenerated"
        for delta in event["content"].get("deltas", [])
    )
    assert logged == answer.choices[0].message.content
