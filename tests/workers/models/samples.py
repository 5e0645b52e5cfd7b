"""Small GGUF files, written by the gguf package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import pre_tokenizers

HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_SIZE = 64, 96, 4, 2, 16
CONTEXT = 512
NORMAL, CONTROL = 1, 3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = [*SPECIAL, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{% endfor %}"
)

Arrays = dict[str, npt.NDArray[np.float32]]


def shapes(layers: int = 1, tied: bool = True, vocabulary: int = len(TOKENS)) -> dict[str, Any]:
    """A tiny llama's tensors and their shapes, by their names in GGUF."""
    block = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * HEAD_SIZE, HIDDEN),
        "attn_k": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "attn_v": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD_SIZE),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
    }
    found: dict[str, Any] = {"token_embd.weight": (vocabulary, HIDDEN)}
    for layer in range(layers):
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    found["output_norm.weight"] = (HIDDEN,)
    if not tied:
        found["output.weight"] = (vocabulary, HIDDEN)
    return found


def write(
    path: Path,
    *,
    encoding: str = "F32",
    architecture: str = "llama",
    layers: int = 1,
    tied: bool = True,
    tensors: Mapping[str, Any] | None = None,
    scale: float = 1.0,
    more: Callable[[Any], None] = lambda writer: None,
    tokenizer: Callable[[Any], None] | None = None,
    vocabulary: int = len(TOKENS),
) -> Arrays:
    """Write a tiny llama.

    Args:
        encoding: of the matrices; vectors stay whole.
        tensors: shapes in place of the usual ones.
        scale: the numbers' size.
        more: adds metadata or tensors to the writer.
        tokenizer: adds the tokenizer's metadata, in place of a byte-level one.

    Returns:
        Each tensor as the gguf package dequantizes it.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    (tokenizer or byte_level())(writer)
    kind = gguf.GGMLQuantizationType[encoding]
    random = np.random.default_rng(0)
    expected: Arrays = {}
    for name, shape in (tensors or shapes(layers, tied, vocabulary)).items():
        numbers = (random.standard_normal(shape) * scale).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, numbers)
            expected[name] = numbers
        else:
            data = gguf.quantize(numbers, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
            expected[name] = gguf.dequantize(data, kind)
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def byte_level(
    splits: str = "smollm",
    tokens: Iterable[str] = TOKENS,
    bos: bool | None = False,
    control: Collection[str] = SPECIAL,
) -> Callable[[Any], None]:
    """A byte-level tokenizer's metadata; `bos` None leaves its flag out."""

    def add(writer: Any) -> None:
        names = list(tokens)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(splits)
        writer.add_token_list(names)
        writer.add_token_types([CONTROL if name in control else NORMAL for name in names])
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        if bos is not None:
            writer.add_add_bos_token(bos)
        writer.add_chat_template(TEMPLATE)

    return add
