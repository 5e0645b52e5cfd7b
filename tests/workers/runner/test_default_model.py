from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.default_model import default_model
from tests.workers.runner.client import Answer, RunnerClient, insert
from workers.protocol import Insert

pytestmark = pytest.mark.e2e

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the model's own template puts in front of a conversation without a system message."""

CLAUSE = " la femme de la France,"
COLOURS = (
    "1. Red: The most popular colour among the 11 colors of the rainbow.\n"
    "2. Blue: The most popular colour among the 11"
)
# From the reference implementation in float32: question, prompt tokens, answer, and its end.
GOLDEN = [
    (
        "What is the capital of France? Explain briefly.",
        40,
        "Le Grand Paris," + 4 * CLAUSE,
        "length",
    ),
    ("List three colours.", 34, COLOURS, "length"),
    ("What is 17 plus 25?", 40, "17 + 25 = 32.", "stop"),
]


@pytest.fixture(scope="module")
def runner() -> Iterator[RunnerClient]:
    with RunnerClient("mlx") as made:
        yield made.load(default_model().path)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(Path(default_model().path) / "tokenizer.json"))


def ask(question: str, max_tokens: int = 32, **values: Any) -> Insert:
    turns = [("system", SYSTEM), ("user", question)]
    text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    prompt = tokenizer().encode(text + "<|im_start|>assistant\n", add_special_tokens=False).ids
    return insert(prompt, max_tokens=max_tokens, **values)


def outcome(answer: Answer) -> tuple[str, str | None]:
    return answer.text, answer.finish_reason


def test_greedy_answers_are_the_reference_ones(runner: RunnerClient) -> None:
    orders = [ask(question) for question, *_ in GOLDEN]
    assert [len(order.prompt) for order in orders] == [tokens for _, tokens, *_ in GOLDEN]
    answers = runner.run(*orders)
    assert [outcome(answer) for answer in answers] == [tuple(case[2:]) for case in GOLDEN]
    # Alone, as in company.
    question, _, *expected = GOLDEN[2]
    assert outcome(runner.run(ask(question))[0]) == tuple(expected)
    # And going on where a log ends.
    log = Answer(answers[1].rows[:20])
    [rest] = runner.run(ask(GOLDEN[1][0], logged=log.tokens, emitted=len(log.text)))
    assert outcome(Answer([*log.rows, *rest.rows])) == (COLOURS, "length")


def test_a_seed_gives_the_same_answer_alone_and_in_a_batch(runner: RunnerClient) -> None:
    def order(seed: int) -> Insert:
        question = "Tell me a story."
        return ask(question, temperature=0.8, top_p=0.95, seed=seed, max_tokens=16)

    [alone] = runner.run(order(7))
    company = runner.run(*(order(seed) for seed in range(6, 9)))
    assert company[1].tokens == alone.tokens
    assert len({answer.tokens for answer in company}) == 3
