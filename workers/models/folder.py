"""A model folder in mlx-lm's format: whether it is whole, and what it says about itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from workers.models.digests import DigestCache
from workers.models.errors import ModelInvalid
from workers.models.messages import OnProgress, PreparedModel

INDEX = "model.safetensors.index.json"
UNKNOWN_CONTEXT = 32_768
"""Tokens, for models that state no limit: those without position embeddings."""

_WEIGHTS = "model*.safetensors"  # what mlx-lm loads; other names are left aside
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
_TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "vocab.txt",
    *_VOCABULARIES,
)
_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "n_positions", "seq_length")
_SANE_CONTEXT = 1 << 30  # transformers writes 10^30 for "no limit"


def check_folder(folder: Path) -> None:
    """See that a folder has all that mlx-lm needs, without reading the weights.

    Raises:
        ModelInvalid: names what is missing.
    """
    config = _json(folder / "config.json")
    if "model_type" not in config:
        raise ModelInvalid(f"{folder}/config.json names no model_type")
    weights = weight_files(folder)
    if not weights:
        raise ModelInvalid(f"{folder} has no {_WEIGHTS} file")
    names = {file.name for file in weights}
    if (folder / INDEX).is_file():
        needed = set(_json(folder / INDEX).get("weight_map", {}).values())
        if missing := needed - names:
            raise ModelInvalid(f"{folder} lacks {min(missing)}, which {INDEX} names")
    if not tokenizer_files(folder):
        raise ModelInvalid(f"{folder} has no tokenizer: none of {', '.join(_VOCABULARIES)}")


def weight_files(folder: Path) -> list[Path]:
    """The weight files, by name."""
    return sorted(file for file in folder.glob(_WEIGHTS) if file.is_file())


def tokenizer_files(folder: Path) -> list[Path]:
    """The files that make up the tokenizer, by name; none if a vocabulary is missing."""
    files = [folder / name for name in _TOKENIZER_FILES]
    files += folder.glob("*.tiktoken")
    found = sorted({file for file in files if file.is_file()})
    if not any(file.name in _VOCABULARIES or file.suffix == ".tiktoken" for file in found):
        return []
    return found


def describe(
    folder: Path, model_id: str, digests: DigestCache, progress: OnProgress
) -> PreparedModel:
    """What identifies a model folder and limits its use.

    Raises:
        ModelInvalid: it is not whole.
        OSError: it cannot be read.
    """
    check_folder(folder)
    config = _json(folder / "config.json")
    # Models that see keep the settings of their language part apart.
    text = config | config.get("text_config", {})
    tokenizer_config = _optional_json(folder / "tokenizer_config.json")
    weights = weight_files(folder)
    template = _template(folder, tokenizer_config)
    return PreparedModel(
        model_id=model_id,
        path=str(folder),
        weights_digest=digests.digest(weights, progress),
        tokenizer_digest=digests.digest(tokenizer_files(folder)),
        template_digest=template and hashlib.sha256(template.encode()).hexdigest(),
        context_length=_context_length(text, tokenizer_config),
        vocab_size=_vocabulary_size(folder, text),
        eos_token_ids=_ends(folder, text, tokenizer_config),
        architecture=str(config["model_type"]),
        quantization=_quantization(text),
        size_bytes=sum(file.stat().st_size for file in weights),
    )


def _template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """The chat template, found where transformers looks, in its order."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = _optional_json(folder / "chat_template.json").get("chat_template")
    template = template or tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several named ones
        return json.dumps(template, sort_keys=True)
    return template or None


def _context_length(text: dict[str, Any], tokenizer_config: dict[str, Any]) -> int:
    values = [text.get(key) for key in _CONTEXT_KEYS]
    values.append(tokenizer_config.get("model_max_length"))
    for value in values:
        if isinstance(value, int | float) and 0 < value < _SANE_CONTEXT:
            return int(value)
    return UNKNOWN_CONTEXT


def _vocabulary_size(folder: Path, text: dict[str, Any]) -> int:
    size = text.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise ModelInvalid(f"{folder}/config.json names no vocab_size")
    return size


def _ends(folder: Path, text: dict[str, Any], tokenizer_config: dict[str, Any]) -> tuple[int, ...]:
    """End-of-answer ids as mlx-lm finds them: generation_config.json, config, tokenizer."""
    ids = _optional_json(folder / "generation_config.json").get("eos_token_id")
    ids = text.get("eos_token_id") if ids is None else ids
    if isinstance(ids, int):
        return (ids,)
    if ids:
        return tuple(sorted({int(token_id) for token_id in ids}))
    token = tokenizer_config.get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    for added in _optional_json(folder / "tokenizer.json").get("added_tokens", ()):
        if added["content"] == content:
            return (int(added["id"]),)
    return ()


def _quantization(text: dict[str, Any]) -> str:
    if "gguf_types" in text:
        return f"{text['gguf_types']} as {text['torch_dtype']}"
    if settings := text.get("quantization") or text.get("quantization_config"):
        bits = settings.get("bits")
        mode = settings.get("mode") or settings.get("quant_method") or "affine"
        return f"{bits}-bit {mode}" if bits else str(mode)
    return str(text.get("torch_dtype") or text.get("dtype") or "none")


def _optional_json(path: Path) -> dict[str, Any]:
    return _json(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelInvalid(f"{path.parent} is no mlx-lm model: it has no {path.name}") from error
    except OSError as error:
        raise ModelInvalid(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelInvalid(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelInvalid(f"{path} is not a JSON object")
    return content
