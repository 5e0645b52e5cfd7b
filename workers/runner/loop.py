"""The main loop: messages in, decode steps, frames out.

One turn reads what the node said, does one step of the engine, and sends one frame. A frame
that the node has no room for yet keeps the loop from decoding, and from nothing else.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol, assert_never

from workers.protocol import (
    CREDIT,
    Committed,
    Down,
    Evict,
    Frame,
    Insert,
    Load,
    LoadFailed,
    Progress,
    ProtocolError,
    Remove,
    Shutdown,
    Up,
)
from workers.runner.batch import Batch, describe
from workers.runner.engine import Engine, LoadError
from workers.runner.row import LONGEST_MESSAGE

SIGN_OF_LIFE = 1.0
"""Seconds after which the node hears of the loop although there is no news."""

_Phase = Literal["Loading", "Loaded", "WarmingUp", "Ready"]


class Peer(Protocol):
    """The node."""

    def receive(self, timeout: float) -> Down | None:
        """Its next message, waited for `timeout` seconds at most."""

    def send(self, message: Up) -> None:
        """Tell it something."""


class Loop:
    """Serves one node until it is told to end."""

    def __init__(
        self, engine: Engine, peer: Peer, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._engine = engine
        self._peer = peer
        self._clock = clock
        self._batch = Batch(engine, clock)
        self._loaded = False
        self._emits = True
        self._step = 0
        self._spoke = clock()
        self._uncommitted: deque[int] = deque()
        self._exit: int | None = None

    def run(self) -> int:
        """Serve; the process's exit status.

        Raises:
            ProtocolError: the node broke the protocol.
        """
        while True:
            self._listen()
            if self._exit is not None:
                return self._exit
            if self._may_decode():
                self._decode()
            if self._loaded and self._clock() - self._spoke >= SIGN_OF_LIFE * 1e9:
                self._progress("Ready")

    def _may_decode(self) -> bool:
        return not self._batch.idle and len(self._uncommitted) < CREDIT

    def _listen(self) -> None:
        """Do all that the node said; wait for it where there is nothing else to do."""
        timeout = 0.0 if self._may_decode() else SIGN_OF_LIFE
        while self._exit is None and (message := self._peer.receive(timeout)) is not None:
            self._obey(message)
            timeout = 0.0

    def _obey(self, message: Down) -> None:
        match message:
            case Load():
                self._load(message)
            case Insert():
                if not self._loaded:
                    raise ProtocolError("a row was inserted before a model was loaded")
                self._batch.insert(message)
            case Remove():
                self._batch.remove(message.uid)
            case Evict():
                self._engine.evict(message.keep_bytes)
            case Committed():
                while self._uncommitted and self._uncommitted[0] <= message.step:
                    self._uncommitted.popleft()
            case Shutdown():
                self._engine.close()
                self._exit = 0
            case _:
                assert_never(message)

    def _load(self, load: Load) -> None:
        if self._loaded:
            raise ProtocolError("a second model was to be loaded")
        self._progress("Loading")
        try:
            self._engine.load(
                load.model_path, load.rank, load.world_size, load.max_batch, self._progress
            )
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            message = str(error) if isinstance(error, LoadError) else describe(error)
            self._send(LoadFailed(message=message[:LONGEST_MESSAGE]))
            self._exit = 1
            return
        self._loaded = True
        self._emits = load.rank == 0  # the other ranks compute the same
        self._progress("Ready")

    def _decode(self) -> None:
        self._step += 1
        rows = self._batch.step()
        if rows and self._emits:
            self._send(Frame(step=self._step, rows=tuple(rows), stats=self._batch.stats()))
            self._uncommitted.append(self._step)

    def _progress(self, phase: _Phase, detail: str = "") -> None:
        self._step += 1
        self._send(Progress(phase=phase, step=self._step, detail=detail))

    def _send(self, message: Up) -> None:
        self._peer.send(message)
        self._spoke = self._clock()
