from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain import events as e
from domain import state as fold
from domain.decide import Policy
from domain.plan import SECOND
from domain.state import LOAD_TRIES, State
from tests import strategies
from tests.domain.world import NODE, World

MODELS = ("a", "b")
POLICY = Policy(queue=5)


def drain(world: World) -> None:
    """Let the node work undisturbed until nothing is left to do."""
    for _ in range(500):
        world.now += 10 * SECOND
        busy = world.act()
        for runner in list(world.processes):
            world.ready(runner)
            world.step(runner)
        if not busy and not world.state.tasks:
            return
    raise AssertionError(f"tasks that never end: {world.state.tasks}")


def failed_with(world: World, task: str) -> str | None:
    """The code with which a task failed."""
    last = world.of(task)[-1]
    return last.code if isinstance(last, e.TaskFailed) else None


class Lifecycle(RuleBasedStateMachine):
    """Any commands, deaths and restarts, in any order, then a drain."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.create("a")
        drain(self.world)

    @rule(model=st.sampled_from(MODELS))
    def ask(self, model: str) -> None:
        waiting = sum(task.status == "Pending" for task in self.world.state.tasks.values())
        refusal = self.world.chat(model, POLICY)
        if waiting >= POLICY.queue:
            assert refusal is not None

    @rule(model=st.sampled_from(MODELS))
    def create_instance(self, model: str) -> None:
        self.world.create(model)

    @precondition(lambda self: self.world.state.instances)
    @rule(data=st.data())
    def delete_instance(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(sorted(self.world.state.instances)))
        self.world.append(e.InstanceDeleted(instance_id=instance))

    @rule(prepare_fails=st.booleans())
    def work(self, prepare_fails: bool) -> None:
        self.world.act(prepare_fails)

    @rule(seconds=st.integers(min_value=0, max_value=700))
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds * SECOND

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), finish=st.sampled_from([None, None, "stop", "error"]))
    def step(self, data: st.DataObject, finish: e.FinishReason | None) -> None:
        runner = data.draw(st.sampled_from(sorted(self.world.processes)))
        self.world.ready(runner)
        self.world.step(runner, finish)

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), permanent=st.booleans())
    def runner_dies(self, data: st.DataObject, permanent: bool) -> None:
        runner = data.draw(st.sampled_from(sorted(self.world.processes)))
        self.world.die(runner, permanent and not self.world.processes[runner].ready)

    @rule()
    def node_is_killed_and_starts_again(self) -> None:
        self.world.start_node()

    @invariant()
    def state_is_the_fold_of_the_log(self) -> None:
        assert fold.fold(self.world.events) == self.world.state

    @invariant()
    def no_token_is_lost_or_written_twice(self) -> None:
        for task in self.world.accepted:
            story = self.world.story(task)
            assert story == list(range(len(story)))

    def teardown(self) -> None:
        drain(self.world)
        for task in self.world.accepted:
            ends = [
                event
                for event in self.world.of(task)
                if isinstance(event, e.TaskFailed | e.TaskStatusUpdated)
            ]
            assert len(ends) == 1, f"{task} has {len(ends)} ends"
            assert self.world.of(task)[-1] == ends[0]


TestLifecycle = Lifecycle.TestCase


@given(st.lists(strategies.events, max_size=30), st.data())
def test_folding_a_snapshot_and_its_tail_equals_folding_all(
    events: list[e.Event], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=len(events)))
    snapshot = fold.decode(fold.encode(fold.fold(events[:cut])))
    assert fold.fold(events[cut:], snapshot) == fold.fold(events)


@given(st.lists(strategies.events, max_size=30))
def test_folding_never_changes_the_state_it_was_given(events: list[e.Event]) -> None:
    state = State()
    for event in events:
        before = fold.encode(state)
        after = fold.apply(state, event)
        assert fold.encode(state) == before
        state = after


@given(st.lists(strategies.events, max_size=30))
def test_leaving_out_token_events_gives_the_same_state(events: list[e.Event]) -> None:
    rest = [event for event in events if not isinstance(event, e.ChunkGenerated)]
    assert fold.fold(rest) == fold.fold(events)


def test_a_request_for_a_model_that_no_instance_serves_is_refused() -> None:
    world = World()
    refusal = world.chat("unknown", POLICY)
    assert refusal is not None
    assert (refusal.code, refusal.param) == ("model_not_found", "model")


def test_a_request_while_the_model_folder_is_made_is_refused_as_unavailable() -> None:
    world = World()
    world.create("a")
    refusal = world.chat("a", POLICY)
    assert refusal is not None
    assert refusal.code == "model_unavailable"


def test_requests_wait_while_the_model_loads() -> None:
    world = World()
    world.create("a")
    world.act()
    assert world.chat("a", POLICY) is None
    assert [task.status for task in world.state.tasks.values()] == ["Pending"]
    drain(world)
    assert not world.state.tasks


def test_a_full_queue_refuses_one_more() -> None:
    world = World()
    world.create("a")
    world.act()
    codes = Counter(
        refusal.code if (refusal := world.chat("a", POLICY)) else "accepted" for _ in range(7)
    )
    assert codes == {"accepted": 5, "rate_limit_exceeded": 2}


def test_a_task_goes_on_after_its_runner_died() -> None:
    world = _answering()
    [task] = world.accepted
    [runner] = world.processes
    world.die(runner)
    drain(world)
    claims = [event.attempt for event in world.of(task) if isinstance(event, e.TaskAcknowledged)]
    assert claims == [1, 2]
    assert world.story(task) == list(range(8))


def test_a_task_whose_runner_keeps_dying_without_a_token_fails_alone() -> None:
    world = _answering()
    [task] = world.accepted
    for _ in range(20):
        world.act()
        world.now += 60 * SECOND
        for runner in list(world.processes):
            world.ready(runner)
            if world.processes[runner].batch:
                world.die(runner)
    assert failed_with(world, task) == "runner_crashed"
    assert world.chat("a", POLICY) is None
    drain(world)
    assert isinstance(world.of(world.accepted[-1])[-1], e.TaskStatusUpdated)


def test_a_model_that_cannot_be_loaded_fails_its_requests_and_refuses_new_ones() -> None:
    world = World()
    world.create("a")
    world.act()
    world.chat("a", POLICY)
    world.act()
    [runner] = world.processes
    world.die(runner, permanent=True)
    world.act()
    [task] = world.accepted
    assert failed_with(world, task) == "model_load_failed"
    refusal = world.chat("a", POLICY)
    assert refusal is not None
    assert refusal.code == "model_load_failed"


def test_a_runner_that_keeps_dying_while_it_loads_is_given_up() -> None:
    world = World()
    world.create("a")
    for _ in range(LOAD_TRIES):
        world.now += 60 * SECOND
        world.act()
        world.act()
        [runner] = world.processes
        world.die(runner)
    world.now += 60 * SECOND
    assert not world.act()


def test_deleting_an_instance_ends_its_requests_by_name() -> None:
    world = _answering()
    [instance] = world.state.instances
    world.append(e.InstanceDeleted(instance_id=instance))
    world.act()
    [task] = world.accepted
    assert failed_with(world, task) == "instance_deleted"
    assert not world.processes


def test_a_request_that_waits_past_the_deadline_fails_by_name() -> None:
    world = World()
    world.create("a")
    world.act()
    world.chat("a", POLICY)
    world.now += 601 * SECOND
    world.act()
    [task] = world.accepted
    assert failed_with(world, task) == "deadline_exceeded"


def test_a_status_from_before_the_node_restarted_is_ignored() -> None:
    world = _answering()
    [runner] = world.state.runners
    late = e.RunnerStatusUpdated(
        runner_id=runner,
        instance_id=world.state.runners[runner].instance_id,
        node_id=NODE,
        epoch=world.epoch,
        at=0,
        status=e.Ready(),
    )
    world.start_node()
    world.append(late)
    assert isinstance(world.state.runners[runner].status, e.Idle)


def _answering() -> World:
    """A world in which one request has one token."""
    world = World()
    world.create("a")
    world.act()
    world.act()
    [runner] = world.processes
    world.ready(runner)
    world.chat("a", POLICY)
    world.act()
    world.step(runner)
    return world
