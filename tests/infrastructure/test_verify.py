"""Verification finds what changed, and where."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from domain import chain
from infrastructure.event_store import Head, Recorded, StreamInfo
from infrastructure.log_reader import LogReader
from infrastructure.sqlite.store import SqliteEventStore
from infrastructure.verify import Verdict, verify, verify_log
from tests.contract.samples import append, chunk, claim, end, key, started

EVENT_COLUMNS = (
    "position",
    "stream_id",
    "version",
    "type",
    "schema_version",
    "recorded_at",
    "payload",
    "content",
    "hash",
)
COLUMNS = [
    *(("events", column) for column in EVENT_COLUMNS),
    ("log_head", "position"),
    ("log_head", "hash"),
    *(("streams", column) for column in ("id", "name", "version", "attempt", "open")),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log at rest with streams open and closed, tokens and commands."""
    path = tmp_path_factory.mktemp("verify") / "log.db"
    asyncio.run(write(path))
    return path


async def write(path: Path) -> None:
    store = await SqliteEventStore.open(path)
    await store.append(append("node/n", started(1)))
    for number in range(4):
        stream = f"completion/{number}"
        await store.append(
            append(stream, started(2), claim(1), command=key(str(number), "k" * number or None))
        )
        for index in range(4):
            await store.append(append(stream, chunk(index)))
        if number % 2:
            await store.append(append(stream, claim(2), end(2)))
    await store.append(append("server", started(3)))
    await store.close()


def judge(path: Path) -> Verdict:
    with LogReader(path) as reader:
        return verify_log(reader)


def flipped(value: Any, bit: int) -> Any:
    if isinstance(value, int):
        number = (value ^ (1 << bit % 64)) & (2**64 - 1)
        return number - 2**64 if number >= 2**63 else number
    changed = bytearray(value.encode() if isinstance(value, str) else value)
    changed[bit // 8 % len(changed)] ^= 1 << bit % 8
    return bytes(changed)


def change(path: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_an_unharmed_log_has_no_fault(log: Path) -> None:
    verdict = judge(log)
    assert verdict.fault is None
    with LogReader(log) as reader:
        assert verdict.head == reader.head()
        assert verify(reader.events(), reader.head(), reader.streams()) == verdict


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    where=st.sampled_from(COLUMNS),
    row=st.integers(min_value=0, max_value=10**6),
    bit=st.integers(min_value=0, max_value=10**6),
)
def test_one_flipped_bit_is_found_wherever_it_is(
    log: Path, tmp_path: Path, where: tuple[str, str], row: int, bit: int
) -> None:
    table, column = where
    damaged = tmp_path / "damaged.db"
    shutil.copyfile(log, damaged)
    connection = sqlite3.connect(damaged)
    rows = connection.execute(
        f"SELECT rowid, {column}, typeof({column}) FROM {table} WHERE {column} IS NOT NULL"
    ).fetchall()
    rowid, value, kind = rows[row % len(rows)]
    try:
        with connection:
            connection.execute(
                f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE rowid = ?",
                (flipped(value, bit), rowid),
            )
    except sqlite3.IntegrityError:
        assume(False)  # the database itself does not take it
    finally:
        connection.close()
    fault = judge(damaged).fault
    assert fault is not None
    if table == "events" and column not in ("position", "hash"):
        assert fault.position == rowid


def test_an_event_that_is_gone_is_missed(log: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    shutil.copyfile(log, damaged)
    change(damaged, "DELETE FROM events WHERE position = 7")
    verdict = judge(damaged)
    assert verdict.fault is not None
    assert verdict.fault.position == 7
    assert "missing" in verdict.fault.reason
    assert verdict.head.position == 6


def test_a_log_cut_off_at_its_end_does_not_fit_its_head(log: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    shutil.copyfile(log, damaged)
    change(damaged, "DELETE FROM events WHERE position > 20")
    verdict = judge(damaged)
    assert verdict.fault is not None
    assert verdict.fault.position == 21
    assert "head" in verdict.fault.reason


def test_a_row_of_a_stream_that_was_removed_is_missed(log: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    shutil.copyfile(log, damaged)
    change(damaged, "INSERT INTO streams VALUES (99, 'ghost', NULL, 1, 0, 1)")
    fault = judge(damaged).fault
    assert fault is not None
    assert "ghost" in fault.reason


def recorded(position: int, previous: bytes, **changes: Any) -> Recorded:
    """An event whose hash is right whatever else is not."""
    fields: dict[str, Any] = {
        "position": position,
        "stream": "s",
        "version": position,
        "type": "NodeStarted",
        "schema_version": 1,
        "recorded_at": position,
        "payload": b"{}",
        "content": None,
        "key_ref": None,
        **changes,
    }
    return Recorded(**fields, hash=chain.link(previous, **fields))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 3}, "version 3 of s"),
        ({"recorded_at": 0}, "before the one before"),
        ({"content": b""}, "empty content"),
    ],
)
def test_what_a_writer_must_never_write_is_a_fault(changes: dict[str, Any], reason: str) -> None:
    first = recorded(1, chain.GENESIS)
    second = recorded(2, first.hash, **changes)
    fault = verify([first, second], Head(2, second.hash)).fault
    assert fault is not None
    assert fault.position == 2
    assert reason in fault.reason


def test_a_head_kept_elsewhere_shows_a_log_that_was_rewritten() -> None:
    kept = Head(1, recorded(1, chain.GENESIS).hash)
    forged = recorded(1, chain.GENESIS, payload=b'{"forged":1}')
    assert verify([forged], Head(1, forged.hash)).fault is None
    fault = verify([forged], kept).fault
    assert fault is not None
    assert "hash" in fault.reason


def test_streams_are_verified_where_they_are_given() -> None:
    event = recorded(1, chain.GENESIS)
    head, right = Head(1, event.hash), StreamInfo(name="s", version=1, attempt=0, open=True)
    assert verify([event], head, [right]).fault is None
    for wrong in ([], [msgspec.structs.replace(right, open=False)]):
        assert verify([event], head, wrong).fault is not None


async def test_a_log_in_use_verifies_while_it_grows(tmp_path: Path) -> None:
    store = await SqliteEventStore.open(tmp_path / "log.db")
    await store.append(append("s", *(chunk(n) for n in range(10))))
    with LogReader(tmp_path / "log.db") as reader:
        events = reader.events()
        next(events)
        await store.append(append("s", *(chunk(n) for n in range(10))))
        assert verify_log(reader) == Verdict(head=await store.head())
    await store.close()
