"""What the command line says when it cannot do what was asked, and how it exits.

Exit codes: 0 done, 1 a problem was found, 2 wrong usage, 3 the server or the log is out of
reach, 130 interrupted, 141 nobody read the output to its end.
"""

from __future__ import annotations

import click

INTERRUPTED = 130
BROKEN_PIPE = 141


class Problem(click.ClickException):
    """Something is wrong, or not there: what, and what to do about it, in one line."""

    exit_code = 1


class OutOfReach(Problem):
    """The server or the log cannot be reached."""

    exit_code = 3


def one_line(error: click.ClickException) -> str:
    """An error as one line, with the way to more help for wrong usage."""
    text = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return text
    return f"{text.removesuffix('.')} (see {context.command_path} --help)"
