"""Opening the log to read, and finding in it what a user names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from api.cli.errors import OutOfReach, Problem
from domain import state as fold
from domain import streams
from domain.codec import UnknownEvent
from domain.state import State
from infrastructure.event_store import PositionOutOfRange, Recorded, StoreError
from infrastructure.log_reader import PAGE, LogReader
from infrastructure.opening import log_path
from infrastructure.settings import Settings

PREFIX = "chatcmpl-"
"""What a completion's id has before its command's."""

MIN_ENDING = 4
"""Characters of an id's end that may stand for all of it."""

SHOWN = 5
"""Candidates named where an ending fits several."""


@contextmanager
def open_log(
    settings: Settings, open: Callable[[Path], LogReader] = LogReader
) -> Iterator[LogReader]:
    """The log that the settings name, with what goes wrong told as one line."""
    try:
        path = log_path(settings.database_url, settings.home).expanduser()
        if not path.exists():
            raise OutOfReach(
                f"there is no log at {path.absolute()}; start a server with `inferlog serve`, "
                "or name its data folder with --home (INFERLOG_HOME)"
            )
        with open(path) as reader:
            yield reader
    except (PositionOutOfRange, UnknownEvent) as error:
        raise Problem(str(error)) from error
    except StoreError as error:
        raise OutOfReach(str(error)) from error
    except msgspec.MsgspecError as error:
        raise Problem(
            f"an event cannot be read ({error}); `inferlog log verify` tells where the log is "
            "damaged"
        ) from error


def last_events(
    reader: LogReader, count: int, head: int, *, stream: str | None, types: Collection[str] | None
) -> list[Recorded]:
    """The last events up to a position that fit, oldest first."""
    found: list[Recorded] = []
    # From the end backwards, in steps that grow: what was asked for may be rare.
    step, upper = max(count, PAGE), head
    while len(found) < count and upper > 0:
        lower = max(upper - step, 0)
        part = reader.events(lower, stream=stream, types=types, up_to=upper)
        found = [*part, *found][-count:]
        upper, step = lower, step * 4
    return found


def find_stream(reader: LogReader, name: str) -> str:
    """The stream that a user means by its name, an id, or the end of an id.

    Raises:
        Problem: there is none, or there are several.
    """
    name = name.strip().removeprefix(PREFIX)
    command = reader.command(name)
    if command is not None:
        return command.stream
    for candidate in (name, *(make(name) for make in _KINDS)):
        if reader.page(stream=candidate, limit=1):
            return candidate
    ending = name.removeprefix("…")
    fitting = [s.name for s in reader.streams() if s.name.endswith(ending)]
    if len(ending) < MIN_ENDING or not fitting:
        raise Problem(
            f"the log has no completion, instance, node or stream {name!r}; "
            "`inferlog log tail` shows what it has"
        )
    if len(fitting) > 1:
        more = f" and {len(fitting) - SHOWN} more" if len(fitting) > SHOWN else ""
        raise Problem(f"{name!r} may mean {', '.join(fitting[:SHOWN])}{more}")
    return fitting[0]


_KINDS = (streams.completion, streams.instance, streams.node)


def state_at(reader: LogReader, position: int) -> tuple[State, int]:
    """State right after a position, and that position; see `infrastructure.projection`.

    Raises:
        PositionOutOfRange: the position is beyond the head.
    """
    head = reader.head().position
    if position > head:
        raise PositionOutOfRange(f"the log ends at {head}, before {position}")
    snapshot = reader.load_snapshot(fold.FOLD_VERSION, position)
    state, after = (fold.decode(snapshot.data), snapshot.position) if snapshot else (State(), 0)
    events = reader.events(after, tokens=False, up_to=position)
    return fold.fold((recorded.event for recorded in events), state), position
