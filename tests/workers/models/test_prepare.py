"""Models are there whole or not at all, whatever happens to who makes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO
from unittest.mock import Mock

import pytest

from tests.workers.models import samples
from workers.models import gguf_loader
from workers.models.catalog import FolderModel, GgufModel, resolve
from workers.models.errors import ModelInvalid, ModelNotFound, StorageFailed
from workers.models.messages import PreparedModel, Progress
from workers.models.prepare import prepare

ROOT = Path(__file__).parents[3]


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.Q4_0.gguf"
    samples.write(path, encoding="Q4_0")
    return path


def names(home: Path) -> set[str]:
    """What lies among the models, locks and digests aside."""
    found = {path.name for path in (home / "models").iterdir()}
    return {name for name in found if not name.endswith(".lock") and name != ".digests.json"}


def child(gguf: Path, home: Path, moment: str) -> subprocess.Popen[str]:
    """A process that prepares the file and stops at a moment; see `child`."""
    command = [sys.executable, "-m", "tests.workers.models.child", str(gguf), str(home), moment]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a child prints."""
    out: IO[str] | None = process.stdout
    assert out is not None
    return out.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    """End a child as a power cut would."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_gguf_file_becomes_a_described_folder(gguf: Path, tmp_path: Path) -> None:
    model = prepare(resolve(str(gguf)), tmp_path / "home")
    folder = tmp_path / "home" / "models" / "tiny.Q4_0"
    assert model.path == str(folder)
    assert model.model_id == "tiny.Q4_0"
    assert model.context_length == samples.CONTEXT
    assert model.vocab_size == len(samples.TOKENS)
    assert model.eos_token_ids == (2,)
    assert model.architecture == "llama"
    assert model.quantization == "Q4_0 as float32"
    assert model.size_bytes == (folder / "model.safetensors").stat().st_size
    assert names(tmp_path / "home") == {"tiny.Q4_0"}


def test_digests_are_what_sha256sum_says(gguf: Path, tmp_path: Path) -> None:
    model = prepare(resolve(str(gguf)), tmp_path / "home")

    def sha256sum(files: str) -> str:
        command = f"cat {files} | sha256sum"
        return subprocess.check_output(command, shell=True, cwd=model.path, text=True).split()[0]

    assert model.weights_digest == sha256sum("model*.safetensors")
    assert model.tokenizer_digest == sha256sum("tokenizer.json tokenizer_config.json")
    (tmp_path / "template").write_text(samples.TEMPLATE)
    assert model.template_digest == sha256sum(str(tmp_path / "template"))


def test_the_second_time_nothing_is_done(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(resolve(str(gguf)), tmp_path)
    monkeypatch.delattr(gguf_loader, "convert")
    seen: list[Progress] = []
    assert prepare(resolve(str(gguf)), tmp_path, "float32", seen.append) == first
    assert seen == []


def test_another_file_of_the_same_name_is_made_anew(gguf: Path, tmp_path: Path) -> None:
    first = prepare(resolve(str(gguf)), tmp_path)
    samples.write(gguf, encoding="Q8_0")
    second = prepare(resolve(str(gguf)), tmp_path)
    assert second.quantization == "Q8_0 as float32"
    assert second.weights_digest != first.weights_digest
    assert prepare(resolve(str(gguf)), tmp_path, "float16").size_bytes < second.size_bytes
    assert names(tmp_path) == {"tiny.Q4_0"}


@pytest.mark.parametrize("moment", ["first tensor", "last tensor", "written", "synced"])
def test_a_kill_leaves_no_half_model_and_the_next_one_cleans_up(
    gguf: Path, tmp_path: Path, moment: str
) -> None:
    home = tmp_path / "home"
    process = child(gguf, home, moment)
    assert line_of(process) == "here"
    kill(process)
    assert names(home) == {".tiny.Q4_0.partial"}
    prepare(resolve(str(gguf)), home)
    assert names(home) == {"tiny.Q4_0"}


def test_a_kill_while_one_model_takes_anothers_place_leaves_no_half_model(
    gguf: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    prepare(resolve(str(gguf)), home)
    samples.write(gguf, encoding="Q8_0")
    process = child(gguf, home, "old one moved")
    assert line_of(process) == "here"
    kill(process)
    assert names(home) == {".tiny.Q4_0.partial", ".tiny.Q4_0.old"}
    assert prepare(resolve(str(gguf)), home).quantization == "Q8_0 as float32"
    assert names(home) == {"tiny.Q4_0"}


def test_what_a_killed_process_left_of_another_model_is_swept_away(
    gguf: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    process = child(gguf, home, "written")
    assert line_of(process) == "here"
    other = tmp_path / "other.gguf"
    samples.write(other)
    prepare(resolve(str(other)), home)
    assert names(home) == {".tiny.Q4_0.partial", "other"}, "its maker is alive"
    kill(process)
    samples.write(other, encoding="F16")
    prepare(resolve(str(other)), home)
    assert names(home) == {"other"}


def test_processes_that_start_at_once_make_one_model(gguf: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    waiting = child(gguf, home, "first tensor")
    assert line_of(waiting) == "here"
    others = [child(gguf, home, "none") for _ in range(3)]
    kill(waiting)
    assert [line_of(process) for process in others] == ["done"] * 3
    for process in others:
        kill(process)
    assert names(home) == {"tiny.Q4_0"}


def test_threads_that_start_at_once_convert_once(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = Mock(wraps=gguf_loader.convert)
    monkeypatch.setattr(gguf_loader, "convert", convert)
    ready = threading.Barrier(4)

    def run() -> PreparedModel:
        ready.wait()
        return prepare(resolve(str(gguf)), tmp_path)

    with ThreadPoolExecutor(4) as pool:
        models = {future.result() for future in [pool.submit(run) for _ in range(4)]}
    assert len(models) == 1
    assert convert.call_count == 1


def test_a_failed_conversion_leaves_what_was_there(gguf: Path, tmp_path: Path) -> None:
    first = prepare(resolve(str(gguf)), tmp_path)
    content = gguf.read_bytes()
    gguf.write_bytes(content[:-100])
    with pytest.raises(ModelInvalid, match="ends early"):
        prepare(resolve(str(gguf)), tmp_path)
    assert names(tmp_path) == {"tiny.Q4_0"}
    assert Path(first.path, "model.safetensors").is_file()


def test_a_file_missing_from_a_made_model_is_made_again(gguf: Path, tmp_path: Path) -> None:
    first = prepare(resolve(str(gguf)), tmp_path)
    Path(first.path, "tokenizer.json").unlink()
    assert prepare(resolve(str(gguf)), tmp_path) == first
    assert Path(first.path, "tokenizer.json").is_file()


def test_a_folder_that_someone_put_there_is_not_replaced(gguf: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "models" / "tiny.Q4_0"
    theirs.mkdir(parents=True)
    (theirs / "notes.txt").write_text("mine")
    with pytest.raises(StorageFailed, match="was not made by inferlog"):
        prepare(resolve(str(gguf)), tmp_path)
    assert (theirs / "notes.txt").read_text() == "mine"


def test_a_users_folder_is_served_where_it_is_and_never_written_to(
    gguf: Path, tmp_path: Path
) -> None:
    made = prepare(resolve(str(gguf)), tmp_path / "first")
    before = {path: path.stat().st_mtime_ns for path in Path(made.path).iterdir()}
    model = prepare(FolderModel(path=Path(made.path), model_id="mine"), tmp_path / "second")
    assert (model.path, model.weights_digest) == (made.path, made.weights_digest)
    assert {path: path.stat().st_mtime_ns for path in Path(made.path).iterdir()} == before
    assert names(tmp_path / "second") == set()


def test_weights_that_change_get_another_digest(gguf: Path, tmp_path: Path) -> None:
    made = prepare(resolve(str(gguf)), tmp_path)
    weights = Path(made.path, "model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert prepare(resolve(str(gguf)), tmp_path).weights_digest != made.weights_digest


def test_digests_are_kept_from_one_start_to_the_next(gguf: Path, tmp_path: Path) -> None:
    made = prepare(resolve(str(gguf)), tmp_path)
    weights = Path(made.path, "model.safetensors")
    stat = weights.stat()
    weights.write_bytes(bytes(stat.st_size))
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert prepare(resolve(str(gguf)), tmp_path) == made, "as size and time say"
    (tmp_path / "models" / ".digests.json").write_text("{broken")
    assert prepare(resolve(str(gguf)), tmp_path) != made


def test_a_home_that_cannot_be_written_is_an_error_that_names_it(
    gguf: Path, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(StorageFailed, match=str(tmp_path / "home")):
        prepare(resolve(str(gguf)), tmp_path / "home")


def test_a_full_disk_is_an_error_and_leaves_nothing(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_loader, "save_file", full)
    with pytest.raises(StorageFailed, match="No space left"):
        prepare(resolve(str(gguf)), tmp_path)
    assert names(tmp_path) == set()


def test_a_file_that_vanished_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        prepare(GgufModel(path=tmp_path / "gone.gguf", model_id="gone"), tmp_path)


def test_a_model_id_never_leads_out_of_the_models_folder(gguf: Path, tmp_path: Path) -> None:
    for model_id in ("../../up", "..", ".hidden", "a b/c:d", "x" * 500):
        model = prepare(GgufModel(path=gguf, model_id=model_id), tmp_path / "home")
        assert Path(model.path).parent == tmp_path / "home" / "models"
        assert not Path(model.path).name.startswith(".")
        assert model.model_id == model_id


def test_the_stamp_says_what_a_model_was_made_from(gguf: Path, tmp_path: Path) -> None:
    model = prepare(resolve(str(gguf)), tmp_path)
    stamp = json.loads(Path(model.path, "inferlog.json").read_text())
    assert (stamp["source"], stamp["dtype"]) == (gguf.name, "float32")
    assert stamp["size"] == gguf.stat().st_size
