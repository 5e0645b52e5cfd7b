import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.tiny_model import IM_END, build_tiny_llama
from tests.workers.runner.client import Answer, RunnerClient, insert
from workers.protocol import Insert, Load, LoadFailed, Progress, Remove

SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "top_p": 0.7, "seed": -2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[RunnerClient]:
    with RunnerClient("mlx") as made:
        yield made.load(folder)


def orders(count: int, **values: Any) -> list[Insert]:
    """Different prompts of different lengths, sampled in different ways."""
    return [
        insert(
            [1, *range(300 + index, 300 + index * 4 + 1)],
            **{"max_tokens": 40, **SAMPLINGS[index % 3], **values},
        )
        for index in range(count)
    ]


def said(answers: list[Answer]) -> list[tuple[Any, ...]]:
    return [(answer.tokens, answer.text, answer.finish_reason) for answer in answers]


def test_a_runner_says_with_which_versions_it_runs(runner: RunnerClient) -> None:
    assert runner.hello.engine == "mlx 0.32.4, mlx-lm 0.32.2"
    phases = [message.phase for message in runner.heard if isinstance(message, Progress)]
    assert phases[:4] == ["Loading", "Loaded", "WarmingUp", "Ready"]


def test_a_batch_gives_each_row_what_it_gets_alone(runner: RunnerClient) -> None:
    alone = [runner.run(order)[0] for order in orders(12)]
    assert said(runner.run(*orders(12))) == said(alone)
    assert all(len(answer.tokens) == 40 for answer in alone)


def test_rows_that_come_and_go_do_not_change_the_others(runner: RunnerClient) -> None:
    alone = runner.run(*orders(6))
    early, late = orders(6)[:3], orders(6)[3:]
    passing = insert([7] * 600, max_tokens=1000)
    runner.send(*early, passing)
    runner.until(lambda: len(runner.answers[passing.uid].tokens) > 5)
    runner.send(Remove(uid=passing.uid), *late)
    answers = [runner.answers[order.uid] for order in (*early, *late)]
    runner.until(lambda: all(answer.finish_reason for answer in answers))
    assert said(answers) == said(alone)
    assert runner.answers[passing.uid].finish_reason is None


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_answer_resumed_at_any_cut_is_the_uninterrupted_one(
    runner: RunnerClient, sampling: dict[str, Any]
) -> None:
    [whole] = runner.run(insert((1, 300, 301), max_tokens=24, **sampling))
    cuts = range(0, 24, 3)
    logs = [Answer(whole.rows[:cut]) for cut in cuts]
    resumed = [
        insert(
            (1, 300, 301),
            max_tokens=24,
            logged=log.tokens,
            emitted=len(log.text),
            **sampling,
        )
        for log in logs
    ]
    for log, rest in zip(logs, runner.run(*resumed), strict=True):
        assert log.tokens + rest.tokens == whole.tokens
        assert log.text + rest.text == whole.text


def test_text_is_what_the_tokenizer_makes_of_all_tokens(runner: RunnerClient, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for answer in runner.run(*orders(6, temperature=1.5, max_tokens=200)):
        tokens = [token for token in answer.tokens if token != IM_END]
        assert answer.text == tokenizer.decode(tokens)


def test_the_end_token_ends_an_answer(folder: Path, tmp_path: Path, runner: RunnerClient) -> None:
    order = insert((1, 300))
    tokens = runner.run(insert((1, 300), max_tokens=10))[0].tokens
    end = next(token for token in tokens[3:] if token not in tokens[:3])
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [IM_END, end]}))
    with RunnerClient("mlx") as other:
        [answer] = other.load(copy).run(order)
    assert answer.tokens == tokens[: tokens.index(end) + 1]
    assert answer.finish_reason == "stop"
    # Its last token is no text, whatever it would be in another model.
    assert answer.rows[-1].deltas == ()


def test_a_stop_string_ends_an_answer(runner: RunnerClient) -> None:
    [whole] = runner.run(insert((1, 300), max_tokens=40))
    stop = whole.text[20:26]
    order = insert((1, 300), max_tokens=40, stop=(stop,))
    [answer] = runner.run(order)
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.finish_reason == "stop"
    assert len(answer.tokens) < 40


def test_only_the_bad_request_of_a_batch_fails(runner: RunnerClient) -> None:
    good = runner.run(*orders(2))
    bad = [insert(()), insert((1, 10**6)), insert((1, -1))]
    answers = runner.run(bad[0], *orders(2), bad[1], bad[2])
    assert said(answers[1:3]) == said(good)
    messages = [answers[index].error_message for index in (0, 3, 4)]
    assert messages[0] == "The prompt is empty."
    assert messages[1] == messages[2] == "A token id is not in the vocabulary of 1024."


def test_frames_carry_gauges(runner: RunnerClient) -> None:
    runner.heard.clear()
    runner.run(*orders(3, max_tokens=20))
    stats = [message.stats for message in runner.heard if hasattr(message, "stats")]
    assert max(gauge.batch for gauge in stats) == 3
    assert all(gauge.memory_bytes > 10**5 for gauge in stats)


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    weights = build_tiny_llama(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with RunnerClient("mlx") as other:
        other.send(Load(model_path=str(tmp_path)))
        assert other.listen_to_the_end() == 1
        failed = other.heard[-1]
        assert isinstance(failed, LoadFailed)
        assert "safetensors" in failed.message


def test_no_runner_outlives_its_node_even_in_a_long_native_call(tmp_path: Path) -> None:
    # A large model and MLX's own BLAS: one piece of these prompts takes many seconds.
    model = build_tiny_llama(tmp_path / "model", hidden=1024, layers=4)
    with RunnerClient("mlx", blas="none") as other:
        other.load(model).send(*(insert([5] * 500, max_tokens=9) for _ in range(8)))
        time.sleep(1)
        other.hang_up()
        began = time.monotonic()
        other.process.wait(10)
        assert time.monotonic() - began < 1


def test_a_blas_that_is_not_there_is_named() -> None:
    with RunnerClient("mlx", blas="/nowhere/libblas.so") as other:
        assert other.listen_to_the_end() == 1
        assert "/nowhere/libblas.so: no such file" in other.errors()
