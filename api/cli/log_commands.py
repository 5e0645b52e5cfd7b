"""What the commands of `inferlog log` do."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator

import click
import msgspec

from api.cli import log_pages, pages
from api.cli.errors import Problem
from api.cli.output import json_line, number
from api.cli.reading import find_stream, last_events, open_log, state_at
from api.cli.story import tell
from api.event_view import view
from domain.streams import completion
from infrastructure.event_store import PositionOutOfRange, Recorded
from infrastructure.log_reader import LogReader
from infrastructure.settings import Settings
from infrastructure.verify import verify_log

FAST, SLOW = 0.03, 0.1
"""Seconds between two looks for new events: just after some came, and after a while."""

COMPLETION = completion("")


def tail(
    settings: Settings,
    follow: bool,
    count: int,
    types: tuple[str, ...],
    stream: str | None,
    as_json: bool,
) -> None:
    """Print the last events, and new ones as they are recorded."""
    wanted = types or None
    with open_log(settings) as reader:
        name = find_stream(reader, stream) if stream is not None else None
        head = reader.head().position
        _print(last_events(reader, count, head, stream=name, types=wanted), as_json)
        if follow:
            for page in _follow(reader, head, name, wanted):
                _print(page, as_json)


def _print(events: Iterable[Recorded], as_json: bool) -> None:
    if as_json:
        for recorded in events:
            json_line(view(recorded))
    else:
        for line in pages.lines(events):
            click.echo(line)


def _follow(
    reader: LogReader, after: int, stream: str | None, types: Collection[str] | None
) -> Iterator[list[Recorded]]:
    """New events as they are recorded, for ever."""
    wait, pause = _waiter(), FAST
    while True:
        head = reader.head().position
        if head == after:
            wait(pause)
            pause = min(pause * 1.2, SLOW)
            continue
        while page := reader.page(after, stream=stream, types=types, up_to=head):
            yield page
            after = page[-1].position
        after, pause = head, FAST


def _waiter() -> Callable[[float], None]:
    """A sleep that ends with BrokenPipeError once nobody reads the output any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # not a file of the system, as in a test
        return time.sleep

    def wait(seconds: float) -> None:
        if poll.poll(seconds * 1000):
            raise BrokenPipeError

    return wait


def show(settings: Settings, id: str, as_json: bool) -> None:
    """Tell the story of a completion, a stream or an event."""
    with open_log(settings) as reader:
        if id.isascii() and id.isdigit():
            _show_event(reader, int(id), as_json)
            return
        name = find_stream(reader, id)
        events = reader.events(stream=name)
        if name.startswith(COMPLETION):
            story = tell(name.removeprefix(COMPLETION), events)
            if as_json:
                json_line(story.as_object())
            else:
                _echo(pages.completion(story))
        elif as_json:
            _print(events, as_json)
        else:
            _echo(log_pages.stream(name, events))


def _show_event(reader: LogReader, position: int, as_json: bool) -> None:
    head = reader.head().position
    page = reader.page(position - 1, 1) if 0 < position <= head else []
    if not page or page[0].position != position:
        raise PositionOutOfRange(f"there is no event {position}; the log ends at {head}")
    if as_json:
        json_line(view(page[0]))
    else:
        _echo(pages.event(page[0]))


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def stats(settings: Settings, as_json: bool) -> None:
    """Count what is in the log."""
    with open_log(settings) as reader:
        found = reader.stats()
        completions = log_pages.count_completions(reader)
    if as_json:
        json_line(log_pages.stats_object(found, completions))
    else:
        _echo(log_pages.stats(found, completions))


def state(settings: Settings, at: int | None, as_json: bool) -> None:
    """Show State as it is or was."""
    with open_log(settings) as reader:
        found, position = state_at(reader, reader.head().position if at is None else at)
    if as_json:
        json_line({"position": position, "state": msgspec.to_builtins(found)})
    else:
        _echo(log_pages.state(found, position))


class _Watched(LogReader):
    """A reader that tells how far it is, on standard error."""

    def events(
        self,
        after: int = 0,
        *,
        stream: str | None = None,
        types: Collection[str] | None = None,
        tokens: bool = True,
        up_to: int | None = None,
    ) -> Iterator[Recorded]:
        """All events after a position, with a bar that grows where a person looks on."""
        found = super().events(after, stream=stream, types=types, tokens=tokens, up_to=up_to)
        with click.progressbar(
            found,
            length=up_to,
            label="verifying",
            file=sys.stderr,
            hidden=not sys.stderr.isatty(),
            update_min_steps=10_000,
        ) as bar:
            yield from bar


def verify(settings: Settings, as_json: bool) -> None:
    """Check every event, and name the first that is not as it was written."""
    began = time.monotonic()
    with open_log(settings, _Watched) as reader:
        verdict = verify_log(reader)
    fault, head = verdict.fault, verdict.head
    if as_json:
        json_line(
            {
                "ok": fault is None,
                "position": head.position,
                "hash": head.hash.hex(),
                "fault": fault,
            }
        )
    elif fault is None:
        seconds = time.monotonic() - began
        click.echo(f"{number(head.position)} events are as they were written ({seconds:.1f} s)")
        click.echo(f"head {head.position} {head.hash.hex()}")
    if fault is not None:
        raise Problem(
            f"the log is damaged at position {fault.position}: {fault.reason}; the "
            f"{number(head.position)} events before it are as they were written"
        )
