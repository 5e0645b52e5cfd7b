"""Running the command line as its users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from api.cli.main import cli

ROOT = Path(__file__).parents[3]
INFERLOG = (sys.executable, "-m", "api.cli.main")


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without settings of inferlog, and these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INFERLOG_")}
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **variables}


def run(
    *arguments: str, cwd: Path, input: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `inferlog` to its end."""
    return subprocess.run(
        [*INFERLOG, *arguments],
        capture_output=True,
        text=True,
        input=input,
        cwd=cwd,
        env=clean_environment(**variables),
        timeout=60,
    )


def log(home: Path, *arguments: str) -> Result:
    """Run `inferlog log` on a data folder."""
    environment = {"INFERLOG_HOME": str(home), "INFERLOG_DATABASE_URL": None}
    return CliRunner().invoke(cli, ["log", *arguments], env=environment)


def objects(result: Result) -> list[Any]:
    """The JSON objects that a command printed."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]
