"""A worker that plays scripts instead of running models, over the real log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec

from domain import events as e
from domain import streams
from domain.commands import Caller, CreateInstance, ModelFacts
from domain.completion import failure
from domain.errors import Code
from infrastructure.command_bus import CommandBus
from infrastructure.event_store import Append, AttemptIs, EventStore, VersionIs
from infrastructure.projection import Projection

NODE = "node-1"
INSTANCE = "instance-1"
RUNNER = "runner-1"
SYSTEM = Caller(actor="system", request_id="start")
FACTS = ModelFacts(weights_digest="w" * 64, tokenizer_digest="t" * 64, template_digest="c" * 64)


class Say(msgspec.Struct, frozen=True):
    """One chunk of text, which is one token."""

    text: str


class Silent(msgspec.Struct, frozen=True):
    """A token without text, as in the middle of a character."""


class Stop(msgspec.Struct, frozen=True):
    """The answer is complete."""

    reason: e.FinishReason = "stop"


class Fail(msgspec.Struct, frozen=True):
    """The request fails."""

    code: Code = "generation_failed"
    message: str = "The model broke."


class Cancel(msgspec.Struct, frozen=True):
    """The request is cancelled."""


class Wait(msgspec.Struct, frozen=True):
    """Nothing happens until the event is set."""

    event: asyncio.Event


Step = Say | Silent | Stop | Fail | Cancel | Wait
HELLO: tuple[Step, ...] = (Say("Hello"), Say(","), Say(" world"), Stop())


class FakeWorker:
    """Plays `script` for every task, each in its own asyncio task."""

    def __init__(self, store: EventStore, projection: Projection, bus: CommandBus) -> None:
        self._store = store
        self._projection = projection
        self._bus = bus
        self._playing: set[asyncio.Task[None]] = set()
        self.script: Callable[[e.TaskCreated], Sequence[Step]] = lambda task: HELLO
        self.tasks: list[e.TaskCreated] = []
        self.claims = True

    async def place(self, model_id: str, instance_id: str = INSTANCE, runner: str = RUNNER) -> None:
        """Create an instance, not ready yet."""
        command = CreateInstance(
            command_id=f"create-{instance_id}",
            instance_id=instance_id,
            model_id=model_id,
            source="default",
            node_id=NODE,
            runner_ids=(runner,),
            placed_by="test",
        )
        await self._bus.dispatch(command, SYSTEM, b"")

    async def prepared(self, model_id: str, folder: Path, context: int = 2048) -> None:
        """The model's folder is there."""
        await self.fold(
            streams.node(NODE),
            e.ModelPrepared(
                model_id=model_id,
                node_id=NODE,
                source="default",
                path=str(folder),
                model=FACTS,
                context_length=context,
                vocab_size=1024,
                size_bytes=1,
                architecture="llama",
            ),
        )

    async def ready(self, model_id: str, folder: Path, context: int = 2048) -> None:
        """An instance whose runner takes tasks."""
        await self.place(model_id)
        await self.prepared(model_id, folder, context)
        await self.status(e.Ready())

    async def status(self, status: e.RunnerStatus, instance_id: str = INSTANCE) -> None:
        """The runner moves on."""
        await self.fold(
            streams.instance(instance_id),
            e.RunnerStatusUpdated(
                runner_id=RUNNER,
                instance_id=instance_id,
                node_id=NODE,
                epoch=1,
                at=1,
                status=status,
            ),
        )

    async def say(self, stream: str, *events: e.Event) -> None:
        """Append events."""
        await self._store.append(Append(stream=stream, events=events))

    async def fold(self, stream: str, *events: e.Event) -> None:
        """Append events that change State, and see that State has them."""
        recorded = await self._store.append(Append(stream=stream, events=events))
        await self._projection.wait_past(recorded[-1].position - 1, 5)

    async def run(self) -> None:
        """Play for every task from now on."""
        after = (await self._store.head()).position
        async with aclosing(self._store.follow(after, tokens=False)) as batches:
            async for batch in batches:
                for recorded in batch:
                    if isinstance(event := recorded.event, e.TaskCreated):
                        self.tasks.append(event)
                        if not self.claims:
                            continue
                        playing = asyncio.create_task(self._play(event))
                        self._playing.add(playing)
                        playing.add_done_callback(self._playing.discard)

    async def close(self) -> None:
        """Stop playing."""
        for task in list(self._playing):
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)

    async def _play(self, task: e.TaskCreated) -> None:
        stream = streams.completion(task.task_id)
        claim = e.TaskAcknowledged(
            task_id=task.task_id,
            attempt=1,
            node_id=NODE,
            epoch=1,
            instance_id=INSTANCE,
            runner_id=RUNNER,
        )
        await self._store.append(Append(stream=stream, events=(claim,), guards=(VersionIs(2),)))
        tokens = 0
        for step in self.script(task):
            if isinstance(step, Wait):
                await step.event.wait()
                continue
            events = played(task.task_id, tokens, step)
            tokens += sum(len(x.token_ids) for x in events if isinstance(x, e.ChunkGenerated))
            await self._store.append(Append(stream=stream, events=events, guards=(AttemptIs(1),)))


def played(task_id: str, tokens: int, step: Step) -> tuple[e.Event, ...]:
    """The events of one step."""

    def chunk(**fields: object) -> e.ChunkGenerated:
        return e.ChunkGenerated(attempt=1, first_index=tokens, **fields)  # type: ignore[arg-type]

    def end(status: e.Ended, count: int) -> e.TaskStatusUpdated:
        return e.TaskStatusUpdated(
            task_id=task_id, attempt=1, status=status, completion_tokens=count
        )

    match step:
        case Say():
            return (chunk(token_ids=(7,), deltas=(e.Content(step.text),)),)
        case Silent():
            return (chunk(token_ids=(7,)),)
        case Stop():
            return (chunk(token_ids=(2,), finish_reason=step.reason), end("Complete", tokens + 1))
        case Fail():
            return failure(task_id, 1, tokens, step.code, step.message)
        case Cancel():
            return (end("Cancelled", tokens),)
        case Wait():
            return ()
