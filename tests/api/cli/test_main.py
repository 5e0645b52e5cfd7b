"""The command itself: help, errors as one line, exit codes, pipes and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from api.cli import main as module
from api.cli.main import load_env, main
from tests.api.cli.support import INFERLOG, clean_environment, run


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("serve", "chat", "log", "doctor"):
        assert f"\n  {command} " in out


def test_every_command_named_can_be_imported_and_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in module.COMMANDS:
        assert main([command, "--help"]) == 0
        assert f"inferlog {command}" in capsys.readouterr().out


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("inferlog ")


def test_no_command_shows_the_help_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Usage: inferlog" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "arguments",
    [["sing"], ["--sing"], ["serve", "--sing"], ["log", "sing"], ["log", "tail", "-n", "x"]],
)
def test_wrong_usage_is_one_line_that_leads_to_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("inferlog: ")
    assert captured.err.count("\n") == 1
    assert "--help)" in captured.err


def test_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [*INFERLOG, "serve", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        cwd=tmp_path,
    )
    os.close(writing)
    assert ended.stderr == b""
    assert ended.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_an_output_that_is_full_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*INFERLOG, "--help"], stdout=full, stderr=subprocess.PIPE, env=clean_environment()
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"inferlog: ")
    assert ended.stderr.count(b"\n") == 1


def test_no_output_at_all_is_fine(tmp_path: Path) -> None:
    command = " ".join([*INFERLOG, "--help", ">&-"])
    ended = subprocess.run(
        command, shell=True, stderr=subprocess.PIPE, env=clean_environment(), cwd=tmp_path
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_dotenv_file_sets_what_the_environment_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERLOG_PORT", "1")
    monkeypatch.setenv("INFERLOG_MODEL", "")
    monkeypatch.setenv("INFERLOG_HOST", "to be put back")
    monkeypatch.delenv("INFERLOG_HOST")
    file = tmp_path / ".env"
    file.write_text("INFERLOG_PORT=2\nINFERLOG_MODEL=theirs\nINFERLOG_HOST='::1' # here\n")
    load_env(file)
    assert os.environ["INFERLOG_PORT"] == "1"
    assert os.environ["INFERLOG_MODEL"] == ""
    assert os.environ["INFERLOG_HOST"] == "::1"


def test_a_dotenv_file_in_the_working_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("INFERLOG_MAX_TOKENS=none\n")
    ended = run("serve", cwd=tmp_path)
    assert ended.returncode == 2
    assert "--max-tokens (INFERLOG_MAX_TOKENS)" in ended.stderr


def test_a_dotenv_file_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xff\xfe\x00")
    ended = run("log", "stats", cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert ".env" in ended.stderr


def test_starting_imports_neither_a_web_server_nor_a_model(tmp_path: Path) -> None:
    code = (
        "import sys; from api.cli.main import main; main(['log', 'tail', '--help']); "
        "print(*{'httpx', 'litestar', 'uvicorn', 'mlx', 'transformers'} & set(sys.modules),"
        "file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment()
    )
    assert ended.stderr.strip() == ""


def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    code = (
        "import sys, time, api.cli.main as m\n"
        "def sleep(*_):\n    print('ready', flush=True); time.sleep(20)\n"
        "m.load_env = sleep\n"
        "sys.exit(m.main(['log', 'stats']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, b"")
