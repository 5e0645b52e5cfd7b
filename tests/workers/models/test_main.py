"""`python -m workers.models`, as a server runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.workers.models import samples
from workers.models import errors, messages
from workers.models.messages import Failed, PreparedModel, Progress

ROOT = Path(__file__).parents[3]


def command(source: Path | str, home: Path, *more: str) -> list[str]:
    """The command line."""
    program = [sys.executable, "-m", "workers.models"]
    return [*program, "--source", str(source), "--home", str(home), *more]


def test_it_says_its_progress_and_then_the_model(tmp_path: Path) -> None:
    samples.write(tmp_path / "tiny.gguf")
    out = subprocess.check_output(
        command(tmp_path / "tiny.gguf", tmp_path, "--dtype", "float16"),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )
    *steps, model = [messages.decode(line) for line in out.splitlines()]
    assert steps
    assert all(isinstance(step, Progress) for step in steps)
    assert isinstance(model, PreparedModel)
    assert (model.model_id, model.quantization) == ("tiny", "F32 as float16")


def test_a_failure_is_its_last_line_and_its_exit_code(tmp_path: Path) -> None:
    result = subprocess.run(
        command("absent", tmp_path), cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert result.returncode == 1
    [line] = result.stdout.splitlines()
    failed = messages.decode(line)
    assert isinstance(failed, Failed)
    assert failed.code == "model_not_found"
    assert result.stderr == b""


def test_a_broken_file_s_message_stays_short(tmp_path: Path) -> None:
    tensors = samples.shapes() | {"x" * 60_000: (4,)}
    samples.write(tmp_path / "tiny.gguf", tensors=tensors)
    result = subprocess.run(
        command(tmp_path / "tiny.gguf", tmp_path),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert len(result.stdout) < 4_000
    assert isinstance(messages.decode(result.stdout), Failed)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    samples.write(tmp_path / "tiny.gguf")
    # Stopped by a lock that is never given up: it would wait for ever.
    (tmp_path / "models").mkdir()
    lock = tmp_path / "models" / ".tiny.lock"
    holder = subprocess.Popen(["flock", str(lock), "sleep", "60"], start_new_session=True)
    try:
        process = subprocess.Popen(
            command(tmp_path / "tiny.gguf", tmp_path),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(5) == 1
        assert process.stdout is not None
        process.stdout.close()
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    assert not (tmp_path / "models" / "tiny").exists()


def test_messages_come_back_from_their_lines() -> None:
    for message in (
        Progress(phase="hashing", done_bytes=1, total_bytes=2),
        Failed(code="model_invalid", message="a\nb"),
    ):
        line = messages.encode(message)
        assert line.count(b"\n") == 1
        assert messages.decode(line) == message
    with pytest.raises(msgspec.DecodeError):
        messages.decode(b"hello\n")


def test_every_error_keeps_its_kind_across_the_border() -> None:
    for kind in errors.ModelError.__subclasses__():
        error = errors.from_code(kind.code, "why")
        assert type(error) is kind
        assert str(error) == "why"
    assert type(errors.from_code("unheard of", "why")) is errors.ModelError
