"""The one thread that writes to the log: it commits in groups and mends what broke.

Synchronous SQLAlchemy in a thread of its own costs a quarter of the asynchronous facade, and
whatever queued while one group committed makes up the next one.

When a commit fails (disk full, I/O error) the writer forgets everything it held in memory,
refuses appends with the reason, and tries again by itself. An append whose commit may or may
not have reached the disk waits for the answer: it is found by reading the log's head anew.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from infrastructure.event_store import LogUnavailable, StoreError
from infrastructure.sqlite.failures import certainly_failed, reason_of
from infrastructure.sqlite.file import LogFile
from infrastructure.sqlite.group import Group, StreamHead, Tip
from infrastructure.sqlite.jobs import Batch, Stop, Submission, Write, promise

log = logging.getLogger(__name__)

MAX_GROUP = 2000
"""Appends in one transaction, at most (a single call's appends always share one)."""

MAX_GROUP_BYTES = 8 << 20
"""Bytes in one transaction, unless a single call has more."""

STREAMS_IN_MEMORY = 10_000
FIRST_RETRY = 0.1
LAST_RETRY = 2.0
"""Seconds between two tries to mend a broken log; doubled from the first to the last."""


class Writer:
    """Owns the log's file from `start` to `stop`.

    Attributes:
        unavailable: why the log cannot be written now, or None.
    """

    def __init__(
        self, path: Path, clock: Callable[[], int], deliver: Callable[[Batch], None]
    ) -> None:
        """Set up a writer.

        Args:
            deliver: called from the writer's thread with every group, in the log's order.
        """
        self.unavailable: str | None = None
        self._file = LogFile(path)
        self._path = path
        self._clock = clock
        self._deliver = deliver
        self._jobs: queue.SimpleQueue[Submission | Write | Stop] = queue.SimpleQueue()
        self._heads: OrderedDict[str, StreamHead] = OrderedDict()
        self._tip: Tip
        self._unsettled: tuple[Group, list[Submission]] | None = None
        self._retry = FIRST_RETRY
        self._next_try = 0.0
        self._opened: Future[Tip] = promise()
        self._drained: Future[None] = promise()
        self._readers_gone = threading.Event()
        self._released: Future[None] = promise()
        # A process that ends without closing the log need not wait for it: what was
        # acknowledged is on the disk.
        self._thread = threading.Thread(target=self._run, name="inferlog-writer", daemon=True)

    def start(self) -> Future[Tip]:
        """Open the log; the future tells where it stands."""
        self._thread.start()
        return self._opened

    def submit(self, job: Submission | Write) -> None:
        """Queue something to write."""
        self._jobs.put(job)

    def drain(self) -> Future[None]:
        """Finish what is queued; nothing may be submitted any more."""
        self._jobs.put(Stop())
        return self._drained

    def release(self) -> Future[None]:
        """After `drain`, and with all readers closed: checkpoint and close the file."""
        self._readers_gone.set()
        return self._released

    def _run(self) -> None:
        try:
            self._file.acquire()
            self._tip = self._file.open()
        except BaseException as error:
            self._let_go()
            self._opened.set_exception(error)
            return
        self._opened.set_result(self._tip)
        while self._turn():
            pass
        self._give_up_unsettled()
        self._drained.set_result(None)
        self._readers_gone.wait()
        try:
            if self.unavailable is None:
                self._file.checkpoint()
        except Exception as error:
            log.warning("the log was closed without a checkpoint: %s", reason_of(error))
        self._let_go()

    def _let_go(self) -> None:
        self._file.close()
        self._file.release()
        self._released.set_result(None)

    def _turn(self) -> bool:
        """Write what is queued, or wait for it. False once everything is done."""
        submissions, other = self._take()
        stop = isinstance(other, Stop)
        if self.unavailable is not None:
            # While nothing waits there is time to mend; else at most once in a while.
            due = stop or not submissions or time.monotonic() >= self._next_try
            if due:
                self._mend()
        if submissions:
            if self.unavailable is None:
                self._commit(submissions)
            else:
                self._refuse(submissions, self.unavailable)
        if isinstance(other, Write):
            self._write(other)
        return not stop

    def _take(self) -> tuple[list[Submission], Write | Stop | None]:
        """Submissions up to a group's limit, or to the first job of another kind."""
        submissions: list[Submission] = []
        room, bytes_left = MAX_GROUP, MAX_GROUP_BYTES
        wait = None if self.unavailable is None else max(0.0, self._next_try - time.monotonic())
        try:
            job = self._jobs.get(timeout=wait)
            while isinstance(job, Submission):
                submissions.append(job)
                room -= len(job.appends)
                bytes_left -= job.size
                if room <= 0 or bytes_left <= 0:
                    return submissions, None
                job = self._jobs.get_nowait()
        except queue.Empty:
            return submissions, None
        return submissions, job

    def _commit(self, submissions: list[Submission]) -> None:
        group: Group | None = None
        committing = False
        durable = any(prepared.append.durable for call in submissions for prepared in call.appends)
        try:
            with self._file.begin(durable=durable) as transaction:
                group = self._decide(submissions)
                if group.recorded:
                    self._file.write(group)
                    committing = True
                else:
                    transaction.rollback()
        except Exception as error:
            self._broke(error)
            if group is not None and committing and not certainly_failed(error):
                self._unsettled = (group, submissions)
            else:
                self._refuse(submissions, reason_of(error))
            self._mend()
            return
        self._keep(group)
        self._deliver(Batch(group.recorded, submissions))

    def _decide(self, submissions: Sequence[Submission]) -> Group:
        appends = [prepared.append for call in submissions for prepared in call.appends]
        unknown = {a.stream for a in appends if a.stream not in self._heads}
        heads: dict[str, StreamHead] = dict(self._file.heads(unknown)) if unknown else {}
        for append in appends:
            if append.stream in self._heads:
                heads[append.stream] = self._heads[append.stream]
        commands = [a.command for a in appends if a.command is not None]
        taken = self._file.taken(commands) if commands else []
        group = Group(self._tip, heads, taken, self._clock)
        for call in submissions:
            call.results = [group.add(prepared) for prepared in call.appends]
        return group

    def _keep(self, group: Group) -> None:
        """Take over what a committed group changed."""
        self._tip = group.tip
        for name, head in group.streams.items():
            if head.open:
                self._heads[name] = head
                self._heads.move_to_end(name)
            else:  # seldom asked for again
                self._heads.pop(name, None)
        while len(self._heads) > STREAMS_IN_MEMORY:
            self._heads.popitem(last=False)

    def _write(self, job: Write) -> None:
        if self.unavailable is not None:
            job.done.set_exception(LogUnavailable(self.unavailable))
            return
        try:
            self._file.save_snapshot(job.version, job.snapshot)
        except Exception as error:
            self._broke(error)
            job.done.set_exception(LogUnavailable(reason_of(error)))
        else:
            job.done.set_result(None)

    def _refuse(self, submissions: list[Submission], reason: str) -> None:
        for call in submissions:
            call.error = LogUnavailable(reason)
        self._deliver(Batch((), submissions))

    def _broke(self, error: Exception) -> None:
        self.unavailable = reason_of(error)
        known = isinstance(error, DBAPIError | OSError)
        log.error("the log cannot be written: %s", self.unavailable, exc_info=not known)
        self._heads.clear()
        self._retry = FIRST_RETRY
        self._next_try = time.monotonic()

    def _mend(self) -> None:
        """Open the file anew and see where the log stands and whether it can be written."""
        try:
            self._file.close()
            tip = self._file.open()
            self._check(tip)
            self._file.probe()
        except Exception as error:
            self.unavailable = reason_of(error)
            self._next_try = time.monotonic() + self._retry
            self._retry = min(2 * self._retry, LAST_RETRY)
            return
        self.unavailable = None
        log.warning("the log can be written again; it stands at position %d", tip.position)
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is not None:
            group, submissions = unsettled
            if tip.position == group.tip.position:
                self._deliver(Batch(group.recorded, submissions))
            else:
                self._refuse(submissions, "the log could not be written; it can be again now")
        self._tip = tip

    def _check(self, tip: Tip) -> None:
        """Refuse a file that is not the one that was there before."""
        known = [(self._tip.position, self._tip.hash)]
        if self._unsettled is not None:
            after = self._unsettled[0].tip
            known.append((after.position, after.hash))
        if (tip.position, tip.hash) not in known:
            raise StoreError(
                f"{self._path} was replaced while it was in use: it stands at position "
                f"{tip.position} instead of {self._tip.position}"
            )

    def _give_up_unsettled(self) -> None:
        if self._unsettled is not None:
            self._refuse(
                self._unsettled[1],
                f"{self.unavailable}; the log was closed before it could be seen whether this "
                "was recorded",
            )
