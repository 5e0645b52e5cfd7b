"""`inferlog doctor`: what inferlog runs on here, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click

from api.cli import checks
from api.cli.checks import Check
from api.cli.errors import Problem
from api.cli.options import setting_options
from api.cli.output import json_line
from api.cli.probe import probe
from infrastructure.settings import Settings

COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
WIDTH = 11
"""Of the column of names."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_options("home", "database_url", "host", "port", "model", "blas")
def doctor(settings: Settings, as_json: bool) -> None:
    """Show what inferlog runs on and name what is wrong.

    Exits with 1 if something is there that keeps it from working; a warning is none.
    """
    found = []
    for check in _look(settings):
        found.append(check)
        if not as_json:
            _print(check)
    problems = [check.name for check in found if check.status == "problem"]
    if as_json:
        json_line({"ok": not problems, "checks": found})
    if problems:
        raise Problem(f"{len(problems)} to mend: {', '.join(problems)}")


def _look(settings: Settings) -> Iterator[Check]:
    """Every check, each shown as soon as it is made: the probe takes a while."""
    yield from checks.software()
    parts: tuple[Callable[[Settings], Check], ...] = (
        checks.home,
        checks.log,
        checks.server,
        checks.model,
    )
    for part in parts:
        yield part(settings)
    yield checks.open_files()
    yield from probe(settings.blas)


def _print(check: Check) -> None:
    mark = click.style(f"{check.status:<7}", fg=COLOURS[check.status])
    click.echo(f"{mark}  {check.name:<{WIDTH}}  {check.value}")
    if check.advice:
        click.echo(f"{'':<{7 + 2 + WIDTH + 2}}{click.style(check.advice, bold=True)}")
