"""`inferlog log`: read the log, whether a server runs on it or not. Nothing is ever written.

The commands are only declared here. What they do stands in `log_commands`, which is imported
when one runs: the database's library takes a while, and help should not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from api.cli.options import setting_options
from domain.events import EVENT_TYPES
from infrastructure.settings import Settings

Command = Callable[..., Any]

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")


def log_options(command: Command) -> Command:
    """The options that say where the log is."""
    return setting_options("home", "database_url")(command)


@click.group()
def log() -> None:
    """Read, explain and verify the log.

    Works on a log that a running server writes to and on one at rest.
    """


@log.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with new events until interrupted.")
@click.option("-n", "count", type=click.IntRange(0), default=20, help="Events to begin with. [20]")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(sorted(EVENT_TYPES), case_sensitive=False),
    metavar="TYPE",
    help="Only events of this type, such as TaskFailed; may be repeated.",
)
@click.option("--stream", metavar="ID", help="Only events of one completion, instance or node.")
@as_json
@log_options
def tail(
    settings: Settings,
    follow: bool,
    count: int,
    types: tuple[str, ...],
    stream: str | None,
    as_json: bool,
) -> None:
    """Print the last events, one a line."""
    from api.cli import log_commands

    log_commands.tail(settings, follow, count, types, stream, as_json)


@log.command()
@click.argument("id")
@as_json
@log_options
def show(settings: Settings, id: str, as_json: bool) -> None:
    """Tell the story of ID.

    ID is a completion's id (with chatcmpl- or without), a command's, instance's or node's, the
    end of one, a stream's name, or the position of an event.
    """
    from api.cli import log_commands

    log_commands.show(settings, id, as_json)


@log.command()
@as_json
@log_options
def stats(settings: Settings, as_json: bool) -> None:
    """Count what is in the log."""
    from api.cli import log_commands

    log_commands.stats(settings, as_json)


@log.command()
@click.option("--at", type=click.IntRange(0), metavar="N", help="As it was after position N.")
@as_json
@log_options
def state(settings: Settings, at: int | None, as_json: bool) -> None:
    """Show what is alive: nodes, models, instances, runners and requests."""
    from api.cli import log_commands

    log_commands.state(settings, at, as_json)


@log.command()
@as_json
@log_options
def verify(settings: Settings, as_json: bool) -> None:
    """Check every event against the hash chain.

    Exits with 1 and names the first position that is not as it was written.
    """
    from api.cli import log_commands

    log_commands.verify(settings, as_json)
