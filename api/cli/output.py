"""How the command line writes: for people in a terminal, and as JSON lines for pipes."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
import msgspec

_encode = msgspec.json.Encoder().encode

_CONTROLS = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if code not in (9, 10)}
"""What would move a terminal's cursor or change its colours: never a stranger's to say."""


def json_line(value: Any) -> None:
    """Write one JSON object as one line."""
    click.echo(_encode(value).decode())


def clean(text: str) -> str:
    """Text of a user or a model without control characters, line breaks and tabs aside."""
    return text.translate(_CONTROLS)


def shorten(text: str, width: int) -> str:
    """Text on one line, of at most so many columns."""
    line = clean(text).replace("\n", "⏎").replace("\t", " ")
    if line.isascii():
        return line if len(line) <= width else line[: max(width - 1, 0)] + "…"
    from rich.cells import cell_len, set_cell_size  # knows which characters are wide

    if cell_len(line) <= width:
        return line
    return set_cell_size(line, max(width - 1, 0)).rstrip() + "…"


def short_id(id: str) -> str:
    """The end of an id, which is enough to find it by; its beginning is the time it was drawn."""
    return f"…{id[-6:]}" if len(id) > 7 else id


def dim(text: str) -> str:
    """Text of less weight."""
    return click.style(text, dim=True)


def bold(text: str) -> str:
    """Text of more weight."""
    return click.style(text, bold=True)


def note(text: str) -> None:
    """Tell a person at the terminal something that is no part of the output."""
    if sys.stderr.isatty():
        click.echo(dim(text), err=True)


def when(microseconds: int) -> str:
    """A moment, in local time, to the millisecond."""
    return moment(microseconds).isoformat(sep=" ", timespec="milliseconds")[:23]


def moment(microseconds: int) -> datetime:
    """A moment in local time."""
    return datetime.fromtimestamp(microseconds / 1e6).astimezone()


def duration(microseconds: float) -> str:
    """A length of time in the unit that suits it."""
    seconds = microseconds / 1e6
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(count: int) -> str:
    """A number with its thousands set apart."""
    return f"{count:,}"
