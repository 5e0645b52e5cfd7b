from collections.abc import Callable
from typing import Any

import pytest

from tests.workers.runner.fakes import FakeEngine, FakeNode, answer, order
from workers.protocol import (
    CREDIT,
    Committed,
    Evict,
    Frame,
    Load,
    LoadFailed,
    Progress,
    ProtocolError,
    Remove,
    Shutdown,
)
from workers.runner.engine import LoadError
from workers.runner.loop import Loop
from workers.runner.row import LONGEST_MESSAGE

LOAD = Load(model_path="somewhere")


def serve(node: FakeNode, engine: FakeEngine | None = None) -> int:
    return Loop(engine or FakeEngine(), node, node.clock).run()


def pauses(count: int) -> list[None]:
    return [None] * count


def test_a_request_is_answered_in_one_frame_a_step() -> None:
    node = FakeNode(LOAD, order(1, (1,), 3), order(2, (2,), 2), *pauses(9), Shutdown())
    assert serve(node) == 0
    assert [[row.uid for row in frame.rows] for frame in node.frames] == [[1, 2], [1, 2], [1]]
    assert node.frames[0].stats.batch == 2
    tokens = tuple(token for row in node.rows(1) for token in row.token_ids)
    assert tokens == answer((1,), 3)


def test_phases_of_a_load_are_told() -> None:
    node = FakeNode(LOAD, Shutdown())
    serve(node)
    phases = [message.phase for message in node.heard if isinstance(message, Progress)]
    assert phases == ["Loading", "Loaded", "Ready"]
    assert node.heard[1].detail == "somewhere"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (LoadError("Not a model."), "Not a model."),
        (KeyError("hidden_size"), "KeyError: 'hidden_size'"),
        (MemoryError(), "MemoryError"),
        (ValueError("y" * 9000), "y" * LONGEST_MESSAGE),
    ],
)
def test_a_failed_load_is_told_and_ends_the_process(error: Exception, text: str) -> None:
    engine = FakeEngine()
    engine.load_error = error
    node = FakeNode(LOAD, order(1))
    assert serve(node, engine) == 1
    assert node.heard[-1] == LoadFailed(message=text)


def test_no_more_frames_are_sent_than_there_is_credit_for() -> None:
    node = FakeNode(LOAD, order(1, max_tokens=50), *pauses(20), commits=False)
    for step in range(3):
        node.script += [Committed(step=step), *pauses(3)]  # before any frame: no credit in it
    node.script.append(Shutdown())
    serve(node)
    assert len(node.frames) == CREDIT


def test_a_commit_is_credit_for_as_many_frames_as_it_confirms() -> None:
    node = FakeNode(LOAD, order(1, max_tokens=50), *pauses(20), commits=False)
    loop = Loop(FakeEngine(), node, node.clock)
    stop_when(node, lambda: len(node.frames) == CREDIT and not node.script)
    loop.run()
    node.script += [Committed(step=node.frames[1].step), *pauses(5)]
    stop_when(node, lambda: not node.script)
    resume(loop)
    assert len(node.frames) == CREDIT + 2


def stop_when(node: FakeNode, condition: Callable[[], bool]) -> None:
    """Shut the loop down as soon as something is so."""
    original = FakeNode.receive

    def receive(timeout: float) -> Any:
        return Shutdown() if condition() else original(node, timeout)

    node.receive = receive  # type: ignore[method-assign]


def resume(loop: Loop) -> None:
    loop._exit = None
    loop.run()


def test_frames_are_numbered_upwards_with_everything_else() -> None:
    node = FakeNode(LOAD, order(1), *pauses(9), order(2), *pauses(9), Shutdown())
    serve(node)
    steps = [message.step for message in node.heard if isinstance(message, Frame | Progress)]
    assert steps == sorted(set(steps))


def test_there_is_a_sign_of_life_while_nothing_happens() -> None:
    node = FakeNode(LOAD, *pauses(5), Shutdown())
    serve(node)
    assert len([m for m in node.heard[3:] if isinstance(m, Progress)]) == 4


def test_there_is_a_sign_of_life_while_the_node_is_behind() -> None:
    node = FakeNode(LOAD, order(1, max_tokens=50), *pauses(CREDIT + 5), Shutdown(), commits=False)
    serve(node)
    assert isinstance(node.heard[-1], Progress)
    assert len(node.frames) == CREDIT


def test_there_is_a_sign_of_life_while_prompts_are_read() -> None:
    node = FakeNode(LOAD, order(1), *pauses(5), Shutdown())

    class Prefilling(FakeEngine):
        def step(self) -> list[Any]:
            node.now += 700_000_000
            return []

    serve(node, Prefilling())
    assert len([m for m in node.heard[3:] if isinstance(m, Progress)]) == 2


def test_messages_are_heard_between_any_two_steps() -> None:
    node = FakeNode(LOAD, order(1, max_tokens=50), None, Remove(uid=1), *pauses(3), Shutdown())
    serve(node)
    assert len(node.rows(1)) == 1


@pytest.mark.parametrize("poisoned", [False, True])
def test_a_rank_other_than_the_first_says_nothing_of_its_rows(poisoned: bool) -> None:
    engine = FakeEngine()
    engine.poison = {1: 1} if poisoned else {}
    load = Load(model_path="", rank=1, world_size=2)
    node = FakeNode(load, order(1), *pauses(9), Shutdown())
    serve(node, engine)
    assert engine.steps > 0
    assert node.frames == []


def test_a_row_before_a_model_is_the_nodes_mistake() -> None:
    with pytest.raises(ProtocolError, match="before a model"):
        serve(FakeNode(order(1)))


def test_a_second_model_is_the_nodes_mistake() -> None:
    with pytest.raises(ProtocolError, match="second"):
        serve(FakeNode(LOAD, LOAD))


def test_an_end_in_good_order_lets_go_of_the_model() -> None:
    engine = FakeEngine()
    assert serve(FakeNode(LOAD, Evict(), Shutdown()), engine) == 0
    assert engine.log[-1] == "close"
