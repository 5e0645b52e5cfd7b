"""From a GGUF file to a model folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from tests.workers.models import samples
from workers.models import gguf_loader
from workers.models.errors import ModelInvalid, ModelUnsupported
from workers.models.folder import check_folder
from workers.models.gguf_file import SERVED
from workers.models.messages import DType, Progress, ignore

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.0": "model.layers.0",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(
    tmp_path: Path, dtype: DType = "float32", **options: Any
) -> tuple[Path, samples.Arrays]:
    """Write a sample and convert it; the folder, and the right numbers by mlx-lm's names."""
    expected = samples.write(tmp_path / "model.gguf", **options)
    folder = tmp_path / "folder"
    folder.mkdir()
    gguf_loader.convert(tmp_path / "model.gguf", folder, dtype, ignore)
    return folder, {mlx_name(name): array for name, array in expected.items()}


def mlx_name(name: str) -> str:
    """mlx-lm's name of a GGUF tensor, from the table above."""
    *block, part, weight = name.rsplit(".", 2) if name.startswith("blk") else name.split(".")
    return ".".join([*(NAMES[b] for b in block), NAMES[part], weight])


def weights(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of a folder's weight files."""
    found: dict[str, npt.NDArray[Any]] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        found |= load_file(file)
    return found


@pytest.mark.parametrize("encoding", SERVED)
def test_every_encoding_becomes_what_the_reference_dequantizes(
    tmp_path: Path, encoding: str
) -> None:
    folder, expected = convert(tmp_path, encoding=encoding)
    found = weights(folder)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    check_folder(folder)


def test_float16_is_the_same_numbers_rounded(tmp_path: Path) -> None:
    folder, expected = convert(tmp_path, dtype="float16", encoding="Q4_1")
    for name, array in weights(folder).items():
        np.testing.assert_array_equal(array, expected[name].astype(np.float16), strict=True)


def test_a_number_beyond_float16_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match=r"token_embd\.weight does not fit float16"):
        convert(tmp_path, dtype="float16", scale=1e6)


def test_the_config_says_what_mlx_lm_needs(tmp_path: Path) -> None:
    folder, _ = convert(tmp_path, encoding="Q8_0")
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["rope_traditional"] is True
    assert config["rope_theta"] == 10000.0
    assert config["rope_scaling"] is None
    assert config["tie_word_embeddings"] is True
    assert config["hidden_size"] == samples.HIDDEN
    assert config["num_attention_heads"] == samples.HEADS
    assert config["num_key_value_heads"] == samples.KV_HEADS
    assert config["head_dim"] == samples.HEAD_SIZE
    assert config["max_position_embeddings"] == samples.CONTEXT
    assert config["vocab_size"] == len(samples.TOKENS)
    assert np.float32(config["rms_norm_eps"]) == np.float32(1e-5)
    assert config["eos_token_id"] == [2]
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2]


def test_a_head_of_its_own_is_kept(tmp_path: Path) -> None:
    folder, expected = convert(tmp_path, tied=False)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    np.testing.assert_array_equal(weights(folder)["lm_head.weight"], expected["lm_head.weight"])


def test_large_models_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_loader, "SHARD_BYTES", 30_000)
    folder, expected = convert(tmp_path, encoding="Q4_0")
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    found = weights(folder)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    check_folder(folder)
    (folder / files[1]).unlink()
    with pytest.raises(ModelInvalid, match=files[1]):
        check_folder(folder)


def test_progress_grows_to_the_size_of_the_weights(tmp_path: Path) -> None:
    samples.write(tmp_path / "model.gguf")
    seen: list[Progress] = []
    gguf_loader.convert(tmp_path / "model.gguf", tmp_path, "float32", seen.append)
    done = [step.done_bytes for step in seen]
    assert done == sorted(done)
    total = sum(array.nbytes for array in weights(tmp_path).values())
    assert (done[-1], {step.total_bytes for step in seen}) == (total, {total})


def test_another_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="its architecture is qwen3; only llama"):
        convert(tmp_path, architecture="qwen3", encoding="Q5_0")


def test_an_unserved_encoding_leaves_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="Q5_1"):
        convert(tmp_path, encoding="Q5_1")
    assert list((tmp_path / "folder").iterdir()) == []


def test_tensors_that_do_not_make_a_llama_are_named(tmp_path: Path) -> None:
    def without(name: str) -> dict[str, Any]:
        return {key: shape for key, shape in samples.shapes().items() if key != name}

    path = tmp_path / "model.gguf"
    cases: list[tuple[dict[str, Any], str]] = [
        (without("token_embd.weight"), "token_embd.weight is missing"),
        (without("blk.0.attn_k.weight"), "blk.0.attn_k.weight is missing"),
        (without("output_norm.weight"), "output_norm.weight is missing"),
        (samples.shapes() | {"blk.0.attn_q.weight": (32, 64)}, "blk.0.attn_q.weight is (32, 64)"),
        (samples.shapes() | {"blk.0.attn_q.bias": (64,)}, "blk.0.attn_q.bias has no place"),
        (samples.shapes() | {"blk.1.attn_q.weight": (64, 64)}, "blk.1.attn_q.weight has no place"),
    ]
    for tensors, message in cases:
        samples.write(path, tensors=tensors)
        with pytest.raises((ModelInvalid, ModelUnsupported)) as raised:
            gguf_loader.convert(path, tmp_path, "float32", ignore)
        assert message in str(raised.value)


def test_one_part_of_a_split_file_says_how_to_join_it(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="llama-gguf-split --merge"):
        convert(tmp_path, more=lambda writer: writer.add_uint16("split.count", 2))


def test_llama_3_scaling_is_found_again_in_its_factors(tmp_path: Path) -> None:
    factors = np.array([llama3_factor(i, theta=500000.0) for i in range(8)], np.float32)

    def more(writer: Any) -> None:
        writer.add_rope_freq_base(500000.0)
        writer.add_tensor("rope_freqs.weight", factors)

    folder, _ = convert(tmp_path, more=more)
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in weights(folder)


def llama3_factor(index: int, theta: float, factor: float = 32.0) -> float:
    """As llama.cpp computes it when it writes a GGUF."""
    wavelength = 2 * math.pi * theta ** (2 * index / samples.HEAD_SIZE)
    if wavelength < 8192 / 4.0:
        return 1.0
    if wavelength > 8192 / 1.0:
        return factor
    smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    return float(1 / ((1 - smooth) / factor + smooth))


def test_other_ways_to_scale_positions(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"

    def scaling(kind: str, factor: float = 4.0) -> Any:
        def more(writer: Any) -> None:
            writer.add_string("llama.rope.scaling.type", kind)
            writer.add_float32("llama.rope.scaling.factor", factor)

        return more

    samples.write(path, more=scaling("linear"))
    gguf_loader.convert(path, tmp_path, "float32", ignore)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    samples.write(path, more=scaling("yarn"))
    with pytest.raises(ModelUnsupported, match="yarn"):
        gguf_loader.convert(path, tmp_path, "float32", ignore)
    ramp = np.linspace(1, 9, 8, dtype=np.float32)
    samples.write(path, more=lambda writer: writer.add_tensor("rope_freqs.weight", ramp))
    with pytest.raises(ModelUnsupported, match="not Llama 3's scaling"):
        gguf_loader.convert(path, tmp_path, "float32", ignore)


def test_more_tokens_than_embeddings_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="embeddings for 32"):
        convert(tmp_path, vocabulary=32)
