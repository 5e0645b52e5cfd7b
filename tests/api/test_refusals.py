"""Refusals in the log, one by one and counted."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.refusals import BURST, RATE, Refusals
from domain import events as e
from domain.commands import Caller
from infrastructure.event_store import Append, EventStore, LogUnavailable
from infrastructure.opening import open_store


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def seconds(self) -> float:
        return self.now

    def microseconds(self) -> int:
        return int(self.now * 1_000_000)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EventStore]:
    opened = await open_store("", tmp_path)
    yield opened
    await opened.close()


def refused(actor: str = "anonymous", code: Any = "bad_request") -> e.RequestRefused:
    return e.RequestRefused(
        caller=Caller(actor=actor, request_id="r"),
        method="GET",
        path="/",
        status=400,
        code=code,
        message="no",
    )


async def logged(store: EventStore) -> list[e.Event]:
    return [recorded.event for recorded in await store.read(0, 1000)]


async def test_a_flood_is_recorded_up_to_a_rate_and_then_counted(store: EventStore) -> None:
    clock = Clock()
    refusals = Refusals(store, clock.microseconds, clock.seconds)
    for _ in range(BURST + 5):
        await refusals.record(refused())
    assert len(await logged(store)) == BURST
    clock.now += 7
    await refusals.record(refused(code="unknown_path"))
    for _ in range(int(7 * RATE)):
        await refusals.record(refused(code="unknown_path"))
    await refusals.flush()
    *ones, summary = await logged(store)
    assert len(ones) == BURST + int(7 * RATE)
    assert summary == e.RefusalsSummarized(
        actor="anonymous",
        count=6,
        since=1_000_000_000,
        until=1_007_000_000,
        codes={"bad_request": 5, "unknown_path": 1},
    )


async def test_actors_are_counted_apart(store: EventStore) -> None:
    refusals = Refusals(store, lambda: 0, lambda: 0.0)
    for _ in range(BURST):
        assert refusals.admit("a", "bad_request")
    assert not refusals.admit("a", "bad_request")
    assert refusals.admit("b", "bad_request")


async def test_nothing_is_written_where_nothing_was_counted(store: EventStore) -> None:
    refusals = Refusals(store, lambda: 0)
    await refusals.flush()
    assert await logged(store) == []


async def test_what_the_log_does_not_take_is_counted_on(
    store: EventStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(appends: list[Append]) -> Any:
        raise LogUnavailable("the disk is full")

    refusals = Refusals(store, lambda: 5)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(store, "append_all", full)
        await refusals.record(refused())
        await refusals.flush()
        await refusals.record(refused())
        await refusals.flush()
    assert "the disk is full" in caplog.text
    await refusals.flush()
    [summary] = await logged(store)
    assert isinstance(summary, e.RefusalsSummarized)
    assert (summary.count, summary.codes) == (2, {"bad_request": 2})
