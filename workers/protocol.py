"""What a node and its runner processes say to each other.

A runner is started with `subprocess` and two inherited descriptors. Each message is a 4-byte
big-endian length and that many bytes of msgpack. The first message up is `Hello`. Neither
side imports MLX to speak this.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from domain.commands import Sampling
from domain.events import Delta, FinishReason, TokenLogprob

T = TypeVar("T")

VERSION = 1
MAX_MESSAGE = 64 * 1024 * 1024
"""Bytes; a longer message is a broken peer."""
CREDIT = 4
"""Frames that a runner may have sent and not yet seen committed."""


class Struct(msgspec.Struct, frozen=True, tag=True):
    """A message, told apart by its class name."""


# --- down: node to runner -------------------------------------------------------------


class Load(Struct, frozen=True, kw_only=True):
    """Read a model's folder. Answered by Progress, then Progress `ready` or LoadFailed."""

    model_path: str
    rank: int = 0
    world_size: int = 1
    max_batch: int = 32


class Insert(Struct, frozen=True, kw_only=True):
    """Run a request from its prompt, going on after what is logged already.

    Attributes:
        uid: names the row until it finishes; drawn by the node, never used twice.
        task: names the request, the same in every attempt. The scripted engine knows by it
            which script to go on with.
        prompt: token ids.
        logged: tokens of the answer that stand in the log. They are replayed through
            detokenizer and stop matcher, never sampled again.
        emitted: characters of text that stand in the log for those tokens; the replay gives
            at least these, and only what comes after them is sent up.
        sampling.max_tokens: of the whole answer, logged tokens included.
    """

    uid: int
    task: str = ""
    choice: int = 0
    prompt: tuple[int, ...]
    logged: tuple[int, ...] = ()
    emitted: int = 0
    sampling: Sampling
    stop: tuple[str, ...] = ()


class Remove(Struct, frozen=True, kw_only=True):
    """Drop a row; no more frames carry it once this was read."""

    uid: int


class Evict(Struct, frozen=True, kw_only=True):
    """Free cached prompts down to this many bytes."""

    keep_bytes: int = 0


class Shutdown(Struct, frozen=True, kw_only=True):
    """End in good order."""


class Committed(Struct, frozen=True, kw_only=True):
    """Frames up to this step are in the log: credit for as many more."""

    step: int


Down = Load | Insert | Remove | Evict | Shutdown | Committed


# --- up: runner to node ---------------------------------------------------------------


class Hello(Struct, frozen=True, kw_only=True):
    """First message: who speaks, and which version of this protocol."""

    version: int
    pid: int
    engine: str
    """Such as `mlx 0.32.4, mlx-lm 0.32.2`, or `scripted`."""


class Progress(Struct, frozen=True, kw_only=True):
    """The runner moved on, or is still at work.

    Attributes:
        phase: the runner's status.
        step: the main loop's counter; it standing still is a stall.
    """

    phase: Literal["Connecting", "Connected", "Loading", "Loaded", "WarmingUp", "Ready"]
    step: int = 0
    detail: str = ""


class LoadFailed(Struct, frozen=True, kw_only=True):
    """The model cannot be loaded; trying again would fail the same way."""

    message: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request's share of a decode step.

    Attributes:
        first_index: index of the first of `token_ids` within its choice.
        finish_reason: the row is over and gone from the batch.
        error_message: with finish_reason `error`.
        offset: microseconds since the runner began the attempt, its monotonic clock.
    """

    uid: int
    choice: int = 0
    first_index: int
    token_ids: tuple[int, ...] = ()
    deltas: tuple[Delta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    error_message: str | None = None
    offset: int = 0


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's gauges at a step."""

    batch: int = 0
    waiting: int = 0
    """Rows inserted and not yet decoding."""
    memory_bytes: int = 0


class Frame(Struct, frozen=True, kw_only=True):
    """One decode step: all its rows at once."""

    step: int
    rows: tuple[Row, ...]
    stats: Stats


Up = Hello | Progress | LoadFailed | Frame


class ProtocolError(Exception):
    """The other side sent something that is not this protocol."""


_encoder = msgspec.msgpack.Encoder()
_down = msgspec.msgpack.Decoder(Down)
_up = msgspec.msgpack.Decoder(Up)


def pack(message: Down | Up) -> bytes:
    """A message with its length in front."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4) + body


def length(header: bytes) -> int:
    """The length that a 4-byte header names.

    Raises:
        ProtocolError: it is longer than `MAX_MESSAGE`.
    """
    size = int.from_bytes(header)
    if size > MAX_MESSAGE:
        raise ProtocolError(f"a message of {size} bytes; at most {MAX_MESSAGE} are allowed")
    return size


def unpack_down(body: bytes) -> Down:
    """Decode a message from the node."""
    return _decode(_down, body)


def unpack_up(body: bytes) -> Up:
    """Decode a message from a runner."""
    return _decode(_up, body)


def _decode(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a message of this protocol: {error}") from error
