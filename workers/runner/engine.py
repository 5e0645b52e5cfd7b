"""The port behind which models run, shared by the MLX and the scripted engine.

An engine is a deterministic function of the operations done on it, in their order: it reads
no clock to decide what comes next and draws no randomness of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from domain.commands import Sampling
from workers.protocol import Stats
from workers.runner.detokenizer import Detokenizer

Report = Callable[[Literal["Loading", "Loaded", "WarmingUp"], str], None]
"""Told of each phase of a load, with some detail in words."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A row as the engine is given it.

    Attributes:
        task: names the request, the same in every attempt; empty if the node gave no name.
        tokens: the prompt and what is known of the answer; the row goes on after them.
        known: how many of `tokens` belong to the answer, so the index of the next one.
    """

    uid: int
    task: str
    choice: int
    tokens: tuple[int, ...]
    known: int
    sampling: Sampling

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens that were not generated."""
        return self.tokens[: len(self.tokens) - self.known]


class Token(NamedTuple):
    """One more token of a row."""

    uid: int
    token_id: int


class RowError(Exception):
    """A step failed, and it is known which row's fault it was."""

    def __init__(self, uid: int, message: str) -> None:
        super().__init__(message)
        self.uid = uid


class LoadError(Exception):
    """A model cannot be loaded, for the reason that the text gives the user."""


class Engine(ABC):
    """Runs many rows at once.

    Rows end when they are removed. An engine may stop working on a row that gave an
    end-of-answer token or all the tokens it may; whether a row has ended is for the loop to
    say, which removes it then.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What runs the models, with its version."""

    @abstractmethod
    def load(
        self, model_path: str, rank: int, world_size: int, max_batch: int, report: Report
    ) -> None:
        """Read a model's folder and get ready to decode.

        Raises:
            Exception: the model cannot be loaded; `LoadError` where the reason is known.
        """

    @property
    @abstractmethod
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer. They are not text."""

    @abstractmethod
    def detokenizer(self) -> Detokenizer:
        """A new detokenizer, at the start of a text."""

    @abstractmethod
    def insert(self, request: Request) -> None:
        """Add a row. It is decoded in some later step.

        Raises:
            Exception: this request cannot be run; the other rows are untouched.
        """

    @abstractmethod
    def remove(self, uid: int) -> None:
        """Drop a row. Unknown ones are ignored."""

    @abstractmethod
    def step(self) -> list[Token]:
        """Do a bounded piece of work: at most one more token for each row.

        Raises:
            RowError: one row's fault.
            Exception: nobody knows whose. After either, only `reset` may be called.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget all rows, in whatever state they are."""

    def evict(self, keep_bytes: int) -> None:  # noqa: B027 - not every engine has a cache
        """Free cached prompts down to this many bytes."""

    @abstractmethod
    def stats(self) -> Stats:
        """Gauges as of now."""

    def close(self) -> None:  # noqa: B027 - nor something to let go of
        """Let go of the model."""
