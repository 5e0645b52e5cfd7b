"""A whole node in memory: the log's rules, decide, plan and a worker, without I/O or time.

Hypothesis steers it; the rules that it checks are the ones every real part relies on.
"""

from __future__ import annotations

from collections import defaultdict

from domain import events as e
from domain.actions import (
    Action,
    ClaimTask,
    EndAttempt,
    EndTask,
    PrepareModel,
    StartRunner,
    StopRunner,
)
from domain.commands import Caller, ChatCompletion, Command, CreateInstance, ModelFacts, Sampling
from domain.completion import failure
from domain.decide import Policy, decide
from domain.errors import Refusal
from domain.plan import Deadlines, Local, LocalRunner, plan
from domain.state import State, apply

NODE = "node-1"
FACTS = ModelFacts(weights_digest="w", tokenizer_digest="t", template_digest="c")
SAMPLING = Sampling(seed=1, max_tokens=8)


def _prepared(model: str, source: str) -> e.ModelPrepared:
    return e.ModelPrepared(
        model_id=model,
        node_id=NODE,
        source=source,
        path="/models",
        model=FACTS,
        context_length=100,
        vocab_size=10,
        size_bytes=1,
        architecture="llama",
    )


def _failed(model: str) -> e.ModelPreparationFailed:
    return e.ModelPreparationFailed(
        model_id=model, node_id=NODE, source=model, error_message="no such model"
    )


class Process:
    """A runner process: its batch, as task id to (attempt, tokens so far)."""

    def __init__(self) -> None:
        self.ready = False
        self.batch: dict[str, tuple[int, int]] = {}


class World:
    """One node, its log and its runners. `now` moves by hand."""

    def __init__(self) -> None:
        self.log: list[tuple[str | None, e.Event]] = []
        self.state = State()
        self.now = 0
        self.epoch = 0
        self.accepted: list[str] = []
        self.processes: dict[str, Process] = {}
        self._attempts: dict[str, int] = defaultdict(int)
        self._closed: set[str] = set()
        self._ids = 0
        self.start_node()

    # --- the log ----------------------------------------------------------------------

    def append(self, *events: e.Event, task: str | None = None, attempt: int = 0) -> bool:
        """Record events; for a task, only if the attempt is current and it has not ended."""
        if task is not None and (task in self._closed or self._attempts[task] != attempt):
            return False
        for event in events:
            self.log.append((task, event))
            self.state = apply(self.state, event)
            if isinstance(event, e.TaskAcknowledged):
                self._attempts[event.task_id] = event.attempt
            if isinstance(event, e.TaskStatusUpdated | e.TaskFailed):
                self._closed.add(event.task_id)
        return True

    def dispatch(self, command: Command, policy: Policy) -> Refusal | None:
        """Decide a command and record the outcome."""
        decision = decide(self.state, command, policy)
        caller = Caller(actor="a", request_id="r")
        if isinstance(decision, Refusal):
            return decision
        accepted = e.CommandAccepted(
            command_id=command.command_id,
            kind=type(command).__name__,
            caller=caller,
            body_digest="",
            body=b"",
        )
        self.append(accepted, *decision)
        if isinstance(command, ChatCompletion):
            self.accepted.append(command.command_id)
        return None

    # --- commands ---------------------------------------------------------------------

    def new_id(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}-{self._ids}"

    def chat(self, model: str, policy: Policy) -> Refusal | None:
        return self.dispatch(
            ChatCompletion(
                command_id=self.new_id("chat"),
                model_id=model,
                model=FACTS,
                created_at=self.now,
                prompt_text="hello",
                token_ids=(1, 2, 3),
                sampling=SAMPLING,
            ),
            policy,
        )

    def create(self, model: str) -> None:
        command = CreateInstance(
            command_id=self.new_id("create"),
            instance_id=self.new_id("instance"),
            model_id=model,
            source=model,
            node_id=NODE,
            runner_ids=(self.new_id("runner"),),
            placed_by="test",
        )
        assert self.dispatch(command, Policy()) is None

    # --- the node ---------------------------------------------------------------------

    def start_node(self) -> None:
        """The node starts, or starts again after a kill."""
        self.epoch += 1
        self.processes = {}
        self.append(e.NodeStarted(node_id=NODE, epoch=self.epoch))

    def local(self) -> Local:
        return Local(
            node_id=NODE,
            epoch=self.epoch,
            runners={
                id: LocalRunner(
                    tasks=frozenset(process.batch),
                    phase="Ready" if process.ready else "Loading",
                    phase_since=self.now,
                    progress_at=self.now,
                )
                for id, process in self.processes.items()
            },
        )

    def act(self, prepare_fails: bool = False) -> bool:
        """Plan once and do it all; whether there was anything to do."""
        actions = plan(self.state, self.local(), self.now, Deadlines(max_batch=2))
        for action in actions:
            self._do(action, prepare_fails)
        return bool(actions)

    def _do(self, action: Action, prepare_fails: bool) -> None:
        match action:
            case PrepareModel(model_id=model, source=source):
                self.append(_failed(model) if prepare_fails else _prepared(model, source))
            case StartRunner(runner_id=runner):
                self.processes[runner] = Process()
                self.status(runner, e.Loading())
            case StopRunner(runner_id=runner):
                del self.processes[runner]
            case ClaimTask():
                self._claim(action)
            case EndAttempt(task_id=task, attempt=attempt, reason=reason):
                ended = e.AttemptEnded(
                    task_id=task,
                    attempt=attempt,
                    reason=reason,
                    committed_tokens=self.tokens(task),
                )
                self.append(ended, task=task, attempt=attempt)
            case EndTask(task_id=task, attempt=attempt, code=code, message=message):
                ending = failure(task, attempt, self.tokens(task), code, message)
                self.append(*ending, task=task, attempt=attempt)
            case _:
                raise TypeError(action)

    def _claim(self, action: ClaimTask) -> None:
        claim = e.TaskAcknowledged(
            task_id=action.task_id,
            attempt=action.attempt,
            node_id=NODE,
            epoch=self.epoch,
            instance_id=action.instance_id,
            runner_id=action.runner_id,
        )
        process = self.processes.get(action.runner_id)
        if self.append(claim, task=action.task_id, attempt=action.attempt - 1) and process:
            process.batch[action.task_id] = (action.attempt, self.tokens(action.task_id))

    def status(self, runner: str, status: e.RunnerStatus) -> None:
        known = self.state.runners.get(runner)
        if known is not None:
            self.append(
                e.RunnerStatusUpdated(
                    runner_id=runner,
                    instance_id=known.instance_id,
                    node_id=NODE,
                    epoch=self.epoch,
                    at=self.now,
                    status=status,
                )
            )

    # --- runners ----------------------------------------------------------------------

    def ready(self, runner: str) -> None:
        if not self.processes[runner].ready:
            self.processes[runner].ready = True
            self.status(runner, e.Ready())

    def step(self, runner: str, finish: e.FinishReason | None = None) -> None:
        """A decode step of every row, the first of which may finish."""
        process = self.processes[runner]
        for place, (task, (attempt, index)) in enumerate(list(process.batch.items())):
            reason = finish if place == 0 else None
            if reason is None and index + 1 >= SAMPLING.max_tokens:
                reason = "length"
            if reason == "error":
                ending = failure(task, attempt, index, "generation_failed", "no")
                self.append(*ending, task=task, attempt=attempt)
            else:
                chunk = e.ChunkGenerated(
                    attempt=attempt,
                    first_index=index,
                    token_ids=(index,),
                    deltas=(e.Content(str(index)),),
                    finish_reason=reason,
                )
                end = e.TaskStatusUpdated(
                    task_id=task, attempt=attempt, status="Complete", completion_tokens=index + 1
                )
                self.append(*((chunk, end) if reason else (chunk,)), task=task, attempt=attempt)
            process.batch[task] = (attempt, index + 1)
            if reason is not None:
                del process.batch[task]

    def die(self, runner: str, permanent: bool = False) -> None:
        del self.processes[runner]
        self.status(runner, e.Failed(error_message="died", permanent=permanent))

    # --- looking ----------------------------------------------------------------------

    def tokens(self, task: str) -> int:
        """How many tokens of a task are in the log."""
        return len(self.story(task))

    def story(self, task: str) -> list[int]:
        """The tokens of a task, in the order of the log."""
        return [
            token
            for event in self.of(task)
            if isinstance(event, e.ChunkGenerated)
            for token in event.token_ids
        ]

    def of(self, task: str) -> list[e.Event]:
        """A task's own events."""
        return [event for owner, event in self.log if owner == task]

    @property
    def events(self) -> list[e.Event]:
        """The whole log."""
        return [event for _, event in self.log]
