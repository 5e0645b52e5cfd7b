"""The tokenizer that a GGUF file describes, as the files that transformers reads.

Two families occur with llama: byte-level BPE with a named way to split text first, and
SentencePiece's BPE, whose merges follow from the scores of its tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from workers.models.errors import ModelInvalid, ModelUnsupported
from workers.models.gguf_file import GgufFile

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")


class GgufTokenizer:
    """A GGUF file's tokenizer.

    Attributes:
        tokens: by id.
        eos_token_ids: any of these ends an answer; ascending.

    Raises:
        ModelUnsupported: it is of a family, or splits text in a way, that is not served.
        ModelInvalid: its metadata is incomplete or contradicts itself.
    """

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.tokens = file.texts("tokenizer.ggml.tokens")
        self._types = (
            file.integers("tokenizer.ggml.token_type")
            if "tokenizer.ggml.token_type" in file.metadata
            else [_NORMAL] * len(self.tokens)
        )
        if len(self._types) != len(self.tokens):
            raise ModelInvalid(f"{file.path}: {len(self.tokens)} tokens, {len(self._types)} types")
        self._family = file.text("tokenizer.ggml.model")
        self._splits = file.text("tokenizer.ggml.pre", "default")
        self.bos_token_id = self._special_id("bos")
        self.eos_token_ids = self._ends()
        self._tokenizer = self._build()

    def write(self, folder: Path, context_length: int) -> None:
        """Write tokenizer.json and tokenizer_config.json."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps(self._config(context_length), ensure_ascii=False, indent=2)
        )

    def _config(self, context_length: int) -> dict[str, Any]:
        names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
        config: dict[str, Any] = {
            # The class without a model's habits: tokenizer.json says all there is to say.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context_length,
            "clean_up_tokenization_spaces": False,
        }
        for gguf_name, name in names.items():
            if (token_id := self._special_id(gguf_name)) is not None:
                config[f"{name}_token"] = self.tokens[token_id]
        if template := self._file.text("tokenizer.chat_template", ""):
            config["chat_template"] = template
        return config

    def _special_id(self, name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in self._file.metadata:
            return None
        token_id = self._file.integer(key)
        if not 0 <= token_id < len(self.tokens):
            raise ModelInvalid(f"{self._file.path}: {key} is {token_id}, which is no token")
        return token_id

    def _ends(self) -> tuple[int, ...]:
        named = [self._special_id(name) for name in ("eos", "eot", "eom")]
        ids = {token_id for token_id in named if token_id is not None}
        # Older files name only the end of the text, while a chat's turns end with these.
        ids |= {
            token_id
            for token_id, (token, kind) in enumerate(zip(self.tokens, self._types, strict=True))
            if kind == _CONTROL and token in _TURN_ENDS
        }
        return tuple(sorted(ids))

    def _build(self) -> Tokenizer:
        match self._family:
            case "gpt2":
                tokenizer = self._byte_level()
            case "llama":
                tokenizer = self._sentencepiece()
            case family:
                raise ModelUnsupported(
                    f"{self._file.path}: its tokenizer is of the family {family!r}; "
                    "served are gpt2 and llama"
                )
        self._add_special_tokens(tokenizer)
        self._begin_with_bos(tokenizer)
        return tokenizer

    def _bpe(self, merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
        vocabulary = {token: token_id for token_id, token in enumerate(self.tokens)}
        try:
            return Tokenizer(BPE(vocabulary, merges, **options))
        except Exception as error:  # the library has no type of its own for bad merges
            raise ModelInvalid(f"{self._file.path}: its tokenizer is broken: {error}") from error

    def _byte_level(self) -> Tokenizer:
        # A token may begin with a space's stand-in but never holds a space itself, save as
        # its first character, in old files: hence the search from the second character on.
        merges = []
        for merge in self._file.texts("tokenizer.ggml.merges"):
            cut = merge.find(" ", 1)
            merges.append((merge[:cut], merge[cut + 1 :]))
        llama3 = self._splits in _LLAMA3
        tokenizer = self._bpe(merges, ignore_merges=llama3)
        tokenizer.pre_tokenizer = self._splitter()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _splitter(self) -> pre_tokenizers.PreTokenizer:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        match self._splits:
            case "smollm":
                return pre_tokenizers.Sequence(
                    [pre_tokenizers.Digits(individual_digits=True), byte_level]
                )
            case "gpt-2":
                return byte_level
            case splits if splits in _LLAMA3:
                return pre_tokenizers.Sequence(
                    [
                        pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"),
                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                    ]
                )
            case splits:
                raise ModelUnsupported(
                    f"{self._file.path}: its tokenizer splits text as {splits!r}; "
                    f"served are smollm, gpt-2 and {_LLAMA3[0]}"
                )

    def _sentencepiece(self) -> Tokenizer:
        unknown = self._special_id("unknown")
        tokenizer = self._bpe(
            self._merges_from_scores(),
            unk_token=None if unknown is None else self.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        prefix = self._file.flag("tokenizer.ggml.add_space_prefix", True)
        replace = normalizers.Replace(" ", "▁")
        decode = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if prefix:
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
            decode.append(decoders.Strip(" ", 1, 0))
        else:
            tokenizer.normalizer = replace
        tokenizer.decoder = decoders.Sequence(decode)
        return tokenizer

    def _merges_from_scores(self) -> list[tuple[str, str]]:
        """Every way to put a token together from two others, the best-scored token first."""
        scores = self._file.numbers("tokenizer.ggml.scores")
        if len(scores) != len(self.tokens):
            raise ModelInvalid(
                f"{self._file.path}: {len(self.tokens)} tokens, {len(scores)} scores"
            )
        normal = {
            token: token_id
            for token_id, (token, kind) in enumerate(zip(self.tokens, self._types, strict=True))
            if kind == _NORMAL
        }
        merges = []
        for token, token_id in normal.items():
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in normal and right in normal:
                    rank = (-scores[token_id], normal[left], normal[right])
                    merges.append((rank, (left, right)))
        return [pair for _, pair in sorted(merges)]

    def _add_special_tokens(self, tokenizer: Tokenizer) -> None:
        special = []
        for token, kind in zip(self.tokens, self._types, strict=True):
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED):
                hidden = kind != _USER_DEFINED
                special.append(AddedToken(token, special=hidden, normalized=False))
        tokenizer.add_tokens(special)

    def _begin_with_bos(self, tokenizer: Tokenizer) -> None:
        by_default = self._family == "llama" or self._splits in _LLAMA3
        wanted = self._file.flag("tokenizer.ggml.add_bos_token", by_default)
        if self.bos_token_id is None or not wanted:
            return
        bos = self.tokens[self.bos_token_id]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, self.bos_token_id)],
        )
