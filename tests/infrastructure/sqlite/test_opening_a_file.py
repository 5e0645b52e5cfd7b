"""What stands between a process and a log: its owner, its version, its health."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

import migrations
from infrastructure import tables
from infrastructure.event_store import LogInUse, LogTooNew, LogUnavailable, StoreError
from infrastructure.log_reader import LogReader
from infrastructure.sqlite.store import SqliteEventStore
from tests.contract.samples import append

HOLD = """
import asyncio, sys
from infrastructure.sqlite.store import SqliteEventStore

async def hold() -> None:
    await SqliteEventStore.open(sys.argv[1])
    print("open", flush=True)
    await asyncio.sleep(60)

asyncio.run(hold())
"""


@pytest.fixture
async def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    store = await SqliteEventStore.open(path)
    await store.append(append("s"))
    await store.close()
    return path


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


async def test_a_log_that_another_process_has_is_refused_until_that_is_dead(log: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(log)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(LogInUse, match=f"process with id {other.pid}.*INFERLOG_HOME"):
            await SqliteEventStore.open(log)
        link = log.with_name("link.db")
        link.symlink_to(log)
        with pytest.raises(LogInUse):
            await SqliteEventStore.open(link)
        other.kill()
        other.wait()
    store = await SqliteEventStore.open(log)
    assert (await store.head()).position == 1
    await store.close()


async def test_a_lock_file_alone_locks_nothing(log: Path) -> None:
    log.with_name("log.db.lock").write_text("1\n")
    store = await SqliteEventStore.open(log)
    assert log.with_name("log.db.lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(LogInUse):
        await SqliteEventStore.open(log)
    await store.close()


async def test_a_newer_log_is_refused_and_left_untouched(log: Path) -> None:
    edit(log, "UPDATE alembic_version SET version_num = '9999'")
    before = log.read_bytes(), log.stat().st_mtime_ns
    with pytest.raises(LogTooNew, match=r"9999.*0001.*left as it is"):
        await SqliteEventStore.open(log)
    with pytest.raises(LogTooNew):
        LogReader(log)
    assert (log.read_bytes(), log.stat().st_mtime_ns) == before
    assert sorted(path.name for path in log.parent.iterdir()) == ["log.db", "log.db.lock"]


async def test_a_newer_log_that_a_kill_left_with_its_wal_is_left_untouched_too(
    log: Path, tmp_path: Path
) -> None:
    newer = sqlite3.connect(log)
    newer.execute("UPDATE alembic_version SET version_num = '9999'")
    newer.commit()
    left = tmp_path / "left"
    left.mkdir()
    parts = [left / "log.db", left / "log.db-wal"]
    for part in parts:
        part.write_bytes(log.with_name(part.name).read_bytes())
    newer.close()
    before = [part.read_bytes() for part in parts]
    assert b"9999" in before[1]
    with pytest.raises(LogTooNew):
        await SqliteEventStore.open(left / "log.db")
    assert [part.read_bytes() for part in parts] == before


async def test_a_refused_log_can_be_opened_once_it_is_what_it_should_be(log: Path) -> None:
    edit(log, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LogTooNew):
        await SqliteEventStore.open(log)
    edit(log, "UPDATE alembic_version SET version_num = '0001'")
    await (await SqliteEventStore.open(log)).close()


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    edit(tmp_path / "other.db", "CREATE TABLE photos (id)")
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(StoreError, match="not a log of inferlog"):
        await SqliteEventStore.open(tmp_path / "other.db")
    assert (tmp_path / "other.db").read_bytes() == before


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("some text that is no database" * 100)
    with pytest.raises(LogUnavailable, match=r"text\.db cannot be opened: file is not"):
        await SqliteEventStore.open(tmp_path / "text.db")


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogUnavailable, match="cannot be opened"):
        await SqliteEventStore.open(tmp_path / "file" / "log.db")


async def test_a_log_whose_end_is_gone_is_refused(log: Path) -> None:
    edit(log, "DELETE FROM events")
    with pytest.raises(StoreError, match=r"damaged.*position 1.*last event is 0"):
        await SqliteEventStore.open(log)


def test_the_revisions_known_are_those_there_are() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(s.revision for s in reversed(list(scripts.walk_revisions()))) == (
        migrations.REVISIONS
    )


async def test_the_tables_are_those_that_the_queries_know(log: Path) -> None:
    connection = sqlite3.connect(log)
    for table in tables.metadata.sorted_tables:
        found = {
            (name, not_null == 1 or key > 0)
            for _, name, _, not_null, _, key in connection.execute(
                f"PRAGMA table_info({table.name})"
            )
        }
        assert found == {(column.name, not column.nullable) for column in table.columns}
    strict = connection.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND NOT strict "
        "AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    assert strict == [("alembic_version",)]
    connection.close()


async def test_rebuilding_state_reads_an_index_and_skips_tokens(log: Path) -> None:
    from sqlalchemy import create_engine, event

    from infrastructure.rows import select_events

    engine = create_engine(f"sqlite:///{log}")
    plans: list[str] = []

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def explain(*args: object) -> tuple[str, object]:
        return f"EXPLAIN QUERY PLAN {args[2]}", args[3]

    with engine.connect() as connection:
        for query in (
            select_events(5, 10, tokens=False),
            select_events(5, 10, types=["TaskCreated"]),
            select_events(5, 10, stream="s"),
        ):
            rows = connection.execute(query).cursor
            assert rows is not None
            plans.append(" ".join(str(row[3]) for row in rows.fetchall()))
    engine.dispose()
    assert "events_of_state (position>?)" in plans[0]
    assert "events_of_state (position>?)" in plans[1]
    assert "events USING INDEX sqlite_autoindex_events_1 (stream_id=?)" in plans[2]
    assert not any("TEMP B-TREE" in plan for plan in plans)
