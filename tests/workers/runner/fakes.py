"""An engine whose every token depends on all that came before it, and a node to go with it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence

from domain.commands import Sampling
from workers.protocol import Committed, Down, Frame, Insert, Row, Stats, Up
from workers.runner.detokenizer import ByteDetokenizer, Detokenizer
from workers.runner.engine import Engine, Report, Request, RowError, Token

EOS = 0


def next_token(tokens: Sequence[int]) -> int:
    """What follows; a token lost or repeated changes everything after it."""
    digest = hashlib.sha256(repr(tuple(tokens)).encode()).digest()
    return 97 + digest[0] % 26


def answer(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """The whole answer to a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tuple(tokens[len(prompt) :])


class FakeEngine(Engine):
    """Runs rows one token a step, and fails where it is told to.

    Attributes:
        poison: by uid, the index of the answer's token at which a row makes its step fail.
        named: whether such a failure names its row.
        failing_steps: numbers of steps that fail once, through nobody's fault.
        refused: uids that cannot be inserted.
        log: all operations.
    """

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}
        self.known: dict[int, int] = {}
        self.poison: Mapping[int, int] = {}
        self.named = True
        self.failing_steps: set[int] = set()
        self.refused: set[int] = set()
        self.log: list[str] = []
        self.broken = False
        self.steps = 0
        self.load_error: Exception | None = None
        self.phases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "fake"

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    def load(
        self, model_path: str, rank: int, world_size: int, max_batch: int, report: Report
    ) -> None:
        report("Loaded", model_path)
        if self.load_error is not None:
            raise self.load_error

    def detokenizer(self) -> Detokenizer:
        return ByteDetokenizer({token: bytes([token]) for token in range(1, 256)})

    def insert(self, request: Request) -> None:
        assert not self.broken, "used after a failed step"
        if request.uid in self.refused:
            raise ValueError("not this one")
        self.log.append(f"insert {request.uid}")
        self.rows[request.uid] = list(request.tokens)
        self.known[request.uid] = request.known

    def remove(self, uid: int) -> None:
        self.log.append(f"remove {uid}")
        self.rows.pop(uid, None)

    def step(self) -> list[Token]:
        assert not self.broken, "used after a failed step"
        self.steps += 1
        made = []
        for uid, tokens in self.rows.items():
            if self.poison.get(uid) == self.known[uid]:
                # Rows before this one have moved on, and their tokens are lost.
                self.broken = True
                raise RowError(uid, "poison") if self.named else RuntimeError("poison")
            tokens.append(next_token(tokens))
            self.known[uid] += 1
            made.append(Token(uid, tokens[-1]))
        if self.steps in self.failing_steps:
            self.broken = True
            raise RuntimeError("a bad moment")
        return made

    def reset(self) -> None:
        self.log.append("reset")
        self.rows.clear()
        self.broken = False

    def stats(self) -> Stats:
        return Stats(batch=len(self.rows))

    def close(self) -> None:
        self.log.append("close")


class FakeNode:
    """Says what it was told to, and remembers what it hears. Time passes while it is silent.

    Attributes:
        script: messages to come; None is a moment without one.
        commits: whether it confirms frames at once.
    """

    def __init__(self, *script: Down | None, commits: bool = True) -> None:
        self.script = deque(script)
        self.commits = commits
        self.heard: list[Up] = []
        self.now = 0

    def clock(self) -> int:
        return self.now

    def receive(self, timeout: float) -> Down | None:
        message = self.script.popleft() if self.script else None
        if message is None:
            self.now += int(timeout * 1e9)
        return message

    def send(self, message: Up) -> None:
        self.heard.append(message)
        if isinstance(message, Frame) and self.commits:
            self.script.appendleft(Committed(step=message.step))

    @property
    def frames(self) -> list[Frame]:
        return [message for message in self.heard if isinstance(message, Frame)]

    def rows(self, uid: int) -> list[Row]:
        return [row for frame in self.frames for row in frame.rows if row.uid == uid]


def order(uid: int, prompt: Sequence[int] = (1,), max_tokens: int = 5, **values: object) -> Insert:
    """An Insert with what matters here."""
    sampling = Sampling(seed=0, max_tokens=max_tokens)
    return Insert(uid=uid, prompt=tuple(prompt), sampling=sampling, **values)  # type: ignore[arg-type]
