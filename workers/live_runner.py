"""A runner of this node: its process, the tasks in its batch, and what it says of itself."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from domain import events as e
from domain.actions import StartRunner
from domain.plan import LocalRunner
from infrastructure.event_store import Append, GuardFailed
from workers.frames import Assignment, append_of
from workers.protocol import (
    Committed,
    Frame,
    Hello,
    Insert,
    Load,
    LoadFailed,
    Progress,
    ProtocolError,
    Remove,
    Row,
)
from workers.recorder import Results
from workers.runner_process import RunnerProcess

log = logging.getLogger(__name__)

AppendAll = Callable[[list[Append]], Awaitable[Results]]
"""Record appends, waiting out a log that cannot be written."""

Report = Callable[[e.RunnerStatus], Awaitable[None]]
"""Record a status and wait until State knows it."""


class LiveRunner:
    """One runner from its start to its end.

    Attributes:
        tasks: task ids in its batch. A task that ended stays until State has forgotten it.
    """

    def __init__(
        self,
        action: StartRunner,
        process: RunnerProcess,
        append_all: AppendAll,
        report: Report,
        clock: Callable[[], int],
    ) -> None:
        self.instance_id = action.instance_id
        self.runner_id = action.runner_id
        self.process = process
        self.tasks: set[str] = set()
        self.stop_reason: str | None = None
        self._rows: dict[int, Assignment] = {}
        self._append_all = append_all
        self._report = report
        self._clock = clock
        self._phase = "Idle"
        self._phase_since = self._progress_at = clock()
        self._step = -1
        self._load_error: str | None = None

    def view(self) -> LocalRunner:
        """What `plan` sees of it."""
        return LocalRunner(
            tasks=frozenset(self.tasks),
            phase=self._phase,
            phase_since=self._phase_since,
            progress_at=self._progress_at,
        )

    async def insert(self, assignment: Assignment, message: Insert) -> None:
        """Put a task into its batch."""
        if not self._rows:
            self._progress_at = self._clock()
        self._rows[assignment.uid] = assignment
        self.tasks.add(assignment.task_id)
        await self.process.send(message)

    async def remove(self, task_id: str) -> None:
        """Take a task out of its batch."""
        self.tasks.discard(task_id)
        for uid, assignment in list(self._rows.items()):
            if assignment.task_id == task_id:
                del self._rows[uid]
                await self.process.send(Remove(uid=uid))

    async def run(self, load: Load) -> e.Failed:
        """Load the model and record all it says until it ends; the status it ended with."""
        await self._report(e.Loading())
        self._enter("Loading")
        await self.process.send(load)
        try:
            while (message := await self.process.receive()) is not None:
                match message:
                    case Frame():
                        await self._frame(message)
                    case Progress():
                        await self._progress(message)
                    case LoadFailed():
                        self._load_error = message.message
                    case Hello():
                        raise ProtocolError("the runner said hello twice")
        except ProtocolError as error:
            log.error("runner %d broke the protocol: %s", self.process.pid, error)
            await self.process.kill()
            return e.Failed(error_message=f"The runner broke its protocol: {error}")
        how = await self.process.ended()
        await self.process.kill()
        if self._load_error is not None:
            return e.Failed(error_message=self._load_error, permanent=True)
        if self.stop_reason is not None:
            return e.Failed(error_message=f"The runner was replaced: {self.stop_reason}")
        return e.Failed(error_message=f"The runner ended by itself: {how}")

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._phase_since = self._progress_at = self._clock()

    async def _progress(self, message: Progress) -> None:
        self._moved(message.step)
        if message.phase != self._phase:
            if message.phase == "Ready":
                log.info("runner %d is ready: requests are answered now", self.process.pid)
            self._enter(message.phase)
            await self._report(STATUSES[message.phase])

    def _moved(self, step: int) -> None:
        if step != self._step:
            self._step = step
            self._progress_at = self._clock()

    async def _frame(self, frame: Frame) -> None:
        """Record a decode step in one group, then let the runner go on."""
        self._moved(frame.step)
        rows = [(row, self._rows[row.uid]) for row in frame.rows if row.uid in self._rows]
        if rows:
            results = await self._append_all([append_of(row, known) for row, known in rows])
            for (row, known), result in zip(rows, results, strict=True):
                await self._settle(row, known, not isinstance(result, GuardFailed))
        # Time spent on the log is not the runner's.
        self._progress_at = self._clock()
        await self.process.send(Committed(step=frame.step))

    async def _settle(self, row: Row, known: Assignment, recorded: bool) -> None:
        if row.finish_reason is not None:
            self._rows.pop(row.uid, None)
        elif not recorded:  # the attempt was superseded, or its task has ended
            await self.remove(known.task_id)


STATUSES: dict[str, e.RunnerStatus] = {
    "Connecting": e.Connecting(),
    "Connected": e.Connected(),
    "Loading": e.Loading(),
    "Loaded": e.Loaded(),
    "WarmingUp": e.WarmingUp(),
    "Ready": e.Ready(),
}
