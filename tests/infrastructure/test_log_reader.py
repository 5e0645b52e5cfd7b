"""Reading a log from outside, in each state it can be found in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.event_store import (
    EventStore,
    LogUnavailable,
    PositionOutOfRange,
    Snapshot,
    StoreError,
)
from infrastructure.log_reader import LogReader
from infrastructure.sqlite.store import SqliteEventStore
from infrastructure.verify import verify_log
from tests.contract.samples import append, chunk, claim, end, key, started


async def fill(store: EventStore) -> None:
    await store.append(append("node/n", started()))
    await store.append(append("completion/1", started(), command=key("1", "k")))
    await store.append(append("completion/1", claim(1), *(chunk(n) for n in range(6)), end()))
    await store.save_snapshot(1, Snapshot(5, b"state"))


def fingerprint(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file, with when it was last written to."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.fixture
async def at_rest(tmp_path: Path) -> Path:
    path = tmp_path / "rest" / "log.db"
    store = await SqliteEventStore.open(path)
    await fill(store)
    await store.close()
    return path


@pytest.fixture
async def in_use(tmp_path: Path) -> Iterator[Path]:  # type: ignore[misc]
    path = tmp_path / "use" / "log.db"
    store = await SqliteEventStore.open(path)
    await fill(store)
    yield path
    await store.close()


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """What a killed process leaves: nothing in the database yet, everything in the WAL."""
    path = tmp_path / "use" / "log.db"
    store = await SqliteEventStore.open(path)
    await fill(store)
    left = tmp_path / "killed"
    left.mkdir()
    for part in path.parent.iterdir():
        shutil.copyfile(part, left / part.name)
    await store.close()
    assert (left / "log.db-wal").stat().st_size > 0
    return left / "log.db"


@pytest.fixture(params=["at_rest", "in_use", "killed"])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_a_log_is_read_whatever_state_it_is_in(path: Path) -> None:
    with LogReader(path) as reader:
        assert reader.head().position == 10
        assert [r.position for r in reader.events()] == list(range(1, 11))
        assert [r.position for r in reader.events(2, tokens=False, up_to=9)] == [3]
        assert [r.position for r in reader.page(0, 2, stream="completion/1")] == [2, 3]
        assert [r.type for r in reader.page(types=["TaskStatusUpdated"])] == ["TaskStatusUpdated"]
        command = reader.command("1")
        assert command is not None
        assert (command.stream, command.position) == ("completion/1", 2)
        assert reader.command("2") is None
        assert [s.name for s in reader.streams()] == ["completion/1", "node/n"]
        assert reader.load_snapshot(1, 10) == Snapshot(5, b"state")
        assert reader.load_snapshot(1, 4) is None
        assert verify_log(reader).fault is None
        with pytest.raises(PositionOutOfRange):
            reader.page(11)


def test_statistics_count_the_log(path: Path) -> None:
    with LogReader(path) as reader:
        stats = reader.stats()
    assert stats.head.position == 10
    assert list(stats.events.items())[:2] == [("ChunkGenerated", 6), ("NodeStarted", 2)]
    assert sum(stats.events.values()) == 10
    assert (stats.streams, stats.open_streams, stats.commands) == (2, 1, 1)
    assert stats.size > 4096
    assert stats.first_at is not None
    assert stats.last_at is not None
    assert stats.first_at <= stats.last_at


def test_reading_a_log_at_rest_writes_nothing(at_rest: Path) -> None:
    before = fingerprint(at_rest.parent)
    with LogReader(at_rest) as reader:
        verify_log(reader)
        reader.stats()
    assert fingerprint(at_rest.parent) == before


def test_reading_what_a_kill_left_changes_neither_database_nor_wal(killed: Path) -> None:
    def logged() -> dict[str, tuple[bytes, int]]:
        return {k: v for k, v in fingerprint(killed.parent).items() if not k.endswith("-shm")}

    before = logged()
    with LogReader(killed) as reader:
        verify_log(reader)
    assert logged() == before


async def test_a_reader_notices_that_a_server_started_on_a_log_at_rest(at_rest: Path) -> None:
    with LogReader(at_rest) as reader:
        assert reader.head().position == 10
        store = await SqliteEventStore.open(at_rest)
        await store.append(append("s", *(chunk(n) for n in range(3000))))
        assert reader.head().position == 3010
        assert verify_log(reader).fault is None
        await store.append(append("s"))
        await store.close()
        assert reader.head().position == 3011


def test_a_missing_empty_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no log"):
        LogReader(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="empty"):
        LogReader(tmp_path / "empty.db")
    (tmp_path / "text.db").write_text("not a database at all, but long enough to be looked at" * 9)
    with pytest.raises(LogUnavailable, match="not a database"):
        LogReader(tmp_path / "text.db")


async def test_a_log_in_a_folder_with_odd_characters_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a folder? #1 100%" / "log.db"
    store = await SqliteEventStore.open(path)
    await fill(store)
    assert len(await store.read()) == 10
    with LogReader(path) as reader:
        assert reader.head().position == 10
    await store.close()
