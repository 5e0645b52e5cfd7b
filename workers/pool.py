"""The runners of a node: started, watched until they end, and stopped."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection

from domain import events as e
from domain import streams
from domain.actions import StartRunner, StopRunner
from domain.plan import LocalRunner
from infrastructure.event_store import Append, LogUnavailable
from infrastructure.projection import Projection
from workers.live_runner import LiveRunner
from workers.protocol import Load, ProtocolError
from workers.recorder import Recorder
from workers.runner_process import RunnerProcess

log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 5.0
"""Seconds in which the ends of runners at a stop may still be recorded."""


def now() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


class RunnerPool:
    """All runners of one node's life. `changed` is called when one has come or gone."""

    def __init__(
        self,
        recorder: Recorder,
        projection: Projection,
        *,
        node_id: str,
        epoch: int,
        engine: str,
        blas: str,
        max_batch: int,
        changed: Callable[[], None],
    ) -> None:
        self._recorder = recorder
        self._projection = projection
        self.node_id = node_id
        self.epoch = epoch
        self._engine = engine
        self._blas = blas
        self._max_batch = max_batch
        self._changed = changed
        self._runners: dict[str, LiveRunner] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        self.uids = itertools.count(1)

    def view(self) -> dict[str, LocalRunner]:
        """What `plan` sees of the runners."""
        return {runner_id: runner.view() for runner_id, runner in self._runners.items()}

    def get(self, runner_id: str) -> LiveRunner | None:
        """A runner, while it lives."""
        return self._runners.get(runner_id)

    def forget_ended(self, alive: Collection[str]) -> None:
        """Make room for new tasks in place of those that State has forgotten."""
        for runner in self._runners.values():
            runner.tasks.intersection_update(alive)

    async def remove(self, task_id: str) -> None:
        """Take a task out of whichever batch it is in."""
        for runner in list(self._runners.values()):
            await runner.remove(task_id)

    async def start(self, action: StartRunner) -> None:
        """Start a process and begin to load its model."""
        try:
            process = await RunnerProcess.start(self._engine, self._blas)
        except (ProtocolError, OSError, TimeoutError) as error:
            reason = str(error) or "it said nothing in time"
            log.error("a runner did not start: %s", reason)
            failed = e.Failed(error_message=f"The runner did not start: {reason}")
            await self._report(action.instance_id, action.runner_id, failed)
            return
        log.info("runner %d started (%s)", process.pid, process.engine)
        runner = LiveRunner(
            action,
            process,
            self._recorder.append_all,
            lambda status: self._report(action.instance_id, action.runner_id, status),
            now,
        )
        load = Load(
            model_path=action.path,
            rank=action.rank,
            world_size=action.world_size,
            max_batch=self._max_batch,
        )
        self._runners[action.runner_id] = runner
        self._lives[action.runner_id] = asyncio.create_task(self._live(runner, load))

    async def stop(self, action: StopRunner) -> None:
        """End a runner and wait until its end is recorded."""
        runner = self._runners.get(action.runner_id)
        if runner is None:
            return
        log.info("stopping runner %d: %s", runner.process.pid, action.reason)
        runner.stop_reason = action.reason
        if action.kill:
            await runner.process.kill()
        else:
            await runner.process.shutdown()
        await asyncio.wait([self._lives[action.runner_id]])

    async def close(self) -> None:
        """End all runners, and record that within `CLOSE_TIMEOUT`."""
        self._closing = True
        runners = list(self._runners.values())
        await asyncio.gather(*(runner.process.shutdown() for runner in runners))
        if lives := list(self._lives.values()):
            _, unfinished = await asyncio.wait(lives, timeout=CLOSE_TIMEOUT)
            for life in unfinished:
                life.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def _live(self, runner: LiveRunner, load: Load) -> None:
        """A runner's whole life. Its end is recorded before `plan` sees that it is gone."""
        try:
            ended = await runner.run(load)
            if self._closing:
                await self._report(runner.instance_id, runner.runner_id, e.Shutdown())
            elif runner.runner_id in self._projection.state.runners:
                log.warning("runner %d: %s", runner.process.pid, ended.error_message)
                await self._report(runner.instance_id, runner.runner_id, ended)
        except LogUnavailable as error:
            log.error("the end of runner %d is not recorded: %s", runner.process.pid, error)
        finally:
            await runner.process.kill()
            del self._runners[runner.runner_id]
            del self._lives[runner.runner_id]
            self._changed()

    async def _report(self, instance_id: str, runner_id: str, status: e.RunnerStatus) -> None:
        event = e.RunnerStatusUpdated(
            runner_id=runner_id,
            instance_id=instance_id,
            node_id=self.node_id,
            epoch=self.epoch,
            at=now(),
            status=status,
        )
        await self._recorder.insist(Append(stream=streams.instance(instance_id), events=(event,)))
