"""Streams, statistics and State laid out for a terminal, and as plain text for pipes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from api.cli import summaries
from api.cli.output import bold, dim, duration, number, shorten, size, when
from api.cli.pages import coloured, field, table, width
from api.cli.summaries import summary
from api.event_view import iso
from domain import events as e
from domain.state import Model, State
from infrastructure.event_store import Recorded
from infrastructure.log_reader import LogReader, Stats

OUTCOMES = ("TaskStatusUpdated", "TaskFailed", "CommandRefused", "TaskCreated")


class Completions(msgspec.Struct, kw_only=True):
    """What became of all completions.

    Attributes:
        outcomes: how many ended how; an error's code for those that failed or were refused.
        running: those that have not ended.
    """

    accepted: int = 0
    running: int = 0
    outcomes: dict[str, int] = {}
    prompt_tokens: int = 0
    completion_tokens: int = 0


def count_completions(reader: LogReader) -> Completions:
    """Count what became of all completions, without reading their tokens."""
    found = Completions()
    outcomes: Counter[str] = Counter()
    ended = 0
    for recorded in reader.events(types=OUTCOMES, tokens=False):
        match recorded.event:
            case e.TaskCreated() as event:
                found.accepted += 1
                found.prompt_tokens += event.prompt_tokens
            case e.TaskStatusUpdated() as event:
                ended += 1
                outcomes[event.status] += 1
                found.completion_tokens += event.completion_tokens
            case e.TaskFailed() as event:
                ended += 1
                outcomes[f"Failed: {event.code}"] += 1
                found.completion_tokens += event.completion_tokens
            case e.CommandRefused(kind="ChatCompletion") as event:
                outcomes[f"Refused: {event.code}"] += 1
            case _:
                pass
    found.outcomes = dict(outcomes.most_common())
    found.running = found.accepted - ended
    return found


def stats_object(stats: Stats, completions: Completions) -> dict[str, Any]:
    """A log in numbers, as JSON has it."""
    return {
        "head": {"position": stats.head.position, "hash": stats.head.hash.hex()},
        "bytes": stats.size,
        "first_at": None if stats.first_at is None else iso(stats.first_at),
        "last_at": None if stats.last_at is None else iso(stats.last_at),
        "events": stats.events,
        "streams": stats.streams,
        "open_streams": stats.open_streams,
        "commands": stats.commands,
        "completions": completions,
    }


def stats(stats: Stats, completions: Completions) -> Iterator[str]:
    """A log in numbers."""
    yield bold(f"{number(stats.head.position)} events, {size(stats.size)}")
    yield field("head", f"{stats.head.position} {stats.head.hash.hex()}")
    if stats.first_at is not None and stats.last_at is not None:
        yield field("first", when(stats.first_at))
        yield field("last", f"{when(stats.last_at)}, {duration(stats.last_at - stats.first_at)} on")
    yield field("streams", f"{number(stats.streams)}, {number(stats.open_streams)} open")
    yield field("commands", number(stats.commands))
    yield field(
        "tokens",
        f"{number(completions.prompt_tokens)} of prompts, "
        f"{number(completions.completion_tokens)} generated",
    )
    yield ""
    yield bold("completions")
    rows = list(completions.outcomes.items())
    if completions.running:
        rows.append(("not ended", completions.running))
    yield from _counted(rows)
    yield ""
    yield bold("events")
    yield from _counted(stats.events.items())


def _counted(rows: Iterable[tuple[str, int]]) -> Iterator[str]:
    none = True
    for name, count in sorted(rows, key=lambda row: -row[1]):
        none = False
        yield f"  {number(count):>12}  {coloured(name.split(':')[0], name)}"
    if none:
        yield f"  {dim('none')}"


def stream(name: str, events: Iterable[Recorded]) -> Iterator[str]:
    """All events of a stream, one a line."""
    yield bold(name)
    columns = width()
    for recorded in events:
        text = shorten(summary(recorded), sys.maxsize if columns is None else columns - 60)
        yield (
            f"  {dim(f'{recorded.position:>7}  {when(recorded.recorded_at)}')}  "
            f"{recorded.type:<22}  {text}"
        )


def state(state: State, position: int) -> Iterator[str]:
    """What is alive."""
    yield bold(f"State after position {number(position)}")
    yield from _part("nodes", ("id", "start", "status"), _nodes(state))
    yield from _part("models", ("id", "node", "status"), _models(state))
    yield from _part("instances", ("id", "placed by", "runners", "model"), _instances(state))
    yield from _part("runners", ("id", "instance", "deaths", "status"), _runners(state))
    header = ("id", "status", "attempt", "faults", "since", "model")
    yield from _part("requests", header, _requests(state))


def _part(title: str, header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    found = list(rows)
    yield ""
    yield bold(f"{title} ({len(found)})")
    if found:
        yield from table(found, header)


def _nodes(state: State) -> Iterator[tuple[str, ...]]:
    for id, node in state.nodes.items():
        yield id, str(node.epoch), "alive" if node.alive else "stopped"


def _models(state: State) -> Iterator[tuple[str, ...]]:
    for id, model in state.models.items():
        yield id, model.node_id, _model_status(model)


def _model_status(model: Model) -> str:
    if model.error is not None:
        return f"failed: {model.error}"
    if (prepared := model.prepared) is not None:
        return (
            f"ready: {prepared.architecture}, {size(prepared.size_bytes)}, context "
            f"{number(prepared.context_length)}"
        )
    of = f" of {size(model.total_bytes)}" if model.total_bytes else ""
    return f"{model.phase} {size(model.done_bytes)}{of}"


def _instances(state: State) -> Iterator[tuple[str, ...]]:
    for id, instance in state.instances.items():
        yield id, instance.placed_by, str(len(instance.shards)), instance.model_id


def _runners(state: State) -> Iterator[tuple[str, ...]]:
    for id, runner in state.runners.items():
        status = summaries.status(runner.status)
        yield id, runner.instance_id, str(runner.failures), status


def _requests(state: State) -> Iterator[tuple[str, ...]]:
    for id, task in state.tasks.items():
        since = when(task.created_at)
        yield id, task.status, str(task.attempt), str(task.faults), since, task.model_id
