"""`server.json` in the data folder: how the command line finds the server that runs there.

A hint, not a lock: a server that is killed leaves it behind, so a reader asks whether the
process still lives, and may still find nobody at the address. The log's own lock is what
keeps two servers apart.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

NAME = "server.json"


def _now() -> int:
    return time.time_ns() // 1000


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A running server.

    Attributes:
        url: where it can be reached from this machine, without a trailing slash.
        started_at: microseconds since the epoch.
    """

    url: str
    version: str
    pid: int = msgspec.field(default_factory=os.getpid)
    started_at: int = msgspec.field(default_factory=_now)


def local_url(host: str, port: int) -> str:
    """The address at which this machine reaches a server that listens on host and port."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write(home: Path, info: ServerInfo) -> Path:
    """Announce a server, in place of any announced before.

    Raises:
        OSError: the data folder cannot be written.
    """
    path = home / NAME
    draft = home / f".{NAME}.{info.pid}"
    draft.unlink(missing_ok=True)
    # The mode is given at creation: there is no moment at which another user can read it.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(info)) + b"\n")
    draft.replace(path)
    return path


def read(home: Path) -> ServerInfo | None:
    """The server last announced, alive or not; None where there is none, or none legible."""
    try:
        return msgspec.json.decode((home / NAME).read_bytes(), type=ServerInfo)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_stale(info: ServerInfo) -> bool:
    """Whether the process announced is gone.

    False is no proof that the server lives: its process id may be another's by now.
    """
    if info.pid <= 0:
        return True
    try:
        os.kill(info.pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # another user's, and alive
        return False
    return False


def running(home: Path) -> ServerInfo | None:
    """The server announced, unless its process is gone."""
    info = read(home)
    return None if info is None or is_stale(info) else info


def remove(home: Path, pid: int | None = None) -> None:
    """Take back an announcement, unless another server has made its own since.

    Args:
        pid: whose announcement; this process's if None.
    """
    info = read(home)
    if info is not None and info.pid == (os.getpid() if pid is None else pid):
        with contextlib.suppress(OSError):
            (home / NAME).unlink(missing_ok=True)
