"""What a script's engines have to remember beyond the life of a process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Journal:
    """Requests by their number, and steps that happen only once.

    An append-only file of lines, under a lock whenever it is used: several runners may run
    the same script.
    """

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read = 0
        self._requests: dict[str, int] = {}
        self._done: set[str] = set()

    def number_of(self, request: str) -> int:
        """The number of a request, from 0; the next one if it was never seen."""
        if request not in self._requests:
            with self._locked():
                if request not in self._requests:
                    self._append("request", request)
        return self._requests[request]

    def first_time(self, step: str) -> bool:
        """Whether a step never happened before. It has happened now."""
        with self._locked():
            if step in self._done:
                return False
            self._append("done", step)
            return True

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            self._catch_up()
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _append(self, kind: str, name: str) -> None:
        # One write: a process that dies has written the whole line, or none of it.
        os.write(self._descriptor, f"{kind} {name}\n".encode())
        self._catch_up()

    def _catch_up(self) -> None:
        size = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, size - self._read, self._read)
        self._read += len(data)
        for line in data.decode().splitlines():
            kind, _, name = line.partition(" ")
            if kind == "request":
                self._requests.setdefault(name, len(self._requests))
            elif kind == "done":
                self._done.add(name)
