"""Draws that depend on the request alone: on its seed, the choice, and the token's index.

So a row gets the same noise alone, in any batch, and after a resume. Nothing here reads or
moves MLX's global random state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import mlx.core as mx

from domain.commands import Sampling

Sampler = Callable[[mx.array], mx.array]
"""Log probabilities, [rows, vocabulary], into token ids, [rows]."""

_LIKELIEST = 512
"""Tokens among which top_p looks first; sorting a whole vocabulary takes ten times as long."""


def greedy(logprobs: mx.array) -> mx.array:
    """The likeliest tokens. One object for all rows: mlx-lm then samples them in one go."""
    return mx.argmax(logprobs, axis=-1)


def sampler(sampling: Sampling, choice: int, index: int) -> Sampler:
    """A sampler for one row whose next token has this index in its choice."""
    if sampling.temperature == 0:
        return greedy
    return KeyedSampler(sampling, choice, index)


def key_word(seed: int, choice: int) -> int:
    """The first of a key's two 32-bit words; the second is the token's index."""
    data = seed.to_bytes(8, signed=True) + choice.to_bytes(4, signed=True)
    return int.from_bytes(hashlib.sha256(data).digest()[:4])


class KeyedSampler:
    """Draws the tokens of one row, one after the other.

    mlx-lm calls it once more than it uses; as each call has its index, that does no harm.
    """

    def __init__(self, sampling: Sampling, choice: int, index: int) -> None:
        self._word = key_word(sampling.seed, choice)
        self._index = index
        self._inverse_temperature = 1 / sampling.temperature
        self._top_p = sampling.top_p

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Draw the next token of the one row."""
        # Always one-dimensional: the same key gives other noise in another shape.
        scaled = logprobs.squeeze(0).astype(mx.float32) * self._inverse_temperature
        if self._top_p < 1:
            scaled = nucleus(scaled, self._top_p)
        key = mx.array([self._word, self._index & 0xFFFFFFFF], mx.uint32)
        self._index += 1
        return mx.random.categorical(scaled, key=key)[None]


def nucleus(scores: mx.array, top_p: float) -> mx.array:
    """Rule out all but the likeliest tokens that have `top_p` of the probability together.

    Args:
        scores: unnormalized log probabilities, [vocabulary].
        top_p: in (0, 1); the token that reaches it is kept, and so are its equals.
    """
    total = mx.logsumexp(scores)
    count = min(_LIKELIEST, scores.size)
    likeliest = mx.sort(mx.topk(scores, count))[::-1]
    masses = mx.cumsum(mx.exp(likeliest - total))
    # Looking at a value waits for the model's whole step, yet costs less than sorting.
    if count < scores.size and (masses[-1] < top_p).item():
        likeliest = mx.sort(scores)[::-1]
        masses = mx.cumsum(mx.exp(likeliest - total))
    # Kept are the first and all that come after less than top_p.
    kept = mx.minimum((masses < top_p).sum(), likeliest.size - 1)
    return mx.where(scores >= likeliest[kept], scores, -mx.inf)
