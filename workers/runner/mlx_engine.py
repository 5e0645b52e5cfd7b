"""mlx-lm's BatchGenerator behind the engine's port.

The one module that knows its internals, which change from release to release: the versions of
mlx and mlx-lm are pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, load_tokenizer

from workers.protocol import Stats
from workers.runner.detokenizer import Detokenizer, detokenizers
from workers.runner.engine import Engine, LoadError, Report, Request, Token
from workers.runner.sampling import greedy, sampler

PREFILL_TOKENS = 512
"""Tokens of a prompt in one step; the other rows wait as long."""
PREFILL_ROWS = 8
"""Prompts in one step."""

_LOAD_BYTES = 1 << 28
"""Bytes of weights read between two reports."""


class MlxEngine(Engine):
    """Runs models with MLX. All of it belongs to the thread that made it: MLX's streams do."""

    def __init__(self) -> None:
        self._model: Any = None
        self._eos: frozenset[int] = frozenset()
        self._make_detokenizer: Callable[[], Detokenizer]
        self._vocabulary = 0
        self._max_batch = 1
        self._generator: Any = None
        self._theirs: dict[int, int] = {}  # the generator's ids of our rows
        self._ours: dict[int, int] = {}

    @property
    def name(self) -> str:
        """MLX and mlx-lm with their versions."""
        return f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """As the model's generation config, its config and its tokenizer say."""
        return self._eos

    def load(
        self, model_path: str, rank: int, world_size: int, max_batch: int, report: Report
    ) -> None:
        """Read an mlx-lm model folder and decode a first token."""
        if world_size != 1:
            raise LoadError(f"A model can run on one rank so far, not on {world_size}.")
        folder = Path(model_path)
        if not (folder / "config.json").is_file():
            raise LoadError(f"{folder} is no model folder: it has no config.json.")
        self._model, config = load_model(folder, lazy=True)
        if not all(hasattr(cache, "merge") for cache in make_prompt_cache(self._model)):
            kind = config.get("model_type")
            raise LoadError(f"Models of the type {kind} cannot run in batches, so not here.")
        if mx.default_device() == mx.cpu:
            # Half precision has no fast path on a CPU, and mixtures of experts have none at all.
            self._model.set_dtype(mx.float32)
        self._read_weights(report)
        tokenizer = load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
        self._eos = frozenset(tokenizer.eos_token_ids)
        self._make_detokenizer = detokenizers(tokenizer._tokenizer)
        self._max_batch = max_batch
        report("Loaded", "")
        report("WarmingUp", "")
        self._warm_up()

    def _read_weights(self, report: Report) -> None:
        """Bring the weights into memory piece by piece, so that progress shows."""
        weights: list[tuple[str, mx.array]] = []
        tree_flatten(self._model.parameters(), destination=weights)
        total = sum(array.nbytes for _, array in weights)
        done, piece = 0, 0
        for _, array in weights:
            mx.eval(array)
            piece += array.nbytes
            if piece >= _LOAD_BYTES:
                done, piece = done + piece, 0
                report("Loading", f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

    def _warm_up(self) -> None:
        self.reset()
        [uid] = self._generator.insert([[0, 0]], max_tokens=[1])
        responses: list[Any] = []
        while not responses:
            _, responses = self._generator.next()
        assert responses[0].uid == uid
        self._vocabulary = responses[0].logprobs.shape[-1]
        self.reset()

    def detokenizer(self) -> Detokenizer:
        """For this model's tokenizer."""
        return self._make_detokenizer()

    def insert(self, request: Request) -> None:
        """Queue a row; it is prefilled in the next steps."""
        if not request.prompt:
            raise ValueError("The prompt is empty.")
        # An id beyond the embeddings would read foreign memory.
        if min(request.tokens) < 0 or max(request.tokens) >= self._vocabulary:
            raise ValueError(f"A token id is not in the vocabulary of {self._vocabulary}.")
        [theirs] = self._generator.insert(
            [list(request.tokens)],
            max_tokens=[request.sampling.max_tokens - request.known],
            samplers=[sampler(request.sampling, request.choice, request.known)],
        )
        self._theirs[request.uid] = theirs
        self._ours[theirs] = request.uid

    def remove(self, uid: int) -> None:
        """Drop a row wherever it is."""
        theirs = self._theirs.pop(uid, None)
        if theirs is None:
            return
        del self._ours[theirs]
        self._generator.remove([theirs])
        if not self._theirs:
            # Nobody waits now, and what one batch needed the next may not.
            mx.clear_cache()

    def step(self) -> list[Token]:
        """One more token for the decoding rows, and a piece of some prompts."""
        _, responses = self._generator.next()
        return [Token(self._ours[response.uid], response.token) for response in responses]

    def reset(self) -> None:
        """Begin with a new generator: an exception leaves the old one's rows out of step."""
        if self._generator is not None:
            self._generator.close()
        self._theirs.clear()
        self._ours.clear()
        self._generator = BatchGenerator(
            self._model,
            stop_tokens=[[token_id] for token_id in sorted(self._eos)],
            sampler=greedy,
            completion_batch_size=self._max_batch,
            prefill_batch_size=min(PREFILL_ROWS, self._max_batch),
            prefill_step_size=PREFILL_TOKENS,
        )
        mx.clear_cache()

    def evict(self, keep_bytes: int) -> None:
        """There are no cached prompts yet; give back what MLX keeps for later."""
        mx.clear_cache()

    def stats(self) -> Stats:
        """Rows and memory, what MLX keeps for later included."""
        batch = len(self._generator._generation_batch)
        memory = mx.get_active_memory() + mx.get_cache_memory()
        return Stats(batch=batch, waiting=len(self._theirs) - batch, memory_bytes=memory)

    def close(self) -> None:
        """Let go of the batch and what it has wired down."""
        if self._generator is not None:
            self._generator.close()
