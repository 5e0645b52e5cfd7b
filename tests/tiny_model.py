"""A tiny random llama, as the folder that mlx-lm and transformers read.

It answers nonsense, but always the same nonsense, in milliseconds and without a download.
Nothing here imports MLX, so a test process may build it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

END_OF_TEXT, IM_START, IM_END = 0, 1, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special tokens in the order of their ids; `IM_END` ends an answer."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TEXT = (
    "user assistant system the of and to in is that it for you was with on as are this be at "
    "have from or one had by but not what all were when we there can an your which their said "
    "if do will each about how up out them then she many some so these would other into has "
    "more her two like him see time could no make than first been its who now people my made "
    "over did down only way find use may water long little very after words called just where "
    "most know Hello World Paris France capital List three colours What plus"
)


def build_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    vocab_size: int = 1024,
    hidden: int = 64,
    layers: int = 2,
    context: int = 2048,
) -> Path:
    """Write a random llama into a folder, which is made if it is missing; give the folder.

    The same arguments give the same weights. With a vocabulary of 49,152 it stands in for
    a real model where only the server's own cost is of interest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": vocab_size,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(_weights(config, seed), folder / "model.safetensors", metadata={"format": "mlx"})
    tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[IM_START],
        "eos_token": SPECIAL[IM_END],
        "pad_token": SPECIAL[END_OF_TEXT],
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=2))
    return folder


def tokenizer(vocab_size: int = 1024) -> Tokenizer:
    """Byte-level BPE: the special tokens, all bytes, common words, then runs of letters."""
    vocab = {token: index for index, token in enumerate(SPECIAL)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[symbol] = len(vocab)
    if vocab_size < len(vocab):
        raise ValueError(f"at least {len(vocab)} tokens, for every text to have some")
    merges: list[tuple[str, str]] = []
    for left, right in _merges():
        if len(vocab) == vocab_size:
            break
        if left + right not in vocab:
            merges.append((left, right))
            vocab[left + right] = len(vocab)
    made = Tokenizer(BPE(vocab=vocab, merges=merges))
    # Without a regular expression a word keeps the space in front of it, as in GPT-2.
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    return made


def _merges() -> Iterator[tuple[str, str]]:
    for word in _TEXT.split():
        for spelled in ("Ġ" + word, word):
            for end in range(1, len(spelled)):
                yield spelled[:end], spelled[end]
    pairs = [left + right for left, right in product(ascii_lowercase, repeat=2)]
    yield from ((pair[0], pair[1]) for pair in pairs)
    yield from product(pairs, ascii_lowercase)
    yield from islice(product(pairs, pairs), 100_000)


def _weights(config: dict[str, Any], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Random, but scaled so that the context matters and the best token is a clear one."""
    draw = np.random.Generator(np.random.PCG64(seed))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    vocab = config["vocab_size"]

    def matrix(rows: int, columns: int, scale: float) -> np.ndarray[Any, Any]:
        return (draw.standard_normal((rows, columns)) * scale).astype(np.float32)

    made = {
        "model.embed_tokens.weight": matrix(vocab, hidden, 1.0),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": matrix(vocab, hidden, 3 * hidden**-0.5),
    }
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name, (rows, columns) in shapes.items():
            made[f"{prefix}.{name}.weight"] = matrix(rows, columns, 2 * columns**-0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}.{name}.weight"] = np.ones(hidden, np.float32)
    return made
