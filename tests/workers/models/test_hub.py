"""Downloads, from a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.models.fake_hub import COMMIT, FakeHub, serving
from workers.models import messages
from workers.models.messages import Failed, Message, PreparedModel, Progress

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
FILES = {
    "config.json": b'{"model_type": "llama", "vocab_size": 3, "max_position_embeddings": 64}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": os.urandom(24 * MIB),
    "modeling_llama.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickled",
    "original/consolidated.pth": b"pickled",
    "README.md": b"about",
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving("org/tiny", FILES) as hub:
        yield hub


def start(source: str, home: Path, url: str) -> subprocess.Popen[bytes]:
    """`python -m workers.models`, of a user whose hub is at the address."""
    environment = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(home / "hf")}
    command = [sys.executable, "-m", "workers.models", "--source", source, "--home", str(home)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def run(source: str, home: Path, url: str) -> list[Message]:
    """What it says until its end."""
    out, _ = start(source, home, url).communicate()
    return [messages.decode(line) for line in out.splitlines()]


def test_a_model_is_downloaded_with_its_progress_and_without_its_code(
    hub: FakeHub, tmp_path: Path
) -> None:
    *steps, model = run("org/tiny", tmp_path, hub.url)
    assert isinstance(model, PreparedModel)
    assert model.model_id == "org/tiny"
    folder = tmp_path / "models" / "org--tiny"
    assert model.path == str(folder)
    assert {path.name for path in folder.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "inferlog.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert json.loads((folder / "inferlog.json").read_text())["commit"] == COMMIT
    downloading = [s for s in steps if isinstance(s, Progress) and s.phase == "downloading"]
    wanted = sum(map(len, list(FILES.values())[:4]))
    assert {step.total_bytes for step in downloading} == {wanted}
    assert downloading[-1].done_bytes == wanted


def test_a_model_that_is_there_needs_no_network(hub: FakeHub, tmp_path: Path) -> None:
    [*_, first] = run("org/tiny", tmp_path, hub.url)
    hub.requests.clear()
    assert run("org/tiny", tmp_path, hub.url) == [first]
    assert hub.requests == []


def test_after_a_kill_only_what_is_missing_is_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    hub.stalls = "model.safetensors"
    process = start("org/tiny", tmp_path, hub.url)
    assert hub.stalled.wait(30)
    partial = tmp_path / "models" / ".org--tiny.download"
    # The client writes what it got in large pieces, soon.
    deadline = time.monotonic() + 10
    while not (partial / "config.json").exists() or not any(
        path.stat().st_size for path in partial.rglob("*.incomplete")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    hub.go_on.set()
    assert not (tmp_path / "models" / "org--tiny").exists()
    hub.requests.clear()
    [*_, model] = run("org/tiny", tmp_path, hub.url)
    assert isinstance(model, PreparedModel)
    weights = Path(model.path, "model.safetensors")
    assert weights.read_bytes() == FILES["model.safetensors"]
    fetched = [r.rpartition("/")[2] for r in hub.requests if r.startswith("GET /org/tiny/resolve")]
    assert "model.safetensors" in fetched
    assert "config.json" not in fetched
    assert not partial.exists()
    assert not (Path(model.path) / ".cache").exists()


def test_an_unknown_model_is_an_error_that_says_so(hub: FakeHub, tmp_path: Path) -> None:
    [failed] = run("org/absent", tmp_path, hub.url)
    assert isinstance(failed, Failed)
    assert failed.code == "download_failed"
    assert "neither a folder nor a hub model org/absent" in failed.message
    assert not list(tmp_path.glob("models/*absent"))


def test_offline_the_error_says_what_to_do(tmp_path: Path) -> None:
    with serving("org/tiny", FILES) as hub:
        gone = hub.url
    [failed] = run("org/tiny", tmp_path, gone)
    assert isinstance(failed, Failed)
    assert failed.code == "download_failed"
    assert "hf download org/tiny --local-dir FOLDER" in failed.message
    assert "--model" in failed.message
    assert "\n" not in failed.message


def test_a_repository_without_weights_for_mlx_is_refused_before_the_download(
    tmp_path: Path,
) -> None:
    with serving("org/gguf", {"tiny.gguf": b"GGUF", "config.json": b"{}"}) as hub:
        [failed] = run("org/gguf", tmp_path, hub.url)
        assert not [request for request in hub.requests if "GET /org/gguf/resolve" in request]
    assert isinstance(failed, Failed)
    assert failed.code == "model_unsupported"
    assert ".gguf" in failed.message


def test_what_other_programs_downloaded_is_used_where_it_is(hub: FakeHub, tmp_path: Path) -> None:
    code = "import huggingface_hub as h; print(h.snapshot_download('org/tiny'))"
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    folder = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    hub.requests.clear()
    [*_, model] = run("org/tiny", tmp_path, hub.url)
    assert isinstance(model, PreparedModel)
    assert model.path == folder.strip()
    assert hub.requests == []
