"""Turn a GGUF file of the llama architecture into a folder that mlx-lm loads.

Weights are dequantized: MLX's quantized kernels on a CPU are slower than float32 with a good
BLAS, and one written form serves every machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from workers.models.errors import ModelInvalid, ModelUnsupported
from workers.models.gguf_file import GgufFile
from workers.models.gguf_tokenizer import GgufTokenizer
from workers.models.messages import DType, OnProgress, Progress

SHARD_BYTES = 1 << 30
"""A weight file's size at most, unless one tensor alone is larger: bounds the memory used."""

_ROPE_FACTORS = "rope_freqs.weight"


class Llama:
    """What a llama GGUF says about the model's shape.

    Attributes:
        heads: attention heads; `kv_heads` of them have keys and values of their own.
        context_length: tokens.

    Raises:
        ModelUnsupported: another architecture, or a kind of llama that is not served.
        ModelInvalid: metadata is missing or contradicts itself.
    """

    def __init__(self, file: GgufFile) -> None:
        architecture = file.text("general.architecture")
        if architecture != "llama":
            raise ModelUnsupported(
                f"{file.path}: its architecture is {architecture}; only llama is served from GGUF"
            )
        if file.integer("split.count", 1) > 1:
            raise ModelUnsupported(
                f"{file.path} is one part of a split model; "
                "join the parts with `llama-gguf-split --merge` first"
            )
        self._file = file
        self.layers = file.integer("llama.block_count")
        self.hidden = file.integer("llama.embedding_length")
        self.feed_forward = file.integer("llama.feed_forward_length")
        self.heads = file.integer("llama.attention.head_count")
        self.kv_heads = file.integer("llama.attention.head_count_kv", self.heads)
        self.context_length = file.integer("llama.context_length")
        if min(self.layers, self.hidden, self.heads, self.kv_heads, self.context_length) < 1:
            raise ModelInvalid(f"{file.path}: a size in its metadata is not positive")
        self.head_size = file.integer("llama.attention.key_length", self.hidden // self.heads)
        if file.integer("llama.rope.dimension_count", self.head_size) != self.head_size:
            raise ModelUnsupported(f"{file.path}: it rotates only a part of each head")
        if "token_embd.weight" not in file.tensors:
            raise ModelInvalid(f"{file.path}: tensor token_embd.weight is missing")
        self.vocabulary = file.tensors["token_embd.weight"].shape[0]
        self.tied = "output.weight" not in file.tensors

    def weights(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Each tensor's name in GGUF, its name in mlx-lm and its shape."""
        yield "token_embd.weight", "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        q_size, kv_size = self.heads * self.head_size, self.kv_heads * self.head_size
        block = [
            ("attn_norm", "input_layernorm", (self.hidden,)),
            ("attn_q", "self_attn.q_proj", (q_size, self.hidden)),
            ("attn_k", "self_attn.k_proj", (kv_size, self.hidden)),
            ("attn_v", "self_attn.v_proj", (kv_size, self.hidden)),
            ("attn_output", "self_attn.o_proj", (self.hidden, q_size)),
            ("ffn_norm", "post_attention_layernorm", (self.hidden,)),
            ("ffn_gate", "mlp.gate_proj", (self.feed_forward, self.hidden)),
            ("ffn_up", "mlp.up_proj", (self.feed_forward, self.hidden)),
            ("ffn_down", "mlp.down_proj", (self.hidden, self.feed_forward)),
        ]
        for layer in range(self.layers):
            for theirs, ours, shape in block:
                yield f"blk.{layer}.{theirs}.weight", f"model.layers.{layer}.{ours}.weight", shape
        yield "output_norm.weight", "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "output.weight", "lm_head.weight", (self.vocabulary, self.hidden)

    def check(self) -> None:
        """See that the file holds exactly the tensors of such a model.

        Raises:
            ModelInvalid: a tensor is missing, of the wrong shape or cut off.
            ModelUnsupported: a tensor is of another encoding, or has no place in this model.
        """
        path, rest = self._file.path, dict(self._file.tensors)
        rest.pop(_ROPE_FACTORS, None)
        for name, _, shape in self.weights():
            tensor = rest.pop(name, None)
            if tensor is None:
                raise ModelInvalid(f"{path}: tensor {name} is missing")
            if tensor.shape != shape:
                raise ModelInvalid(f"{path}: tensor {name} is {tensor.shape}, expected {shape}")
        if rest:
            raise ModelUnsupported(f"{path}: tensor {min(rest)} has no place in a plain llama")
        self._file.check_tensors()

    def config(self, tokenizer: GgufTokenizer, dtype: DType) -> dict[str, Any]:
        """mlx-lm's config.json."""
        file = self._file
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "intermediate_size": self.feed_forward,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "rms_norm_eps": file.number("llama.attention.layer_norm_rms_epsilon"),
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context_length,
            "rope_theta": file.number("llama.rope.freq_base", 10000.0),
            # GGUF keeps rows of q and k in the order of interleaved rotary embedding; without
            # this the answers are fluent nonsense.
            "rope_traditional": True,
            "rope_scaling": self._rope_scaling(),
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": list(tokenizer.eos_token_ids),
            "torch_dtype": dtype,
        }

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self._file.text("llama.rope.scaling.type", "none")
        if _ROPE_FACTORS in self._file.tensors:
            return self._llama3_scaling()
        if kind == "none":
            return None
        if kind == "linear":
            factor = self._file.number("llama.rope.scaling.factor")
            return {"rope_type": "linear", "factor": factor}
        raise ModelUnsupported(f"{self._file.path}: it scales its positions by {kind!r}")

    def _llama3_scaling(self) -> dict[str, Any]:
        """Llama 3's scaling, from the factors that GGUF stores in place of its settings."""
        self._file.check_tensors()
        stored = self._file.read(self._file.tensors[_ROPE_FACTORS])
        low, high, original, factor = 1.0, 4.0, 8192, float(stored.max())
        theta = self._file.number("llama.rope.freq_base", 10000.0)
        wavelength = 2 * math.pi * theta ** (np.arange(0, self.head_size, 2) / self.head_size)
        smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
        expected = 1 / ((1 - smooth) / factor + smooth)
        if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-4):
            raise ModelUnsupported(f"{self._file.path}: {_ROPE_FACTORS} is not Llama 3's scaling")
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }


def convert(path: Path, folder: Path, dtype: DType, progress: OnProgress) -> None:
    """Write an mlx-lm model folder from a GGUF file.

    Args:
        folder: exists and is empty.
        dtype: of the weights.

    Raises:
        ModelInvalid: the file is broken, incomplete or contradicts itself.
        ModelUnsupported: its architecture, a tensor's encoding or its tokenizer is not served.
        OSError: the folder cannot be written.
    """
    file = GgufFile(path)
    llama = Llama(file)
    llama.check()
    tokenizer = GgufTokenizer(file)
    if len(tokenizer.tokens) > llama.vocabulary:
        raise ModelInvalid(
            f"{path}: {len(tokenizer.tokens)} tokens, but embeddings for {llama.vocabulary}"
        )
    config = llama.config(tokenizer, dtype)
    config["gguf_types"] = _encodings(file)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    ends = {"eos_token_id": config["eos_token_id"], "bos_token_id": config["bos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2))
    tokenizer.write(folder, llama.context_length)
    _write_weights(file, llama, folder, dtype, progress)


def _encodings(file: GgufFile) -> str:
    """The encodings of the matrices, such as `Q4_1, Q8_0`; vectors are always whole."""
    return ", ".join(sorted({t.type_name for t in file.tensors.values() if len(t.shape) > 1}))


def _write_weights(
    file: GgufFile, llama: Llama, folder: Path, dtype: DType, progress: OnProgress
) -> None:
    item_bytes = np.dtype(dtype).itemsize
    shards: list[list[tuple[str, str, int]]] = []
    room = total = 0
    for theirs, ours, shape in llama.weights():
        size = math.prod(shape) * item_bytes
        if not shards or size > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append((theirs, ours, size))
        room -= size
        total += size
    done = 0
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        if len(shards) == 1:
            name = "model.safetensors"
        arrays = {}
        for theirs, ours, size in shard:
            arrays[ours] = _cast(file, theirs, dtype)
            index[ours] = name
            done += size
            progress(Progress(phase="converting", done_bytes=done, total_bytes=total))
        save_file(arrays, folder / name, metadata={"format": "mlx"})
        (folder / name).chmod(0o644)  # the library makes it its owner's alone
    if len(shards) > 1:
        content = {"metadata": {"total_size": total}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2))


def _cast(file: GgufFile, name: str, dtype: DType) -> npt.NDArray[np.floating[Any]]:
    floats = file.read(file.tensors[name])
    try:
        # Without a check, a number too large for float16 would become infinity.
        with np.errstate(over="raise"):
            return floats.astype(dtype, copy=False)
    except FloatingPointError as error:
        raise ModelUnsupported(f"{file.path}: tensor {name} does not fit {dtype}") from error
