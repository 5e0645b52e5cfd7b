"""What the writer is asked to do, and what it says became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from infrastructure.event_store import LogUnavailable, Recorded, Snapshot
from infrastructure.sqlite.group import Prepared, Result


def promise() -> Future[Any]:
    """A future that its reader cannot cancel under the thread that fulfils it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class Submission:
    """One call's appends, and what became of them once they are delivered.

    Attributes:
        results: one for each append, unless there is an error.
        error: why nothing of the call was recorded.
    """

    def __init__(self, appends: Sequence[Prepared], future: asyncio.Future[list[Result]]) -> None:
        self.appends = appends
        self.future = future  # of its caller's event loop; not touched here
        self.size = sum(prepared.size for prepared in appends)
        self.results: list[Result] = []
        self.error: LogUnavailable | None = None


class Write:
    """Something else to write: a snapshot."""

    def __init__(self, version: int, snapshot: Snapshot) -> None:
        self.version = version
        self.snapshot = snapshot
        self.done: Future[None] = promise()


class Batch(msgspec.Struct, frozen=True):
    """What became of a group: its events, if it was committed, and its submissions."""

    recorded: Sequence[Recorded]
    submissions: Sequence[Submission]


class Stop(msgspec.Struct, frozen=True):
    """Everything queued before this is finished first."""
