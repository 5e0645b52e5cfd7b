import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.runner.client import ROOT

FILE = Path(__file__).with_name("mlx_checks.py")
NAMES = [
    node.name
    for node in ast.parse(FILE.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What each check said. All in one process, as MLX takes its time to be imported."""
    command = [sys.executable, "-m", "tests.workers.runner.mlx_checks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NAMES)
def test(said: dict[str, str], name: str) -> None:
    assert said[name] == "passed"
