"""Tokens into text, one at a time.

mlx-lm's own streaming detokenizers drop a leading space or add one, so here are others. For
every tokenizer, the texts put together are what the `tokenizers` library decodes from all
tokens at once, special tokens left out. Two exceptions: spaces before punctuation stay as the
model wrote them, as transformers' old habit of "cleaning them up" cannot be streamed; and where
SentencePiece's byte tokens are no valid UTF-8, valid characters beside them are kept.
"""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

REPLACEMENT = "\ufffd"
_LONGEST_BEGINNING = 3  # bytes of a character that is not complete
_SPACE = "▁"


class Detokenizer(ABC):
    """Text in the making. A character whose bytes are not all there yet is held back."""

    @abstractmethod
    def add(self, token_id: int) -> str:
        """The text that this token completes."""

    @abstractmethod
    def finish(self) -> str:
        """What was held back: an incomplete character becomes U+FFFD."""


class ByteDetokenizer(Detokenizer):
    """For tokenizers whose tokens are bytes, which is nearly all of them.

    Args:
        pieces: bytes of a token; special tokens have none. Unknown tokens are no text.
        strip_space: SentencePiece puts a space in front of every text.
    """

    def __init__(self, pieces: Mapping[int, bytes], strip_space: bool = False) -> None:
        self._pieces = pieces
        self._strip = strip_space
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def add(self, token_id: int) -> str:
        """The text that this token completes."""
        piece = self._pieces.get(token_id)
        return self._stripped(self._decode(piece)) if piece else ""

    def finish(self) -> str:
        """What was held back."""
        return self._stripped(self._decode(b"", True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer(Detokenizer):
    """For any other tokenizer: decodes the last few tokens again and again.

    A token's text may depend on the one before it, so the window still holds the tokens
    that were decoded last, and only what comes after their text is new.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], special: frozenset[int] = frozenset()
    ) -> None:
        self._decode = decode
        self._special = special
        self._before: list[int] = []
        self._tokens: list[int] = []
        self._released = 0  # characters of the window's text

    def add(self, token_id: int) -> str:
        """The text that this token completes."""
        if token_id in self._special:
            return ""
        self._tokens.append(token_id)
        text = self._decode([*self._before, *self._tokens])
        if text.endswith(REPLACEMENT):  # perhaps a character in the making
            replaced = len(text) - len(text.rstrip(REPLACEMENT))
            return self._release(text[: len(text) - min(replaced, _LONGEST_BEGINNING)])
        new = self._release(text)
        self._before, self._tokens = self._tokens, []
        self._released = len(self._decode(self._before))
        return new

    def finish(self) -> str:
        """What was held back."""
        return self._release(self._decode([*self._before, *self._tokens]))

    def _release(self, text: str) -> str:
        new = text[self._released :]
        self._released = max(self._released, len(text))
        return new


def detokenizers(tokenizer: Any) -> Callable[[], Detokenizer]:
    """How to make detokenizers for a tokenizer of transformers; what is slow is done once."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python, such as tiktoken's
        special = frozenset(tokenizer.all_special_ids)
        return lambda: WindowDetokenizer(tokenizer.decode, special)
    description = json.loads(backend.to_str())
    special = frozenset(token["id"] for token in description["added_tokens"] if token["special"])
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    ordinary = {token: i for token, i in vocabulary.items() if i not in special}
    match _steps(description["decoder"]):
        case ["ByteLevel"]:
            pieces = {i: _byte_level(token) for token, i in ordinary.items()}
            return lambda: ByteDetokenizer(pieces)
        case ["space", "ByteFallback", "Fuse", *rest] if rest in ([], ["strip"]):
            pieces = {i: _sentencepiece(token) for token, i in ordinary.items()}
            return lambda: ByteDetokenizer(pieces, strip_space=bool(rest))
    return lambda: WindowDetokenizer(backend.decode, special)


def _steps(decoder: dict[str, Any] | None) -> list[str]:
    """A decoder's steps by name; those that occur with one set of arguments under another."""
    match decoder:
        case {"type": "Sequence", "decoders": steps}:
            return [name for step in steps for name in _steps(step)]
        case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
            return ["space"]
        case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return ["strip"]
        case {"type": str(name)}:
            return [name]
        case _:
            return []


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace(_SPACE, " ").encode()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:  # an added token, which stands for itself
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: a printable character for each byte; those that are not come after 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()
