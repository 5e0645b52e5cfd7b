"""What preparing a model says while it runs and at its end: one JSON line a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

DType = Literal["float32", "float16"]
"""What quantized GGUF weights become: float32 is fastest on a CPU, float16 fits a GPU."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far the work is.

    Attributes:
        done_bytes: never shrinks within a phase, except where a broken transfer starts anew.
        total_bytes: of the phase.
    """

    phase: Literal["downloading", "converting", "hashing"]
    done_bytes: int
    total_bytes: int


class PreparedModel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A model folder that a runner can load, and what identifies it.

    Attributes:
        path: the folder, absolute.
        weights_digest: SHA-256, in hex, of the weight files one after another in the order
            of their names: `cat model*.safetensors | sha256sum`.
        tokenizer_digest: the same over the tokenizer's files.
        template_digest: SHA-256, in hex, of the chat template's UTF-8 text; None where the
            model has no template and so cannot chat.
        context_length: tokens of prompt and answer together.
        eos_token_ids: any of these ends an answer.
        architecture: mlx-lm's name for it, such as `llama`.
        quantization: for people, such as `Q4_1, Q8_0 as float32` or `4-bit affine`.
        size_bytes: of the weight files.
    """

    model_id: str
    path: str
    weights_digest: str
    tokenizer_digest: str
    template_digest: str | None
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    architecture: str
    quantization: str
    size_bytes: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model cannot be prepared; see `workers.models.errors` for the codes."""

    code: str
    message: str


Message = Progress | PreparedModel | Failed
OnProgress = Callable[[Progress], None]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """A message as one line."""
    return _encoder.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """A message from its line.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(line)


def ignore(progress: Progress) -> None:
    """Report progress to nobody."""
