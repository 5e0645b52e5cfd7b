"""A node's worker: asks `plan` what to do next, and does it.

All that is known is the folded log and the node's own runners. Whatever an action does is
an append that can be refused, so a plan made on a State that lags is harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import assert_never

import msgspec

from domain import events as e
from domain import streams
from domain.actions import (
    Action,
    ClaimTask,
    EndAttempt,
    EndTask,
    PrepareModel,
    StartRunner,
    StopRunner,
)
from domain.plan import Deadlines, Local, plan
from infrastructure.event_store import EventStore, GuardFailed, LogUnavailable
from infrastructure.projection import Projection
from workers.pool import RunnerPool, now
from workers.preparation import prepare
from workers.recorder import Recorder
from workers.tasks import claim, end_attempt, end_task

log = logging.getLogger(__name__)

TICK = 0.25
"""Seconds after which deadlines are looked at although nothing happened."""


class LogLost(Exception):
    """The log could not be written for longer than the worker waits."""


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has to know.

    Attributes:
        engine: `mlx`, or `scripted:FILE`.
        blas: path of a BLAS library, `none`, or empty for the one installed beside inferlog.
        versions: recorded at the node's start.
        recorded: settings recorded at the node's start.
    """

    node_id: str
    home: Path
    engine: str
    blas: str
    deadlines: Deadlines
    versions: dict[str, str]
    recorded: dict[str, str]


class WorkerService:
    """Runs the models that State wants on this node, and the tasks that wait for them."""

    def __init__(self, store: EventStore, projection: Projection, settings: NodeSettings) -> None:
        self._projection = projection
        self._settings = settings
        self._recorder = Recorder(store, projection, self._lose)
        self._epoch = 0
        self._pool: RunnerPool | None = None
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pool(self) -> RunnerPool:
        """The node's runners, once it has started."""
        assert self._pool is not None
        return self._pool

    async def start(self) -> None:
        """Record that the node began, which frees what its last life left."""
        settings = self._settings
        node = self._projection.state.nodes.get(settings.node_id)
        self._epoch = (node.epoch if node else 0) + 1
        started = e.NodeStarted(
            node_id=settings.node_id,
            epoch=self._epoch,
            versions=settings.versions,
            settings=settings.recorded,
        )
        self._pool = RunnerPool(
            self._recorder,
            self._projection,
            node_id=settings.node_id,
            epoch=self._epoch,
            engine=settings.engine,
            blas=settings.blas,
            max_batch=settings.deadlines.max_batch,
            changed=self._wake.set,
        )
        await self._recorder.append(streams.node(settings.node_id), started, durable=True)
        self._projection.listen(self._wake.set)

    async def run(self) -> None:
        """Work for ever.

        Raises:
            LogLost: the log cannot be written any more.
        """
        while True:
            self._wake.clear()
            for action in self._plan():
                self._busy[action.key] = asyncio.create_task(self._act(action), name=action.key)
            waiting = asyncio.create_task(self._wake.wait())
            awaited: set[asyncio.Future[object]] = {waiting, self._lost}  # type: ignore[arg-type]
            await asyncio.wait(awaited, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._lost.done():
                self._lost.result()

    async def stop(self) -> None:
        """End the runners; tasks stay in the log for the next start. `run` is over by now."""
        for task in self._busy.values():
            task.cancel()
        await self.pool.close()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        stopped = e.NodeStopped(node_id=self._settings.node_id, epoch=self._epoch)
        try:
            await self._recorder.append(streams.node(self._settings.node_id), stopped, durable=True)
        except (LogUnavailable, TimeoutError) as error:
            log.warning("the log does not know of this stop: %s", error)

    def _lose(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_exception(LogLost(reason))

    def _plan(self) -> list[Action]:
        busy = frozenset(self._busy)
        claiming = {key.removeprefix("task/") for key in busy if key.startswith("task/")}
        self.pool.forget_ended(self._projection.state.tasks.keys() | claiming)
        local = Local(
            node_id=self._settings.node_id,
            epoch=self._epoch,
            runners=self.pool.view(),
            busy=busy,
        )
        return plan(self._projection.state, local, now(), self._settings.deadlines)

    async def _act(self, action: Action) -> None:
        try:
            await self._work(action)
        except GuardFailed as error:
            log.debug("%s was overtaken: %s", action.key, error)
        except LogUnavailable as error:
            log.warning("%s waits for the log: %s", action.key, error)
            await asyncio.sleep(TICK)
        except Exception:
            log.exception("%r failed; it will be planned again", action)
            await asyncio.sleep(1)
        finally:
            del self._busy[action.key]
            self._wake.set()

    def _work(self, action: Action) -> Coroutine[None, None, None]:
        match action:
            case PrepareModel():
                return self._prepare(action)
            case StartRunner():
                return self.pool.start(action)
            case StopRunner():
                return self.pool.stop(action)
            case ClaimTask():
                return claim(action, self.pool, self._recorder)
            case EndAttempt():
                return end_attempt(action, self._recorder)
            case EndTask():
                return end_task(action, self.pool, self._recorder)
        assert_never(action)

    async def _prepare(self, action: PrepareModel) -> None:
        node_id = self._settings.node_id
        async for event in prepare(action.model_id, action.source, node_id, self._settings.home):
            await self._recorder.append(streams.node(node_id), event)
