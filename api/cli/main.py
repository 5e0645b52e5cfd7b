"""The command `inferlog`.

Commands are imported when they are asked for: `inferlog log tail` in a pipe should not wait
for an HTTP client, and none of them for a web server.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from api.cli.errors import BROKEN_PIPE, INTERRUPTED, Problem, one_line

NAME = "inferlog"
WIDTH = 100
COMPLETION = "_INFERLOG_COMPLETE"
"""The variable with which a shell asks for completions."""

COMMANDS = {
    "serve": ("api.cli.serve:serve", "Serve a model over HTTP."),
    "chat": ("api.cli.chat:chat", "Ask the running server and print its answer."),
    "log": ("api.cli.log:log", "Read, explain and verify the log."),
    "doctor": ("api.cli.doctor:doctor", "Show what inferlog runs on and name what is wrong."),
}


class Commands(click.Group):
    """The top command: knows the names of the others, and how their errors end the process."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"{NAME} {version(NAME)}")
        ctx.exit()


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
    epilog="Settings are flags or variables, INFERLOG_PORT for --port; a .env file in the "
    "working folder is read, and the environment goes before it.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """An OpenAI-compatible inference server whose only truth is its log."""


def load_env(path: Path = Path(".env")) -> None:
    """Set what a `.env` file sets and the environment does not, not even to nothing.

    Raises:
        Problem: the file is there and cannot be read.
    """
    if not path.is_file():
        return
    from dotenv import load_dotenv

    try:
        load_dotenv(path, override=False)
    except (OSError, ValueError) as error:
        raise Problem(f"cannot read {path.absolute()}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: those of the process if None.

    Returns:
        The exit code, as in `api.cli.errors`.
    """
    _prepare_output()
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:  # a full disk behind a redirection, say
        _discard_output()
        with contextlib.suppress(OSError):
            click.echo(f"{NAME}: {error}", err=True)
        return Problem.exit_code
    return code


def _run(arguments: list[str]) -> int:
    """Run a command; print its expected errors as one line."""
    try:
        load_env()
        if COMPLETION in os.environ:
            cli.main(arguments, prog_name=NAME)
        # Not `cli.main`: it has its own ways to end on an interrupt and on a broken pipe.
        with cli.make_context(NAME, arguments) as context:
            cli.invoke(context)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"{NAME}: {one_line(error)}", err=True)
        return error.exit_code
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return INTERRUPTED
    return 0


def _prepare_output() -> None:
    """Make sure that there is an output, and that no character is too much for it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - to the very end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not trip over it."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
