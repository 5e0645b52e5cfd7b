"""Following a log that another process writes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from domain import streams
from infrastructure.opening import open_store
from tests.api.cli import sample_log
from tests.api.cli.sample_log import BAD, RUNNING
from tests.api.cli.support import INFERLOG, clean_environment

STREAM = streams.completion(RUNNING)


@asynccontextmanager
async def following(home: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that follows a log."""
    process = await asyncio.create_subprocess_exec(
        *INFERLOG,
        *("log", "tail", "--follow", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=home,
        env=clean_environment(INFERLOG_HOME=str(home)),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 20)).decode()


async def test_follow_shows_a_new_event_at_once_and_ends_quietly_on_an_interrupt(
    tmp_path: Path,
) -> None:
    store = await open_store("", tmp_path)
    await sample_log.fill(store)
    async with following(tmp_path, "-n", "1") as process:
        assert "“So”" in await read_line(process)
        began = time.monotonic()
        await sample_log.go_on(store, STREAM, sample_log.chunk(1, 1, " new", 9))
        assert "“ new”" in await read_line(process)
        assert time.monotonic() - began < 2
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 20)
        assert (process.returncode, out, err) == (130, b"", b"")
    await store.close()


async def test_follow_shows_only_what_was_asked_for(tmp_path: Path) -> None:
    store = await open_store("", tmp_path)
    await sample_log.fill(store)
    asked = ("--stream", RUNNING, "--type", "ChunkGenerated", "--json", "-n", "1")
    async with following(tmp_path, *asked) as process:
        assert json.loads(await read_line(process))["position"] == 26
        other = streams.completion("other")
        await sample_log.go_on(store, other, sample_log.chunk(1, 0, "no", 9))
        await sample_log.go_on(store, STREAM, sample_log.claimed(RUNNING, 2))
        await sample_log.go_on(store, STREAM, sample_log.chunk(2, 1, "yes", 9))
        assert json.loads(await read_line(process))["position"] == 29
    await store.close()


async def test_follow_goes_on_when_the_server_was_started_again(tmp_path: Path) -> None:
    await asyncio.to_thread(sample_log.make, tmp_path)
    async with following(tmp_path, "-n", "1") as process:
        await read_line(process)
        for text in ("first", "second"):
            store = await open_store("", tmp_path)
            await sample_log.go_on(store, STREAM, sample_log.chunk(1, 1, text, 9))
            assert f"“{text}”" in await read_line(process)
            await store.close()


async def test_follow_ends_when_nobody_reads_though_nothing_happens(tmp_path: Path) -> None:
    await asyncio.to_thread(sample_log.make, tmp_path)
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *INFERLOG,
        *("log", "tail", "--follow", "-n", "1"),
        stdout=writing,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(INFERLOG_HOME=str(tmp_path)),
    )
    os.close(writing)
    assert await asyncio.to_thread(os.read, reading, 100_000)
    os.close(reading)
    _, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize("arguments", [("tail",), ("show", BAD, "--json")])
async def test_a_closed_pipe_is_silent(sample: Path, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = await asyncio.create_subprocess_exec(
        *INFERLOG,
        *("log", *arguments),
        stdout=writing,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(INFERLOG_HOME=str(sample)),
    )
    os.close(writing)
    _, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, err) == (141, b"")
