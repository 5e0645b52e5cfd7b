"""`inferlog serve`."""

from __future__ import annotations

import click

from api.cli.options import setting_options
from infrastructure.settings import Settings


@click.command()
@setting_options()
def serve(settings: Settings) -> None:
    """Serve a model over HTTP, as OpenAI does, from a durable log."""
    # The server's parts are imported only here: the help should not wait for them.
    from api.cli.node import run

    run(settings)
