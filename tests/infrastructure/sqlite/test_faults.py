"""The disk fails under the log: what was acknowledged is there, what was refused is not."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event

from domain.events import ChunkGenerated, Content
from infrastructure.event_store import LogUnavailable, Snapshot
from infrastructure.log_reader import LogReader
from infrastructure.sqlite import connect, writer
from infrastructure.sqlite.file import LogFile
from infrastructure.sqlite.store import SqliteEventStore
from infrastructure.verify import verify_log
from tests.contract.samples import append, chunk

pytestmark = pytest.mark.filterwarnings("error")


class Ledger:
    """What callers were told, to be held against the log."""

    def __init__(self, store: SqliteEventStore) -> None:
        self.store = store
        self.kept: list[str] = []
        self.refused: list[str] = []
        self._next = 0

    async def append(self, size: int = 10, durable: bool = False) -> None:
        """Append something that can be told from everything else."""
        self._next += 1
        text = f"{self._next}".ljust(size, ".")
        try:
            await self.store.append(append("s", chunk(0, text=text), durable=durable))
        except LogUnavailable:
            self.refused.append(text)
        else:
            self.kept.append(text)

    async def until(self, condition: Callable[[], bool], size: int = 10) -> None:
        """Append from several tasks until something is so."""

        async def produce() -> None:
            while not condition():
                await self.append(size)
                await asyncio.sleep(0.001)

        async with asyncio.timeout(20):
            await asyncio.gather(*(produce() for _ in range(8)))

    async def settle(self, path: Path) -> None:
        """Close the log and hold it against what was told."""
        await self.store.close()
        with LogReader(path) as reader:
            assert verify_log(reader).fault is None
            found = Counter(texts(reader))
        assert found == Counter(self.kept)


def texts(reader: LogReader) -> Iterator[str]:
    for recorded in reader.events():
        match recorded.event:
            case ChunkGenerated(deltas=(Content(text),)):
                yield text
            case _:
                raise AssertionError(recorded)


@pytest.fixture
async def ledger(tmp_path: Path) -> Ledger:
    return Ledger(await SqliteEventStore.open(tmp_path / "log.db"))


@contextlib.contextmanager
def commits(act: Callable[[Connection], None]) -> Iterator[None]:
    """Do something in place of, or before, each commit of a writer."""
    event.listen(Engine, "commit", act)
    try:
        yield
    finally:
        event.remove(Engine, "commit", act)


def fail(name: str = "SQLITE_IOERR_FSYNC") -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    raise error


async def test_a_commit_that_fails_is_refused_and_the_log_goes_on(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.append()
    # The commit fails, then what should mend it: reopening once, and the first trial write.
    failures = iter([True, True, False, True])
    with commits(lambda _: fail() if next(failures, False) else None):
        for _ in range(3):
            await ledger.append()
    assert len(ledger.refused) == 1
    assert next(failures, None) is None
    assert ledger.store.unavailable is None
    await ledger.settle(tmp_path / "log.db")


async def test_a_commit_that_fails_after_it_reached_the_disk_counts_as_done(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.append()
    failures = iter([True])

    def after(connection: Connection) -> None:
        if next(failures, False):
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.commit()
            fail()

    with commits(after):
        async with contextlib.aclosing(ledger.store.follow(1)) as batches:
            await ledger.append(durable=True)
            assert [r.position for r in await anext(batches)] == [2]
    assert len(ledger.kept) == 2
    await ledger.append()
    await ledger.settle(tmp_path / "log.db")


@pytest.mark.parametrize("reached", [True, False])
async def test_a_commit_of_unknown_outcome_waits_until_the_log_can_be_read(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    await ledger.append()
    broken, working = True, LogFile.open

    def commit(connection: Connection) -> None:
        nonlocal broken
        if reached and broken:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.commit()
        if broken:
            monkeypatch.setattr(LogFile, "open", lambda _: fail())
            fail()

    with commits(commit):
        unknown = asyncio.create_task(ledger.append())
        while ledger.store.unavailable is None:
            await asyncio.sleep(0.001)
        assert "disk I/O error" in ledger.store.unavailable
        # Others are refused at once, with the reason; nothing is shown to anybody.
        with pytest.raises(LogUnavailable, match="disk I/O error"):
            await ledger.store.append(append("s", chunk()))
        assert not unknown.done()
        assert (await ledger.store.head()).position == 1
        assert len(await ledger.store.read()) == 1
        broken = False
        monkeypatch.setattr(LogFile, "open", working)
        await unknown  # by itself, within the bounds of its retries
    assert len(ledger.kept) == (2 if reached else 1)
    await ledger.append()
    await ledger.settle(tmp_path / "log.db")


async def test_closing_a_broken_log_tells_who_waits(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.append()

    def commit(_: Connection) -> None:
        monkeypatch.setattr(LogFile, "open", lambda _: fail())
        fail()

    with commits(commit):
        unknown = asyncio.create_task(ledger.store.append(append("s", chunk())))
        while ledger.store.unavailable is None:
            await asyncio.sleep(0.001)
        await ledger.store.close()
        with pytest.raises(LogUnavailable, match="closed before it could be seen"):
            await unknown
    monkeypatch.undo()
    await ledger.settle(tmp_path / "log.db")


async def test_a_snapshot_that_cannot_be_written_is_an_error_of_its_own(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.append()
    failures = iter([True])
    with commits(lambda _: fail() if next(failures, False) else None):
        with pytest.raises(LogUnavailable, match="disk I/O error"):
            await ledger.store.save_snapshot(1, Snapshot(1, b""))
        await ledger.append()
    await ledger.store.save_snapshot(1, Snapshot(1, b""))
    await ledger.settle(tmp_path / "log.db")


async def test_a_log_that_was_swapped_under_its_server_is_not_written_to(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.append()
    other = await SqliteEventStore.open(tmp_path / "other" / "log.db")
    await other.append(append("other"))
    await other.close()
    failures = iter([True])

    def swap(_: Connection) -> None:
        if next(failures, False):
            for suffix in ("-wal", "-shm"):
                (tmp_path / f"log.db{suffix}").unlink()
            (tmp_path / "other" / "log.db").replace(tmp_path / "log.db")
            fail("SQLITE_FULL")

    with commits(swap):
        await ledger.append()
        await ledger.append()
    assert ledger.kept == ["1".ljust(10, ".")]
    assert ledger.store.unavailable is not None
    assert "was replaced" in ledger.store.unavailable
    await ledger.store.close()
    with LogReader(tmp_path / "log.db") as reader:
        assert [r.stream for r in reader.events()] == ["other"]


async def test_a_full_database_refuses_and_recovers(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit on pages stands in for the disk's, wherever tests run."""
    await ledger.store.close()
    monkeypatch.setattr(connect, "WRITER_PRAGMAS", (*connect.WRITER_PRAGMAS, "max_page_count=60"))
    ledger.store = await SqliteEventStore.open(tmp_path / "log.db")
    await ledger.until(lambda: len(ledger.refused) > 20, size=2000)
    assert len(ledger.kept) > 5
    monkeypatch.undo()
    kept = len(ledger.kept)
    await ledger.until(lambda: len(ledger.kept) > kept + 50, size=2000)
    assert ledger.store.unavailable is None
    await ledger.settle(tmp_path / "log.db")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk_refuses_until_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LAST_RETRY", 0.2)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    ledger = Ledger(await SqliteEventStore.open(small_disk / "log.db"))
    await ledger.until(lambda: len(ledger.refused) > 20, size=5000)
    assert ledger.store.unavailable is not None
    assert "full" in ledger.store.unavailable
    assert len(await ledger.store.read()) > 0  # what is there can be read all the while
    ballast.unlink()
    async with asyncio.timeout(5):  # by itself, though nobody appends
        while ledger.store.unavailable is not None:
            await asyncio.sleep(0.01)
    kept = len(ledger.kept)
    await ledger.until(lambda: len(ledger.kept) > kept + 20)
    await ledger.settle(small_disk / "log.db")
