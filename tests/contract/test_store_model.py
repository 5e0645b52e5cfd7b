"""The store behaves as a list, whatever is done to it and wherever its process dies."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain import events as e
from infrastructure.event_store import (
    Append,
    AttemptIs,
    CommandKey,
    DecidedAt,
    GuardFailed,
    Head,
    IsOpen,
    PositionOutOfRange,
    VersionIs,
)
from infrastructure.log_reader import LogReader
from infrastructure.sqlite.store import SqliteEventStore
from infrastructure.verify import verify_log
from tests.contract.base import Batches
from tests.contract.model import Entry, Model, as_entries
from tests.contract.samples import chunk, claim, end, started

STREAMS = ("completion/a", "completion/b", "node/n")

small = st.integers(min_value=0, max_value=4)
some_events = st.lists(
    st.one_of(
        st.builds(chunk, small, small, st.text(max_size=5)),
        st.builds(claim, small),
        st.builds(end, small),
        st.builds(started, small),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
commands = st.builds(
    CommandKey,
    command_id=st.sampled_from("123456"),
    kind=st.just("ChatCompletion"),
    actor=st.sampled_from(["x", "y"]),
    idempotency_key=st.none() | st.sampled_from(["k", "l"]),
    body_digest=st.just("digest"),
)
guards = st.one_of(
    st.builds(VersionIs, small),
    st.builds(AttemptIs, small),
    st.just(IsOpen()),
    # A decision about as old as the log's end, or older.
    st.builds(DecidedAt, st.integers(min_value=-6, max_value=0)),
)
appends = st.builds(
    Append,
    stream=st.sampled_from(STREAMS),
    events=some_events,
    guards=st.lists(guards, max_size=2).map(tuple),
    durable=st.booleans(),
    command=st.none() | commands,
)


class Follower:
    """A follower of the store, and what it has seen."""

    def __init__(self, batches: Batches, after: int, stream: str | None, tokens: bool) -> None:
        self.batches = batches
        self.after = after
        self.stream = stream
        self.tokens = tokens
        self.seen: list[Entry] = []

    async def catch_up(self, model: Model) -> None:
        """Take what the model says there is, and no more."""
        expected = model.read(self.after, len(model.log), self.stream, None, self.tokens, None)
        async with asyncio.timeout(10):
            while len(self.seen) < len(expected):
                self.seen.extend(as_entries(await anext(self.batches)))
        assert self.seen == expected


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.home = Path(tempfile.mkdtemp(prefix="inferlog-model-"))
        self.logs = 0
        self.model = Model()
        self.followers: list[Follower] = []
        self.store = self.run(self.open())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    @property
    def path(self) -> Path:
        return self.home / f"log{self.logs}.db"

    async def open(self) -> SqliteEventStore:
        # A ring so small that followers keep falling out of it.
        return await SqliteEventStore.open(self.path, feed_events=4)

    @rule(batch=st.lists(appends, min_size=1, max_size=4))
    def append(self, batch: list[Append]) -> None:
        end_of_log = len(self.model.log)
        group = [
            Append(
                stream=a.stream,
                events=a.events,
                guards=tuple(
                    DecidedAt(max(0, end_of_log + g.position)) if isinstance(g, DecidedAt) else g
                    for g in a.guards
                ),
                durable=a.durable,
                command=a.command,
            )
            for a in batch
        ]
        expected = [self.model.append(append) for append in group]
        results = self.run(self.store.append_all(group))
        failures = [type(r).__name__ if isinstance(r, GuardFailed) else None for r in results]
        assert failures == expected
        recorded = [r for result in results if isinstance(result, tuple) for r in result]
        assert as_entries(recorded) == self.model.log[end_of_log:]

    @rule(
        after=st.integers(min_value=0, max_value=40),
        limit=st.integers(min_value=1, max_value=10),
        stream=st.none() | st.sampled_from(STREAMS),
        types=st.none() | st.sets(st.sampled_from(sorted(e.EVENT_TYPES)), max_size=3),
        tokens=st.booleans(),
        up_to=st.none() | st.integers(min_value=0, max_value=40),
    )
    def read(
        self,
        after: int,
        limit: int,
        stream: str | None,
        types: set[str] | None,
        tokens: bool,
        up_to: int | None,
    ) -> None:
        try:
            page = self.run(
                self.store.read(
                    after, limit, stream=stream, types=types, tokens=tokens, up_to=up_to
                )
            )
        except PositionOutOfRange:
            assert after > len(self.model.log)
        else:
            expected = self.model.read(after, limit, stream, types, tokens, up_to)
            assert as_entries(page) == expected

    @rule(
        back=st.integers(min_value=0, max_value=10),
        stream=st.none() | st.sampled_from(STREAMS),
        tokens=st.booleans(),
    )
    def follow(self, back: int, stream: str | None, tokens: bool) -> None:
        after = max(0, len(self.model.log) - back)
        batches = self.store.follow(after, stream=stream, tokens=tokens)
        self.followers.append(Follower(batches, after, stream, tokens))

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        self.run(data.draw(st.sampled_from(self.followers)).catch_up(self.model))

    @rule()
    def close_and_reopen(self) -> None:
        self.stop()
        self.store = self.run(self.open())

    @rule()
    def crash(self) -> None:
        """The process dies; the next one finds what had reached the operating system."""
        before = self.path
        self.logs += 1
        for suffix in ("", "-wal"):
            part = before.with_name(before.name + suffix)
            if part.exists():
                shutil.copyfile(part, self.path.with_name(self.path.name + suffix))
        self.stop()
        self.store = self.run(self.open())

    @invariant()
    def heads_agree(self) -> None:
        for name in STREAMS:
            assert self.run(self.store.stream(name)) == self.model.info(name)
        head: Head = self.run(self.store.head())
        assert head.position == len(self.model.log)

    def stop(self) -> None:
        for follower in self.followers:
            self.run(follower.catch_up(self.model))
            self.run(follower.batches.aclose())
        self.followers.clear()
        self.run(self.store.close())

    def teardown(self) -> None:
        self.stop()
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()
        with LogReader(self.path) as reader:
            assert verify_log(reader).fault is None
            assert as_entries(list(reader.events())) == self.model.log
        shutil.rmtree(self.home)


StoreMachine.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_the_store_behaves_as_a_list = StoreMachine.TestCase
