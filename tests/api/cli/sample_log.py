"""A log as a server leaves it, written through the real store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from domain import events as e
from domain import streams
from domain.commands import Caller, ModelFacts, Sampling
from infrastructure.event_store import Append, CommandKey, EventStore
from infrastructure.opening import open_store

FACTS = ModelFacts(weights_digest="ab" * 32, tokenizer_digest="cd" * 32, template_digest="ef" * 32)
CALLER = Caller(
    actor="anonymous",
    request_id="req-1",
    client="127.0.0.1:5000",
    headers={"user-agent": "OpenAI/Python 3.57"},
)
GOOD = "0192f0c1-0000-7000-8000-00000000a001"
BAD = "0192f0c1-0000-7000-8000-00000000a002"
REFUSED = "0192f0c1-0000-7000-8000-00000000a003"
RUNNING = "0192f0c1-0000-7000-8000-00000000a004"
INSTANCE = "0192f0c1-0000-7000-8000-00000000b001"
CREATION = "0192f0c1-0000-7000-8000-00000000e001"
NODE = "0192f0c1-0000-7000-8000-00000000c001"
RUNNER = "0192f0c1-0000-7000-8000-00000000d001"
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"Say \\u00e4"}]}'
EVENTS = 26
"""How many `fill` appends."""
MESSAGE = "The step failed.\x1b[31m"


def accepted(command_id: str, kind: str = "ChatCompletion") -> e.CommandAccepted:
    return e.CommandAccepted(
        command_id=command_id, kind=kind, caller=CALLER, body_digest="00", body=BODY
    )


def created(task_id: str) -> e.TaskCreated:
    return e.TaskCreated(
        task_id=task_id,
        model_id="tiny",
        model=FACTS,
        created_at=1,
        sampling=Sampling(seed=7, temperature=0.5, max_tokens=9),
        prompt_tokens=3,
        stream=True,
        prompt_text="<user>Say ä\n<assistant>",
        token_ids=(1, 2, 3),
        stop=("END",),
        metadata={"team": "blue"},
    )


def claimed(task_id: str, attempt: int) -> e.TaskAcknowledged:
    return e.TaskAcknowledged(
        task_id=task_id,
        attempt=attempt,
        node_id=NODE,
        epoch=1,
        instance_id=INSTANCE,
        runner_id=RUNNER,
    )


def chunk(
    attempt: int, index: int, text: str, offset: int, finish: e.FinishReason | None = None
) -> e.ChunkGenerated:
    return e.ChunkGenerated(
        attempt=attempt,
        first_index=index,
        token_ids=(10 + index,),
        deltas=(e.Content(text),),
        finish_reason=finish,
        offset=offset,
    )


async def begin(store: EventStore, stream: str, command_id: str, *events: e.Event) -> None:
    """Append the events with which a command is taken on or refused."""
    first = events[0]
    assert isinstance(first, e.CommandAccepted | e.CommandRefused)
    key = CommandKey(
        command_id=command_id,
        kind=first.kind,
        actor="anonymous",
        idempotency_key=None,
        body_digest="00",
    )
    await store.append(Append(stream=stream, events=events, command=key, durable=True))


async def go_on(store: EventStore, stream: str, *events: e.Event) -> None:
    """Append to a stream."""
    await store.append(Append(stream=stream, events=events))


async def fill(store: EventStore) -> None:
    """A node's start, its instance, and completions that ended in different ways."""
    node, instance = streams.node(NODE), streams.instance(INSTANCE)
    await go_on(store, node, e.NodeStarted(node_id=NODE, epoch=1, versions={"inferlog": "0.1.0"}))
    await begin(
        store,
        instance,
        CREATION,
        accepted(CREATION, "CreateInstance"),
        e.InstanceCreated(
            instance_id=INSTANCE,
            model_id="tiny",
            source="/models/tiny",
            placed_by="serve",
            shards=(e.Shard(runner_id=RUNNER, node_id=NODE, rank=0, world_size=1),),
        ),
    )
    await go_on(
        store,
        node,
        e.ModelPrepared(
            model_id="tiny",
            node_id=NODE,
            source="/models/tiny",
            path="/models/tiny",
            model=FACTS,
            context_length=2048,
            vocab_size=64,
            size_bytes=5_000_000,
            architecture="llama",
        ),
    )
    for status in (e.Loading(), e.Ready()):
        await go_on(
            store,
            instance,
            e.RunnerStatusUpdated(
                runner_id=RUNNER,
                instance_id=INSTANCE,
                node_id=NODE,
                epoch=1,
                at=2,
                status=status,
            ),
        )
    await _completions(store)


async def _completions(store: EventStore) -> None:
    await begin(store, streams.completion(GOOD), GOOD, accepted(GOOD), created(GOOD))
    good = streams.completion(GOOD)
    await go_on(store, good, claimed(GOOD, 1), chunk(1, 0, "Ä", 100_000))
    await go_on(
        store,
        good,
        e.AttemptEnded(
            task_id=GOOD,
            attempt=1,
            reason="runner_died",
            committed_tokens=1,
            error_message="killed by signal 9",
        ),
        claimed(GOOD, 2),
        chunk(2, 1, " wide\n", 200_000),
        chunk(2, 2, "answer", 300_000),
        chunk(2, 3, ".", 400_000, "stop"),
        e.TaskStatusUpdated(task_id=GOOD, attempt=2, status="Complete", completion_tokens=4),
    )
    await begin(store, streams.completion(BAD), BAD, accepted(BAD), created(BAD))
    await go_on(
        store,
        streams.completion(BAD),
        claimed(BAD, 1),
        e.ChunkGenerated(attempt=1, first_index=0, finish_reason="error", error_message=MESSAGE),
        e.TaskFailed(
            task_id=BAD, attempt=1, code="generation_failed", completion_tokens=0, message=MESSAGE
        ),
    )
    refused = e.CommandRefused(
        command_id=REFUSED,
        kind="ChatCompletion",
        caller=CALLER,
        body_digest="00",
        code="model_not_found",
        param="model",
        message="The model 'x' does not exist.",
        body=BODY,
    )
    await begin(store, streams.completion(REFUSED), REFUSED, refused)
    await begin(store, streams.completion(RUNNING), RUNNING, accepted(RUNNING), created(RUNNING))
    await go_on(store, streams.completion(RUNNING), claimed(RUNNING, 1), chunk(1, 0, "So", 5))


def make(home: Path) -> Path:
    """Write the log and close it; its file."""

    async def write() -> None:
        store = await open_store("", home)
        try:
            await fill(store)
        finally:
            await store.close()

    asyncio.run(write())
    return home / "log.db"
