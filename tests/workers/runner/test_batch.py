import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.runner.fakes import FakeEngine, answer, order
from workers.protocol import Insert, ProtocolError, Row
from workers.runner.batch import Batch

Rows = defaultdict[int, list[Row]]


def run(batch: Batch, limit: int = 1000) -> Rows:
    """Step until all rows are over."""
    rows: Rows = defaultdict(list)
    for _ in range(limit):
        if batch.idle:
            return rows
        for row in batch.step():
            rows[row.uid].append(row)
    raise AssertionError("the batch never ends")


def tokens(rows: list[Row]) -> tuple[int, ...]:
    for before, after in itertools.pairwise(rows):
        assert before.finish_reason is None
        assert after.first_index == before.first_index + len(before.token_ids)
    return tuple(token for row in rows for token in row.token_ids)


def batch_of(engine: FakeEngine, *inserts: Insert) -> Batch:
    batch = Batch(engine, lambda: 0)
    for insert in inserts:
        batch.insert(insert)
    return batch


def prompts(count: int) -> list[tuple[int, ...]]:
    return [(1, index) for index in range(count)]


def test_rows_run_side_by_side_to_their_ends() -> None:
    inserts = [order(uid, prompt, 5) for uid, prompt in enumerate(prompts(3))]
    rows = run(batch_of(FakeEngine(), *inserts))
    for insert in inserts:
        assert tokens(rows[insert.uid]) == answer(insert.prompt, 5)
        assert rows[insert.uid][-1].finish_reason == "length"


@given(
    st.integers(1, 6),
    st.dictionaries(st.integers(0, 5), st.integers(0, 6), max_size=4),
    st.booleans(),
)
def test_whoever_fails_alone_ends_with_an_error_and_nobody_else_notices(
    count: int, poison: dict[int, int], named: bool
) -> None:
    engine = FakeEngine()
    engine.poison, engine.named = poison, named
    inserts = [order(uid, prompt, 6) for uid, prompt in enumerate(prompts(count))]
    rows = run(batch_of(engine, *inserts))
    for insert in inserts:
        mine, at = rows[insert.uid], poison.get(insert.uid, 6)
        assert tokens(mine) == answer(insert.prompt, 6)[:at]
        assert mine[-1].finish_reason == ("error" if at < 6 else "length")
        assert ("poison" in (mine[-1].error_message or "")) == (at < 6)


@given(st.integers(2, 5), st.integers(1, 6))
def test_a_bad_moment_costs_nobody_anything(count: int, step: int) -> None:
    engine = FakeEngine()
    engine.failing_steps = {step}
    inserts = [order(uid, prompt, 6) for uid, prompt in enumerate(prompts(count))]
    rows = run(batch_of(engine, *inserts))
    assert [tokens(rows[i.uid]) for i in inserts] == [answer(i.prompt, 6) for i in inserts]


def test_a_named_culprit_is_not_looked_for() -> None:
    engine = FakeEngine()
    engine.poison = {1: 2}
    run(batch_of(engine, *(order(uid, prompt) for uid, prompt in enumerate(prompts(3)))))
    assert engine.log.count("reset") == 1


def test_suspects_run_alone_and_only_for_a_token_each() -> None:
    engine = FakeEngine()
    engine.poison, engine.named = {1: 0}, False
    batch = batch_of(engine, *(order(uid, prompt, 2) for uid, prompt in enumerate(prompts(3))))
    assert batch.step() == []
    engine.log.clear()
    first, second, third, fourth = (batch.step() for _ in range(4))
    assert [row.uid for row in first] == [0]
    assert [(row.uid, row.finish_reason) for row in second] == [(1, "error")]
    assert [row.uid for row in third] == [2]
    assert {row.uid for row in fourth} == {0, 2}
    alone = ["insert 0", "remove 0", "insert 1", "reset", "insert 2", "remove 2"]
    assert engine.log[: len(alone)] == alone


def test_rows_that_come_while_suspects_are_tried_wait_their_turn() -> None:
    engine = FakeEngine()
    engine.failing_steps = {1}
    batch = batch_of(engine, order(0, (1,)), order(1, (2,)))
    batch.step()
    batch.insert(order(2, (3,)))
    assert batch.stats().waiting == 3
    assert [row.uid for row in batch.step()] == [0]
    rows = run(batch)
    assert tokens(rows[2]) == answer((3,), 5)
    assert tokens(rows[1]) == answer((2,), 5)


def test_a_suspect_can_be_removed() -> None:
    engine = FakeEngine()
    engine.failing_steps = {1}
    batch = batch_of(engine, order(0, (1,)), order(1, (2,)))
    batch.step()
    batch.remove(0)
    rows = run(batch)
    assert 0 not in rows
    assert tokens(rows[1]) == answer((2,), 5)


def test_a_row_that_cannot_be_inserted_fails_alone() -> None:
    engine = FakeEngine()
    engine.refused = {1}
    rows = run(batch_of(engine, order(0, (1,)), order(1, (2,), logged=(97,)), order(2, (3,))))
    [refused] = rows[1]
    assert (refused.finish_reason, refused.error_message) == ("error", "not this one")
    assert refused.first_index == 1
    assert tokens(rows[2]) == answer((3,), 5)


def test_the_next_row_is_served_after_a_failed_one() -> None:
    engine = FakeEngine()
    engine.poison = {0: 0}
    batch = batch_of(engine, order(0, (1,)))
    assert run(batch)[0][-1].finish_reason == "error"
    batch.insert(order(1, (2,)))
    assert tokens(run(batch)[1]) == answer((2,), 5)


def test_a_removed_row_is_not_spoken_of() -> None:
    engine = FakeEngine()
    engine.refused = {2}
    batch = batch_of(engine, order(0, (1,)), order(1, (2,)))
    batch.step()
    batch.remove(1)
    batch.insert(order(2, logged=(97,), emitted=1))
    batch.insert(order(3, logged=(0,), emitted=0))
    batch.remove(2)
    batch.remove(3)
    rows = run(batch)
    assert set(rows) == {0}
    assert "remove 1" in engine.log


def test_an_answer_that_was_complete_only_ends() -> None:
    engine = FakeEngine()
    batch = batch_of(engine, order(0, logged=(97, 0), emitted=1))
    [[ended]] = run(batch).values()
    assert (ended.first_index, ended.token_ids, ended.finish_reason) == (2, (), "stop")
    assert engine.log == []


def test_a_row_goes_on_after_its_logged_tokens() -> None:
    whole = answer((1,), 5)
    rows = run(batch_of(FakeEngine(), order(0, (1,), logged=whole[:2], emitted=2)))
    assert tokens(rows[0]) == whole[2:]
    assert rows[0][0].first_index == 2


def test_a_row_inserted_twice_is_the_nodes_mistake() -> None:
    batch = batch_of(FakeEngine(), order(0))
    with pytest.raises(ProtocolError, match="twice"):
        batch.insert(order(0))
