"""The composition root: a node built from its parts, run until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncGenerator, Coroutine, Generator
from importlib.metadata import version
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from api.app import create_app
from api.cli.errors import OutOfReach, Problem
from api.services import Services, new_id
from domain.commands import Caller, Command, CreateInstance, DeleteInstance
from domain.plan import Deadlines
from infrastructure import server_file
from infrastructure.event_store import EventStore, StoreError
from infrastructure.opening import open_store
from infrastructure.projection import Projection
from infrastructure.settings import Settings
from workers.models.catalog import resolve
from workers.models.errors import ModelError
from workers.service import LogLost, NodeSettings, WorkerService

log = logging.getLogger(__name__)

PLACED_BY = "serve"
"""Who placed an instance that a server loads at its start."""

PACKAGES = ("inferlog", "mlx", "mlx-lm", "transformers")
"""Recorded with their versions when a node starts."""

SHUTDOWN_TIMEOUT = 5
"""Seconds that connections have to end at a stop, after their streams were cut off."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        Problem: there is no such model, or the address cannot be listened on.
        OutOfReach: the log cannot be opened, or could not be written for too long.
    """
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for chatty in ("aiosqlite", "alembic", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings))
    except (StoreError, LogLost) as error:
        raise OutOfReach(str(error)) from error
    except (ModelError, OSError) as error:
        raise Problem(str(error)) from error


async def _serve(settings: Settings) -> None:
    # What can be wrong is found before anything is recorded.
    model_id = resolve(settings.model).model_id
    with _listening_socket(settings) as listening:
        settings.home.mkdir(parents=True, exist_ok=True)
        store = await open_store(settings.database_url, settings.home)
        try:
            projection = Projection(store)
            await projection.catch_up()
            async with _running(projection.run()):
                await _run_node(settings, model_id, store, projection, listening)
                await projection.snapshot()
        finally:
            await store.close()


async def _run_node(
    settings: Settings,
    model_id: str,
    store: EventStore,
    projection: Projection,
    listening: socket.socket,
) -> None:
    node_id = _node_id(settings.home)
    services = Services.build(store, projection, settings, node_id)
    worker = WorkerService(store, projection, _worker_settings(settings, node_id))
    await worker.start()
    try:
        await _place(services, model_id)
        async with _running(worker.run()) as working:
            await _listen(services, working, listening)
    finally:
        await worker.stop()


@contextlib.asynccontextmanager
async def _running(
    work: Coroutine[None, None, None],
) -> AsyncGenerator[asyncio.Task[None], None]:
    """Something that runs beside the body and ends with it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- parts ----------------------------------------------------------------------------


def _listening_socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise OSError(
            error.errno,
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}. "
            "Name another with --host and --port.",
        ) from error
    return listening


def _node_id(home: Path) -> str:
    """This node's id, drawn at its first start."""
    file = home / "node_id"
    if not file.exists():
        file.write_text(new_id())
    return file.read_text().strip()


def _worker_settings(settings: Settings, node_id: str) -> NodeSettings:
    return NodeSettings(
        node_id=node_id,
        home=settings.home,
        engine=settings.engine,
        blas=settings.blas,
        deadlines=Deadlines(
            load=settings.load_timeout,
            queue=settings.queue_timeout,
            progress=settings.progress_timeout,
            max_batch=settings.max_batch,
        ),
        versions={name: version(name) for name in PACKAGES}
        | {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
        recorded={name: str(value) for name, value in msgspec.structs.asdict(settings).items()},
    )


async def _place(services: Services, model_id: str) -> None:
    """See that the model to serve has an instance, and that models served before have none.

    Instances placed over HTTP stay from one start to the next.
    """
    source = services.settings.model
    wanted = False
    for instance_id, instance in list(services.projection.state.instances.items()):
        if (instance.model_id, instance.source) == (model_id, source):
            wanted = True
        elif instance.placed_by == PLACED_BY:
            await _dispatch(services, DeleteInstance(command_id=new_id(), instance_id=instance_id))
    if not wanted:
        create = CreateInstance(
            command_id=new_id(),
            instance_id=new_id(),
            model_id=model_id,
            source=source,
            node_id=services.node_id,
            runner_ids=(new_id(),),
            placed_by=PLACED_BY,
        )
        await _dispatch(services, create)


async def _dispatch(services: Services, command: Command) -> None:
    caller = Caller(actor="system", request_id=command.command_id)
    await services.bus.dispatch(command, caller, msgspec.json.encode(command))


async def _listen(
    services: Services, working: asyncio.Task[None], listening: socket.socket
) -> None:
    """Serve HTTP until a signal comes or the worker gives up.

    Raises:
        LogLost: the worker gave up.
    """
    server = _Server(
        uvicorn.Config(
            create_app(services),
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            server_header=False,
            # Proxies' headers would let anyone name any address as its own.
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        )
    )

    def stop() -> None:
        services.stopping.set()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    working.add_done_callback(lambda _: stop())
    url = server_file.local_url(*listening.getsockname()[:2])
    home = services.settings.home
    server_file.write(home, server_file.ServerInfo(url=url, version=version("inferlog")))
    try:
        log.info("serving on %s, data in %s", url, home)
        await server.serve(sockets=[listening])
    finally:
        server_file.remove(home)
    if working.done():
        working.result()


class _Server(uvicorn.Server):
    """Leaves signals alone: they are the node's, which has more to end than HTTP."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield
