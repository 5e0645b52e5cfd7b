"""A node small enough for tests: one runner process and what it said."""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from domain.commands import Sampling
from domain.events import Content
from workers import protocol
from workers.protocol import (
    Committed,
    Down,
    Frame,
    Hello,
    Insert,
    Load,
    Progress,
    Row,
    Shutdown,
    Up,
)

ROOT = Path(__file__).parents[3]
_uids = itertools.count(1)


class Answer:
    """All that was said of one row."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = list(rows)

    def take(self, row: Row) -> None:
        """Add a row, which must follow the last one."""
        if self.rows:
            last = self.rows[-1]
            assert last.finish_reason is None, "a row went on after its end"
            assert row.first_index == last.first_index + len(last.token_ids)
            assert row.offset >= last.offset
        self.rows.append(row)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its token ids."""
        return tuple(token for row in self.rows for token in row.token_ids)

    @property
    def text(self) -> str:
        """Its text."""
        deltas = [delta for row in self.rows for delta in row.deltas]
        return "".join(delta.text for delta in deltas if isinstance(delta, Content))

    @property
    def finish_reason(self) -> str | None:
        """Why it is over, once it is."""
        return self.rows[-1].finish_reason if self.rows else None

    @property
    def error_message(self) -> str | None:
        """With which error it ended."""
        return self.rows[-1].error_message if self.rows else None


class RunnerClient:
    """A runner process.

    Args:
        commits: whether frames are confirmed as they come.

    Attributes:
        answers: by uid.
        heard: all messages.
    """

    def __init__(self, engine: str, *, commits: bool = True, blas: str = "") -> None:
        down_read, self._down = os.pipe()
        self._up, up_write = os.pipe()
        command = [sys.executable, "-m", "workers.runner", "--engine", engine, "--blas", blas]
        command += ["--fd-in", str(down_read), "--fd-out", str(up_write)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            pass_fds=(down_read, up_write),
            stdin=subprocess.DEVNULL,
            stderr=self._errors,
        )
        os.close(down_read)
        os.close(up_write)
        self.commits = commits
        self.heard: list[Up] = []
        self.answers: defaultdict[int, Answer] = defaultdict(Answer)

    def send(self, *messages: Down) -> None:
        """Say something to the runner."""
        data = memoryview(b"".join(map(protocol.pack, messages)))
        while data:
            data = data[os.write(self._down, data) :]

    def receive(self, timeout: float = 30) -> Up | None:
        """The runner's next message; None when it closed its side."""
        header = self._read(4, time.monotonic() + timeout)
        if len(header) < 4:
            return None
        body = self._read(protocol.length(header), time.monotonic() + timeout)
        message = protocol.unpack_up(body)
        self.heard.append(message)
        if isinstance(message, Frame):
            for row in message.rows:
                self.answers[row.uid].take(row)
            if self.commits:
                self.send(Committed(step=message.step))
        return message

    def _read(self, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            ready, _, _ = select.select([self._up], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the runner says nothing")
            if not (more := os.read(self._up, size - len(data))):
                break
            data += more
        return data

    def until(self, condition: Callable[[], bool], timeout: float = 60) -> None:
        """Listen until something is so."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.receive(deadline - time.monotonic()) is not None, self.errors()

    def load(self, path: Path | str = "", **values: Any) -> Self:
        """Load a model and wait until it is ready."""
        self.send(Load(model_path=str(path), **values))
        self.until(lambda: any(isinstance(m, Progress) and m.phase == "Ready" for m in self.heard))
        return self

    def run(self, *inserts: Insert, timeout: float = 60) -> list[Answer]:
        """Run requests to their ends."""
        self.send(*inserts)
        self.until(lambda: all(self.answers[i.uid].finish_reason for i in inserts), timeout)
        return [self.answers[insert.uid] for insert in inserts]

    def listen_to_the_end(self, timeout: float = 30) -> int:
        """Listen until the process is gone; its exit status, negative for a signal."""
        while self.receive(timeout) is not None:
            pass
        return self.process.wait(timeout)

    def hang_up(self) -> None:
        """Close the node's side, as its death does."""
        os.close(self._down)
        os.close(self._up)
        self._down = self._up = -1

    def shut_down(self) -> int:
        """End it in good order; its exit status."""
        self.send(Shutdown())
        return self.listen_to_the_end()

    def errors(self) -> str:
        """End it; all that it wrote to standard error."""
        self.process.kill()
        self.process.wait()
        self._errors.seek(0)
        return self._errors.read().decode()

    @property
    def hello(self) -> Hello:
        """Its first message."""
        assert isinstance(self.heard[0], Hello)
        return self.heard[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in (self._down, self._up):
            if descriptor >= 0:
                os.close(descriptor)
        self.process.kill()
        self.process.wait()
        self._errors.close()


def insert(
    prompt: Iterable[int] = (1,),
    *,
    max_tokens: int = 1000,
    seed: int = 0,
    temperature: float = 0.0,
    top_p: float = 1.0,
    **values: Any,
) -> Insert:
    """An order with an id of its own."""
    sampling = Sampling(seed=seed, temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    uid = next(_uids)
    fields: dict[str, Any] = {"uid": uid, "task": f"task-{uid}"} | values
    return Insert(prompt=tuple(prompt), sampling=sampling, **fields)


def write_script(file: Path, **script: Any) -> str:
    """Write a script; the name of the engine that runs it."""
    file.write_text(json.dumps(script))
    return f"scripted:{file}"
