"""A node in this process: the log, the API on a loopback port, and a scripted worker."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from api.app import create_app
from api.services import Services
from domain import events as e
from infrastructure.event_store import EventStore, Recorded
from infrastructure.opening import LOG_NAME, open_store
from infrastructure.projection import Projection
from infrastructure.settings import Settings
from tests.api.fake_worker import NODE, FakeWorker

MODEL = "tiny"


class Node(msgspec.Struct, frozen=True):
    """What tests hold of a running node."""

    url: str
    services: Services
    worker: FakeWorker
    server: uvicorn.Server

    @property
    def store(self) -> EventStore:
        """The log."""
        return self.services.store

    async def log(self, type: type[e.Event] | None = None) -> list[Recorded]:
        """Everything in the log, or everything of one type."""
        types = None if type is None else {type.__name__}
        return await self.store.read(0, 1000, types=types)


_blank: list[bytes] = []
"""An empty log, once one was made: to migrate it for every test would take seconds."""


async def _opened(home: Path) -> EventStore:
    path = home / LOG_NAME
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        if not _blank:
            store = await open_store("", home)
            await store.close()
            _blank.append(path.read_bytes())
        path.write_bytes(_blank[0])
    return await open_store("", home)


class _Server(uvicorn.Server):
    """Leaves signals alone, and starts and ends without waiting."""

    async def main_loop(self) -> None:
        """Serve until told to stop."""
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End at once what uvicorn looks after ten times a second."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.tasks:
            await asyncio.sleep(0.001)
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@contextlib.asynccontextmanager
async def running(home: Path, **settings: Any) -> AsyncIterator[Node]:
    """A node on a data folder."""
    async with contextlib.AsyncExitStack() as stack:
        store = await _opened(home)
        stack.push_async_callback(store.close)
        projection = Projection(store)
        await projection.catch_up()
        await stack.enter_async_context(_beside(projection.run()))
        services = Services.build(store, projection, Settings(home=home, **settings), NODE)
        worker = FakeWorker(store, projection, services.bus)
        await stack.enter_async_context(_beside(worker.run()))
        stack.push_async_callback(worker.close)
        server = _Server(
            uvicorn.Config(create_app(services), log_config=None, access_log=False, lifespan="on")
        )
        listening = _listening()
        stack.callback(listening.close)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield Node(f"http://127.0.0.1:{listening.getsockname()[1]}", services, worker, server)
        finally:
            services.stopping.set()
            server.should_exit = True
            await serving


@contextlib.contextmanager
def in_thread(home: Path, model_folder: Path | None = None) -> Iterator[str]:
    """A node on a thread and an event loop of its own; gives its address."""
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def serve() -> None:
        async with running(home) as node:
            if model_folder is not None:
                await node.worker.ready(MODEL, model_folder)
            addresses.put(node.url)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield addresses.get(timeout=30)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def _listening() -> socket.socket:
    # With its protocol named: asyncio switches Nagle's delay off only where it is.
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.bind(("127.0.0.1", 0))
    return made


@contextlib.asynccontextmanager
async def _beside(coroutine: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
