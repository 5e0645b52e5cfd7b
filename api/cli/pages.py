"""Completions, events and State laid out for a terminal, and as plain text for pipes."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
import msgspec

from api.cli import summaries
from api.cli.output import bold, clean, dim, duration, number, short_id, shorten, when
from api.cli.story import Story
from api.event_view import view
from domain import events as e
from infrastructure.event_store import Recorded

LABEL = 11
"""Width of the column of labels."""

COLOURS = {
    "Complete": "green",
    "Ready": "green",
    "Running": "cyan",
    "Cancelled": "yellow",
    "TimedOut": "red",
    "Failed": "red",
    "Refused": "red",
}


def width() -> int | None:
    """Columns of the terminal, or None where lines may be as long as they are."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None


def coloured(status: str, text: str | None = None) -> str:
    """A status, in a colour that says whether all is well."""
    return click.style(text or status, fg=COLOURS.get(status), bold=True)


def field(label: str, value: Any) -> str:
    """A labelled value on a line of its own, continued under itself."""
    lines = clean(str(value)).split("\n")
    columns = width()
    if columns is not None:
        room = max(columns - LABEL - 4, 20)
        lines = [part for line in lines for part in textwrap.wrap(line, room) or [""]]
    indent = "\n" + " " * (LABEL + 4)
    return f"  {dim(f'{label:<{LABEL}}')}  {indent.join(lines)}"


def block(title: str, text: str) -> Iterator[str]:
    """A text of several lines under its title."""
    yield f"  {dim(title)}"
    columns = width()
    for line in clean(text).split("\n"):
        parts = [line]
        if columns is not None:
            parts = textwrap.wrap(line, max(columns - 6, 20), drop_whitespace=False) or [""]
        yield from ("    " + dim("│ ") + part for part in parts)


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> Iterator[str]:
    """Rows in aligned columns; on a terminal, the last column is cut at its edge."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header) - 1)]
    columns = width()
    room = None if columns is None else max(columns - sum(widths) - 2 * len(header), 10)
    for row in (header, *rows):
        cells = [f"{clean(cell):<{w}}" for cell, w in zip(row, widths, strict=False)]
        last = clean(row[-1]) if room is None else shorten(row[-1], room)
        line = "  " + "  ".join([*cells, last]).rstrip()
        yield dim(line) if row is header else line


def completion(story: Story) -> Iterator[str]:
    """A completion's story."""
    yield f"{bold(f'chatcmpl-{story.command_id}')}  {coloured(story.status)}"
    yield from _asking(story)
    if story.prompt is not None:
        yield from block(f"prompt, {summaries.tokens(story.prompt_tokens)}", story.prompt)
    elif story.body is not None:
        yield from block("request", story.body)
    yield from _answer(story)
    yield from _outcome(story)


def _asking(story: Story) -> Iterator[str]:
    if story.model_id is not None:
        weights = f" (weights {story.model.weights_digest[:12]})" if story.model else ""
        yield field("model", story.model_id + weights)
    yield field("asked", when(story.asked_at))
    if caller := story.caller:
        client = f" from {caller.client}" if caller.client else ""
        yield field("by", f"{caller.actor}{client}, request {caller.request_id}")
        if agent := caller.headers.get("user-agent"):
            yield field("client", agent)
        if caller.idempotency_key is not None:
            yield field("key", caller.idempotency_key)
    if sampling := story.sampling:
        yield field(
            "settings",
            f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, seed "
            f"{sampling.seed}, at most {summaries.tokens(sampling.max_tokens)}"
            f"{', streamed' if story.stream else ''}",
        )
    if story.stop:
        yield field("stop", ", ".join(map(repr, story.stop)))
    if story.user is not None:
        yield field("user", story.user)
    if story.metadata:
        yield field("metadata", ", ".join(f"{k}={v}" for k, v in story.metadata.items()))
    if story.ignored:
        yield field("ignored", ", ".join(story.ignored))


def _answer(story: Story) -> Iterator[str]:
    answer = story.answer
    for title, text in (("reasoning", answer.reasoning), ("refusal", answer.refusal)):
        if text:
            yield from block(title, text)
    for call in answer.tool_calls:
        yield from block(f"tool call {call.id}", f"{call.name}({call.arguments})")
    if answer.content or story.completion_tokens:
        reason = f", {answer.finish_reason}" if answer.finish_reason else ""
        title = f"answer, {summaries.tokens(story.completion_tokens)}{reason}"
        yield from block(title, answer.content)


def _outcome(story: Story) -> Iterator[str]:
    if story.error is not None:
        yield field("error", f"{story.error['code']}: {story.error['message']}")
    timings, parts = story.timings, list[str]()
    if timings.queued is not None:
        parts.append(f"queued {duration(timings.queued)}")
    if timings.first_token is not None:
        parts.append(f"first token after {duration(timings.first_token)}")
    if timings.tokens_per_second is not None:
        parts.append(f"{timings.tokens_per_second:.1f} tokens/s")
    if story.events > 1:
        yield field("timings", ", ".join([*parts, f"{duration(timings.total)} in all"]))
    for attempt in story.attempts:
        text = f"runner {attempt.runner_id}, {summaries.tokens(attempt.tokens)}"
        text += f"; ended: {attempt.ended}" if attempt.ended else ""
        yield field(f"attempt {attempt.number}", text)
    if story.events == 1:
        yield field("log", f"position {number(story.first_position)}")
    else:
        positions = f"{number(story.first_position)} to {number(story.last_position)}"
        yield field("log", f"positions {positions}, {number(story.events)} events")


def event(recorded: Recorded) -> Iterator[str]:
    """One event with all that is stored of it."""
    shown = view(recorded)
    yield f"{bold(recorded.type)} at position {recorded.position}"
    yield field("stream", f"{recorded.stream}, version {recorded.version}")
    yield field("recorded", f"{when(recorded.recorded_at)} ({shown.recorded_at_iso})")
    yield field("summary", summaries.summary(recorded))
    yield from block("payload", _pretty(shown.payload))
    if shown.content is not None:
        yield from block("content", _pretty(shown.content))
    yield field("hash", recorded.hash.hex())


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def line(recorded: Recorded, columns: int | None) -> str:
    """One event as one line, cut at the terminal's edge."""
    text = summaries.summary(recorded)
    head = f"{recorded.position:>7}  {when(recorded.recorded_at)[11:]}  "
    if columns is None:
        return f"{head}{recorded.stream}  {recorded.type}  {shorten(text, sys.maxsize)}"
    stream, type = abbreviated(recorded.stream), f"{recorded.type:<19}"
    rest = shorten(text, columns - len(head) - 18 - 2 - 19 - 2)
    styled = coloured(_tone(recorded.type), type)
    return f"{dim(head)}{stream:<18}  {styled}  {rest}"


def _tone(type: str) -> str:
    if type in ("TaskFailed", "CommandRefused", "RequestRefused", "ModelPreparationFailed"):
        return "Failed"
    if type == e.TaskStatusUpdated.__name__:
        return "Complete"
    return ""


def abbreviated(stream: str) -> str:
    """A stream's name with the end of its id."""
    kind, slash, id = stream.partition("/")
    return f"{kind}{slash}{short_id(id)}"


def lines(events: Iterable[Recorded]) -> Iterator[str]:
    """Events, one a line."""
    columns = width()
    for recorded in events:
        yield line(recorded, columns)
