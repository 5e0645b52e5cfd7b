from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from tests.tiny_model import SPECIAL
from tests.tiny_model import tokenizer as tiny_tokenizer
from workers.runner.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    detokenizers,
)

VOCABULARY = 600


@cache
def byte_level() -> Tokenizer:
    made = tiny_tokenizer(VOCABULARY)
    made.add_tokens([AddedToken("<think>", special=False), AddedToken("<a b>", special=False)])
    return made


@cache
def sentencepiece(strip: bool) -> Tokenizer:
    words = ["▁", "▁the", "▁a", "a", "b", "é", "▁😀", "<s>"]
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + words
    vocab = {token: index for index, token in enumerate(tokens)}
    made = Tokenizer(BPE(vocab=vocab, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
    made.add_special_tokens([AddedToken("<s>", special=True)])
    return made


def of(tokenizer: Tokenizer) -> Callable[[], Detokenizer]:
    """As for a tokenizer of transformers."""
    return detokenizers(SimpleNamespace(backend_tokenizer=tokenizer))


def text(detokenizer: Detokenizer, tokens: Sequence[int]) -> str:
    return "".join([*map(detokenizer.add, tokens), detokenizer.finish()])


@given(st.lists(st.integers(0, VOCABULARY + 1), max_size=30))
def test_byte_level_tokens_give_what_the_library_decodes_at_once(tokens: list[int]) -> None:
    detokenizer = of(byte_level())()
    assert isinstance(detokenizer, ByteDetokenizer)
    assert text(detokenizer, tokens) == byte_level().decode(tokens)


@given(st.text(max_size=30))
def test_text_comes_back_from_its_tokens(original: str) -> None:
    tokens = byte_level().encode(original).ids
    assert text(of(byte_level())(), tokens) == byte_level().decode(tokens)


@given(st.booleans(), st.lists(st.one_of(st.integers(0x20, 0x7E), st.integers(256, 263))))
def test_sentencepiece_tokens_give_what_the_library_decodes_at_once(
    strip: bool, tokens: list[int]
) -> None:
    detokenizer = of(sentencepiece(strip))()
    assert isinstance(detokenizer, ByteDetokenizer)
    assert text(detokenizer, tokens) == sentencepiece(strip).decode(tokens)


@given(st.booleans(), st.lists(st.sampled_from(["a", "é", "€", "😀", " "]), max_size=10))
def test_sentencepiece_bytes_become_characters(strip: bool, characters: list[str]) -> None:
    tokens = list("".join(characters).encode())
    assert text(of(sentencepiece(strip))(), tokens) == sentencepiece(strip).decode(tokens)


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=30))
def test_the_window_gives_what_the_library_decodes_at_once(tokens: list[int]) -> None:
    special = frozenset(range(len(SPECIAL)))
    detokenizer = WindowDetokenizer(byte_level().decode, special)
    assert text(detokenizer, tokens) == byte_level().decode(tokens)


def test_the_window_keeps_what_depends_on_the_token_before() -> None:
    made = Tokenizer(BPE(vocab={"▁a": 0, "▁b": 1}, merges=[]))
    made.decoder = decoders.Metaspace()
    detokenizer = of(made)()
    assert isinstance(detokenizer, WindowDetokenizer)
    assert [detokenizer.add(0), detokenizer.add(1), detokenizer.add(0)] == ["a", " b", " a"]


def test_the_window_never_shows_a_character_in_the_making() -> None:
    detokenizer = WindowDetokenizer(lambda tokens: bytes(tokens).decode(errors="replace"))
    assert [detokenizer.add(byte) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]
    assert detokenizer.finish() == ""


def test_a_tokenizer_in_python_is_served_by_the_window() -> None:
    tokenizer = SimpleNamespace(all_special_ids=[0], decode=lambda ids: bytes(ids).decode())
    detokenizer = detokenizers(tokenizer)()
    assert text(detokenizer, [72, 0, 105]) == "Hi"


@pytest.mark.parametrize("token_id", range(len(SPECIAL)))
def test_special_tokens_are_no_text(token_id: int) -> None:
    assert text(of(byte_level())(), [token_id]) == ""


def test_ids_that_pad_the_vocabulary_are_no_text() -> None:
    assert text(of(byte_level())(), [10**6]) == ""
