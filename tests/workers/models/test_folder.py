"""What a folder in mlx-lm's format says about itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from workers.models.digests import DigestCache
from workers.models.errors import ModelInvalid
from workers.models.folder import UNKNOWN_CONTEXT, describe
from workers.models.messages import PreparedModel, ignore


def described(tmp_path: Path, config: dict[str, Any], **files: Any) -> PreparedModel:
    """A folder of this config and these JSON files, described."""
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    content = {"tokenizer": {}, "config": {"model_type": "qwen3", "vocab_size": 9} | config}
    for name, value in (content | files).items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "model.safetensors").touch()
    return describe(folder, "id", DigestCache(tmp_path / "digests.json"), ignore)


def test_the_context_is_what_the_config_says_under_any_of_its_names(tmp_path: Path) -> None:
    assert described(tmp_path, {"max_position_embeddings": 4096}).context_length == 4096
    assert described(tmp_path, {"n_positions": 1024}).context_length == 1024
    within = {"text_config": {"max_position_embeddings": 8192, "vocab_size": 7}}
    assert described(tmp_path, within).context_length == 8192
    assert described(tmp_path, within).vocab_size == 7


def test_the_tokenizer_is_asked_where_the_config_is_silent(tmp_path: Path) -> None:
    model = described(tmp_path, {}, tokenizer_config={"model_max_length": 2048})
    assert model.context_length == 2048
    model = described(tmp_path, {}, tokenizer_config={"model_max_length": 1e30})
    assert model.context_length == UNKNOWN_CONTEXT


def test_a_config_without_a_vocabulary_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="names no vocab_size"):
        described(tmp_path, {"vocab_size": None})


def test_answers_end_as_mlx_lm_ends_them(tmp_path: Path) -> None:
    config = {"eos_token_id": 5}
    assert described(tmp_path, config).eos_token_ids == (5,)
    generation = {"eos_token_id": [7, 3]}
    model = described(tmp_path, config, generation_config=generation)
    assert model.eos_token_ids == (3, 7)
    generation = {}
    assert described(tmp_path, config, generation_config=generation).eos_token_ids == (5,)


def test_the_end_token_of_the_tokenizer_counts_where_no_id_is_given(tmp_path: Path) -> None:
    tokenizer = {"added_tokens": [{"id": 4, "content": "<a>"}, {"id": 8, "content": "</s>"}]}
    for eos_token in ("</s>", {"content": "</s>"}):
        settings = {"eos_token": eos_token}
        model = described(tmp_path, {}, tokenizer=tokenizer, tokenizer_config=settings)
        assert model.eos_token_ids == (8,)
    assert described(tmp_path, {}, tokenizer_config={}).eos_token_ids == ()


def test_quantization_is_told_in_words(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"quantization": {"bits": 4, "group_size": 64}}, "4-bit affine"),
        ({"quantization": {"bits": 4, "mode": "mxfp4"}}, "4-bit mxfp4"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({}, "none"),
    ]
    for config, words in cases:
        assert described(tmp_path, config).quantization == words


def test_the_chat_template_is_found_where_transformers_looks(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    assert described(tmp_path, {}).template_digest is None
    model = described(tmp_path, {}, tokenizer_config={"chat_template": "in config"})
    assert model.template_digest == digest("in config")
    (tmp_path / "folder" / "chat_template.jinja").write_text("in a file")
    assert described(tmp_path, {}).template_digest == digest("in a file")
