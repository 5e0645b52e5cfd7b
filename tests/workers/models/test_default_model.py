"""The default model: made from its package, and computing what its makers' library does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.default_model import default_model, default_model_home
from workers.models.catalog import resolve
from workers.models.messages import PreparedModel
from workers.models.prepare import prepare

ROOT = Path(__file__).parents[3]
# From PyTorch in float32, through transformers.
TOKENS = [504, 3575, 282, 4649, 314]
TOP_FIVE = [
    (" Paris", 17.3713),
    (" the", 14.8886),
    (" London", 13.2450),
    (" Le", 13.0095),
    (" New", 12.9515),
]


@pytest.fixture(scope="module")
def model() -> PreparedModel:
    return default_model()


def test_it_is_described(model: PreparedModel) -> None:
    assert model.model_id == "smollm2-135m-instruct"
    assert model.context_length == 8192
    assert model.vocab_size == 49152
    assert model.eos_token_ids == (2,)
    assert model.architecture == "llama"
    assert model.template_digest is not None
    assert model.path.startswith(str(default_model_home().resolve()))


def test_the_digests_are_the_same_on_every_machine(model: PreparedModel) -> None:
    weights = "ea59da08fbbe1950b938161a67581f0babbccecb598a849d32a4cb6888fbb399"
    template = "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"
    assert (model.weights_digest, model.template_digest) == (weights, template)


def test_transformers_tokenizes_as_the_original_does(model: PreparedModel) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.path)
    assert tokenizer.encode("The capital of France is") == TOKENS
    assert tokenizer.decode(TOKENS) == "The capital of France is"
    question = [{"role": "user", "content": "What is 17 plus 25?"}]
    rendered = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
        "Hugging Face<|im_end|>\n<|im_start|>user\nWhat is 17 plus 25?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert len(tokenizer.encode(rendered, add_special_tokens=False)) == 40


def test_asking_again_takes_no_time(model: PreparedModel) -> None:
    start = time.perf_counter()
    assert prepare(resolve(None), default_model_home()) == model
    assert time.perf_counter() - start < 0.5


@pytest.mark.e2e
def test_the_logits_are_those_of_the_original(model: PreparedModel) -> None:
    code = """
import json, sys
from infrastructure import blas
blas.set_up()
import mlx.core as mx, mlx_lm
model, tokenizer = mlx_lm.load(sys.argv[1])
tokens = tokenizer.encode("The capital of France is")
logits = model(mx.array([tokens]))[0, -1]
best = mx.argsort(-logits)[:5].tolist()
print(json.dumps([tokens, [(tokenizer.decode([i]), logits[i].item()) for i in best]]))
"""
    command = [sys.executable, "-c", code, model.path]
    tokens, best = json.loads(subprocess.check_output(command, cwd=ROOT).splitlines()[-1])
    assert tokens == TOKENS
    assert [word for word, _ in best] == [word for word, _ in TOP_FIVE]
    assert [value for _, value in best] == pytest.approx([v for _, v in TOP_FIVE], abs=1e-3)


@pytest.mark.e2e
def test_kills_at_any_moment_leave_it_whole_or_absent(model: PreparedModel, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workers.models", "--home", str(tmp_path)]
    folder = tmp_path / "models" / model.model_id
    for seconds in (0.5, 1.0, 1.7):
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if folder.exists():
            assert prepare(resolve(None), tmp_path).weights_digest == model.weights_digest
    assert prepare(resolve(None), tmp_path).weights_digest == model.weights_digest
    left = {path.name for path in (tmp_path / "models").iterdir()}
    assert left == {model.model_id, f".{model.model_id}.lock", ".digests.json"}
