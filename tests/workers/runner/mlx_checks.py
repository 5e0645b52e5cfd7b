"""Checks that need MLX, for a process of their own: `python -m tests.workers.runner.mlx_checks`.

Importing mlx-lm lowers limits of the process that does it. Each function whose name begins
with `check_` is a test in `test_mlx_checks.py`.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from domain.commands import Sampling
from tests.tiny_model import build_tiny_llama
from tests.workers.runner.client import Answer, insert
from tests.workers.runner.fakes import FakeNode
from workers.protocol import Load, LoadFailed, Shutdown
from workers.runner.loop import Loop
from workers.runner.mlx_engine import MlxEngine
from workers.runner.sampling import KeyedSampler, Sampler, greedy, key_word, nucleus, sampler


def distribution(size: int, spread: float, seed: int = 0) -> mx.array:
    """Log probabilities of one row."""
    scores = np.random.Generator(np.random.PCG64(seed)).standard_normal(size) * spread
    logits = mx.array(scores.astype(np.float32))
    return (logits - mx.logsumexp(logits))[None]


def draw(made: Sampler, scores: mx.array) -> int:
    """One token."""
    return int(np.array(made(scores))[0])


def draws(made: Sampler, count: int, spread: float = 1.0) -> list[int]:
    """So many draws, each from a distribution of its own."""
    return [draw(made, distribution(500, spread, index)) for index in range(count)]


def check_the_key_is_the_documented_one() -> None:
    # printf '%016x%08x' SEED CHOICE | xxd -r -p | sha256sum, of which the first 8 digits
    assert key_word(0, 0) == 0x15EC7BF0
    assert key_word(42, 0) == 0x4D7EE6DC
    assert key_word(-1, 1) == 0x5D48382E


def check_a_draw_is_the_categorical_one_under_its_key() -> None:
    sampling = Sampling(seed=42, temperature=0.5, max_tokens=10)
    scores = distribution(500, 2.0)
    key = mx.array([key_word(42, 3), 7], mx.uint32)
    expected = mx.random.categorical(scores.squeeze(0) / 0.5, key=key)
    assert KeyedSampler(sampling, 3, 7)(scores).tolist() == [expected.item()]


def check_a_row_draws_the_same_alone_in_company_and_after_a_resume() -> None:
    for top_p in (1.0, 0.9):
        sampling = Sampling(seed=-5, top_p=top_p, max_tokens=100)
        alone = draws(KeyedSampler(sampling, 0, 0), 40)
        mine, other = KeyedSampler(sampling, 0, 0), KeyedSampler(sampling, 1, 0)
        company = []
        for index in range(40):
            company.append(draw(mine, distribution(500, 1.0, index)))
            other(distribution(500, 1.0, index))
        assert company == alone
        resumed = KeyedSampler(sampling, 0, 17)
        rest = [draw(resumed, distribution(500, 1.0, index)) for index in range(17, 40)]
        assert rest == alone[17:]


def check_other_seeds_choices_and_places_draw_otherwise() -> None:
    def many(seed: int, choice: int, index: int) -> tuple[int, ...]:
        made = KeyedSampler(Sampling(seed=seed, max_tokens=9), choice, index)
        return tuple(draw(made, distribution(500, 1.0)) for _ in range(12))

    assert len({many(0, 0, 0), many(1, 0, 0), many(0, 1, 0), many(0, 0, 12), many(-1, 0, 0)}) == 5


def check_the_global_random_state_is_left_alone() -> None:
    mx.random.seed(3)
    before = np.array(mx.random.state[0]).tolist()  # type: ignore[index]
    draws(KeyedSampler(Sampling(seed=1, top_p=0.5, max_tokens=9), 0, 0), 5)
    assert np.array(mx.random.state[0]).tolist() == before  # type: ignore[index]


def check_temperature_zero_is_the_likeliest_token() -> None:
    made = sampler(Sampling(seed=1, temperature=0, top_p=0.1, max_tokens=9), 0, 0)
    # The same object for every row, which mlx-lm then calls once for all.
    assert made is greedy
    rows = mx.concatenate([distribution(50, 1.0, seed) for seed in range(4)])
    assert made(rows).tolist() == [int(row.argmax()) for row in np.array(rows)]


def check_draws_follow_the_distribution() -> None:
    scores = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
    made = KeyedSampler(Sampling(seed=9, max_tokens=9), 0, 0)
    seen = Counter(draw(made, scores) for _ in range(4000))
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert abs(seen[token] / 4000 - share) < 0.03
    # Squared and normalized again: temperature comes before top_p.
    made = KeyedSampler(Sampling(seed=9, temperature=0.5, top_p=0.9, max_tokens=9), 0, 0)
    seen = Counter(draw(made, scores) for _ in range(4000))
    assert set(seen) == {0, 1}
    assert abs(seen[0] / 4000 - 0.25 / 0.34) < 0.03


def check_top_p_keeps_the_likeliest_and_no_more() -> None:
    for size in (1, 2, 511, 512, 513, 5000):
        for spread in (0.01, 1.0, 8.0):
            for top_p in (1e-9, 0.1, 0.5, 0.95, 0.999):
                scores = distribution(size, spread, size).squeeze(0)
                kept = np.array(nucleus(scores, top_p)) > -np.inf
                chances = np.exp(np.array(scores, np.float64))
                chances /= chances.sum()
                assert kept.any()
                # The kept are enough, and without the least likely of them they are not.
                assert chances[kept].sum() >= top_p - 1e-5
                assert chances[chances > chances[kept].min()].sum() < top_p + 1e-5
                if not kept.all():
                    assert chances[kept].min() >= chances[~kept].max()


def check_equals_are_kept_together() -> None:
    scores = mx.array([1.0, 2.0, 2.0, 2.0, 0.0])
    assert (np.array(nucleus(scores, 0.3)) > -np.inf).tolist() == [False, True, True, True, False]


def _serve(engine: MlxEngine, folder: Path, orders: list[Any]) -> list[Answer]:
    """Run requests with an engine in this process."""
    node = FakeNode(Load(model_path=str(folder)), *orders)
    answers = {order.uid: Answer() for order in orders}

    class Node(FakeNode):
        def receive(self, timeout: float) -> Any:
            for frame in self.frames:
                for row in frame.rows:
                    answers[row.uid].take(row)
            self.heard.clear()
            over = all(answer.finish_reason for answer in answers.values())
            return Shutdown() if over else super().receive(timeout)

    node = Node(*node.script)
    Loop(engine, node, node.clock).run()
    return list(answers.values())


class _Failing(MlxEngine):
    """Fails in the middle of a step, when some rows have moved on and others have not."""

    def __init__(self, failing_steps: set[int], poison: int | None = None) -> None:
        super().__init__()
        self._failing_steps = failing_steps
        self._poison = poison
        self._steps = 0

    def step(self) -> Any:
        self._steps += 1
        moment = self._steps in self._failing_steps
        if moment or (self._poison in self._theirs and self._steps > 10):
            original = self._model

            def model(inputs: Any, cache: Any) -> Any:
                original(inputs, cache=cache)
                raise RuntimeError("[metal] out of memory")

            for batch in (self._generator._prompt_batch, self._generator._generation_batch):
                batch.model = model
        return super().step()


def check_an_exception_inside_a_step_costs_nobody_a_token() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = build_tiny_llama(Path(folder))
        values: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 4}, {"prompt": (5, 6, 7)}]

        def orders() -> list[Any]:
            return [insert(**{"max_tokens": 30, "stop": ("zq",), **value}) for value in values]

        whole = _serve(MlxEngine(), model, orders())
        again = _serve(_Failing({1, 16, 32}), model, orders())
        assert [(a.tokens, a.text) for a in again] == [(a.tokens, a.text) for a in whole]
        culprit = orders()
        answers = _serve(_Failing(set(), culprit[1].uid), model, culprit)
        assert [answers[i].tokens for i in (0, 2)] == [whole[i].tokens for i in (0, 2)]
        assert answers[1].error_message == "RuntimeError: [metal] out of memory"
        assert answers[1].tokens == whole[1].tokens[: len(answers[1].tokens)]


def _complaint(folder: Path, **values: Any) -> str:
    """Why a model cannot be loaded."""
    node = FakeNode(Load(model_path=str(folder), **values))
    assert Loop(MlxEngine(), node, node.clock).run() == 1
    failed = node.heard[-1]
    assert isinstance(failed, LoadFailed)
    return failed.message


def check_a_model_that_cannot_be_loaded_says_why() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert "is no model folder" in _complaint(folder)
        config = json.loads((build_tiny_llama(folder) / "config.json").read_text())
        assert "one rank" in _complaint(folder, world_size=2)
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 2048}))
        assert "shape" in _complaint(folder)
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "abacus"}))
        assert "abacus" in _complaint(folder)
        (folder / "tokenizer.json").write_text("{}")
        (folder / "config.json").write_text(json.dumps(config))
        assert _complaint(folder)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


def main() -> None:
    """Run all checks; print what each said, as one JSON object."""
    said: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            check()
        except Exception:
            said[name] = traceback.format_exc()
        else:
            said[name] = "passed"
    print(json.dumps(said))


if __name__ == "__main__":
    main()
