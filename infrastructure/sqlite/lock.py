"""One process to a log: an advisory lock that ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from infrastructure.event_store import LogInUse


class Lock:
    """A lock on a file next to the log, held until `release`.

    The file is never removed: a process that waits on a removed file and one that makes it
    anew would both hold the lock. Its existence says nothing.
    """

    def __init__(self, log: Path) -> None:
        """Take the lock.

        Raises:
            LogInUse: another process, or another store of this one, has it.
        """
        path = log.with_name(log.name + ".lock")
        # Not inherited by what this process starts, so no orphan keeps the log locked.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise LogInUse(
                f"{log} is in use by the process with id {owner}. Stop it first, or give this "
                "one a data folder of its own (INFERLOG_HOME)."
            ) from None
        except BaseException:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go. Doing so twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
