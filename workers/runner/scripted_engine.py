"""An engine that reads its answers, and its failures, from a script (see `script.py`).

It runs in a real runner process in place of MLX, for everything that has to be shown about
faults and load. Its tokens speak for themselves, so that any process can turn them into text:
a byte is its own value, a character 256 more than its code point, and longer pieces come after
the end-of-answer token in the order in which the file has them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from workers.protocol import Stats
from workers.runner.detokenizer import ByteDetokenizer, Detokenizer
from workers.runner.engine import Engine, LoadError, Report, Request, RowError, Token
from workers.runner.journal import Journal
from workers.runner.script import Script, Step, bytes_of, read_script, walk

CHARACTERS = 256
END = CHARACTERS + 0x110000
"""The end-of-answer token."""

_TICK = 0.02
"""Seconds that a step takes at most while all rows sleep, so that messages are heard."""


class ScriptedEngine(Engine):
    """Runs scripts.

    Args:
        file: the script. It is read when a model is loaded; the model's path does not matter.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._script = Script()
        self._pieces: dict[str, int] = {}
        self._table: Mapping[int, bytes] = {}
        self._journal: Journal | None = None
        self._rows: dict[int, _Performance] = {}
        self._max_batch = 1

    @property
    def name(self) -> str:
        """What it calls itself."""
        return "scripted"

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The one that ends every script."""
        return frozenset({END})

    def load(
        self, model_path: str, rank: int, world_size: int, max_batch: int, report: Report
    ) -> None:
        """Read the script and do what it says about loading."""
        self._script = read_script(self._file)
        pieces = (piece for step in self._script.all_steps() for piece in step.tokens or ())
        self._pieces = {piece: END + 1 + i for i, piece in enumerate(dict.fromkeys(pieces))}
        self._table = _Table(self._pieces)
        suffix = f".journal.{rank}" if rank else ".journal"
        self._journal = Journal(self._file.with_name(self._file.name + suffix))
        self._max_batch = max_batch
        for place, step in walk(self._script.load, "load"):
            if not self._is_due(place, step):
                continue
            if (why := step.raise_ or step.raise_batch) is not None:
                raise LoadError(why)
            if step.sleep is not None:
                time.sleep(step.sleep)
            report("Loading", step.text or " ".join(step.tokens or ()))
            _fail_natively(step)
        report("Loaded", "")

    def detokenizer(self) -> Detokenizer:
        """For this file's tokens."""
        return ByteDetokenizer(self._table)

    def insert(self, request: Request) -> None:
        """Begin or go on with a request's script."""
        if not request.prompt:
            raise ValueError("The prompt is empty.")
        assert self._journal is not None
        number = self._journal.number_of(_name(request))
        path, steps = self._script.of_request(number)
        self._rows[request.uid] = _Performance(self, request, path, steps)

    def remove(self, uid: int) -> None:
        """Drop a row."""
        self._rows.pop(uid, None)

    def step(self) -> list[Token]:
        """The next token of each row that does not sleep."""
        now = time.monotonic()
        rows = list(self._rows.values())[: self._max_batch]
        tokens = [
            Token(row.uid, token_id)
            for row in rows
            if row.sleeps_until <= now and (token_id := row.next()) is not None
        ]
        if not tokens and rows:
            due = min(row.sleeps_until for row in rows)
            time.sleep(max(0.0, min(due - time.monotonic(), _TICK)))
        return tokens

    def reset(self) -> None:
        """Forget all rows."""
        self._rows.clear()

    def stats(self) -> Stats:
        """How many rows there are."""
        batch = min(len(self._rows), self._max_batch)
        return Stats(batch=batch, waiting=len(self._rows) - batch)

    def perform(self, path: str, steps: tuple[Step, ...], uid: int, known: int) -> Iterator[_Cue]:
        """All that happens in a script after so many tokens."""
        said = 0
        for place, step in walk(steps, path):
            for token_id in self._tokens_of(step):
                said += 1
                if said > known:
                    yield token_id
            if said < known or not self._is_due(place, step):
                continue
            if step.raise_ is not None:
                raise RowError(uid, step.raise_)
            if step.raise_batch is not None:
                raise RuntimeError(step.raise_batch)
            if step.sleep is not None:
                yield step.sleep
            _fail_natively(step)
        while True:
            yield END

    def _tokens_of(self, step: Step) -> Iterator[int]:
        if step.text is not None:
            yield from (CHARACTERS + ord(character) for character in step.text)
        elif step.tokens is not None:
            yield from (self._pieces[piece] for piece in step.tokens)
        elif step.bytes is not None:
            yield from bytes_of(step.bytes)
        elif step.finish is not None:
            yield END

    def _is_due(self, place: str, step: Step) -> bool:
        assert self._journal is not None
        return not step.once or self._journal.first_time(place)


_Cue = int | float
"""A token, or seconds to sleep."""


class _Performance:
    """A row: where it is in its script."""

    def __init__(
        self, engine: ScriptedEngine, request: Request, path: str, steps: tuple[Step, ...]
    ) -> None:
        self.uid = request.uid
        self.sleeps_until = 0.0
        self._cues = engine.perform(path, steps, request.uid, request.known)

    def next(self) -> int | None:
        """Its next token, unless it falls asleep first."""
        cue = next(self._cues)
        if isinstance(cue, int):
            return cue
        self.sleeps_until = time.monotonic() + cue
        return None


class _Table(Mapping[int, bytes]):
    """The bytes of every token."""

    def __init__(self, pieces: Mapping[str, int]) -> None:
        self._pieces = {token_id: piece.encode() for piece, token_id in pieces.items()}

    def __getitem__(self, token_id: int) -> bytes:
        if token_id < CHARACTERS:
            return bytes([token_id])
        if token_id < END:
            # JSON can hold half a surrogate pair, which no UTF-8 can.
            return chr(token_id - CHARACTERS).encode(errors="replace")
        return self._pieces[token_id]

    def __iter__(self) -> Iterator[int]:
        yield from range(END)
        yield from self._pieces

    def __len__(self) -> int:
        return END + len(self._pieces)


def _name(request: Request) -> str:
    """A name that stays the same when the request is tried again."""
    if request.task:
        return f"{request.task}/{request.choice}"
    asked = repr((request.prompt, request.sampling.seed, request.choice))
    return hashlib.sha256(asked.encode()).hexdigest()


def _fail_natively(step: Step) -> None:
    if step.stall is not None:
        time.sleep(step.stall)
    if step.hang:
        _hang()
    if step.exit is not None:
        os._exit(step.exit)
    if step.crash is not None:
        _CRASHES[step.crash]()


_CRASHES: Mapping[str, Callable[[], object]] = {
    "abort": os.abort,
    "segv": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
