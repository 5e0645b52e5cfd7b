"""Tokenizers from GGUF metadata, against the libraries that made such tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.workers.models import samples
from workers.models.errors import ModelInvalid, ModelUnsupported
from workers.models.gguf_file import GgufFile
from workers.models.gguf_tokenizer import GgufTokenizer

TEXTS = [
    "hello world",
    "  two  spaces and a\ttab",
    "1234567 and 3.14",
    "naïve café, 漢字 🙂!",
    "line\n\nbreaks\r\n",
    "it's we'LL",
    "",
    " ",
]


def build(tmp_path: Path, tokenizer: Callable[[Any], None], vocabulary: int = 8) -> GgufTokenizer:
    """The tokenizer of a sample file, which is also written to `tmp_path`."""
    path = tmp_path / "model.gguf"
    samples.write(path, tokenizer=tokenizer, vocabulary=vocabulary)
    built = GgufTokenizer(GgufFile(path))
    built.write(tmp_path, samples.CONTEXT)
    return built


def pieces(tmp_path: Path, text: str, special: bool = False) -> list[str]:
    """The tokens of a text, by the tokenizer that was written."""
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokens: list[str] = tokenizer.encode(text, add_special_tokens=special).tokens
    return tokens


def test_digits_stand_alone_and_merges_apply_in_smollm(tmp_path: Path) -> None:
    build(tmp_path, samples.byte_level())
    assert pieces(tmp_path, "hello 12") == ["hello", "Ġ", "1", "2"]
    assert pieces(tmp_path, "hello w") == ["hello", "Ġw"]


def test_special_tokens_are_found_within_text_and_come_back_as_it(tmp_path: Path) -> None:
    build(tmp_path, samples.byte_level())
    assert pieces(tmp_path, "<|im_start|>h<|im_end|>") == ["<|im_start|>", "h", "<|im_end|>"]
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>").ids
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"


@pytest.mark.parametrize("splits", ["smollm", "gpt-2", "llama-bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back_whole(tmp_path: Path, splits: str, text: str) -> None:
    build(tmp_path, samples.byte_level(splits))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_the_beginning_of_text_is_marked_where_the_file_or_its_family_says_so(
    tmp_path: Path,
) -> None:
    for splits, flag, expected in [
        ("smollm", False, False),
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ]:
        build(tmp_path, samples.byte_level(splits, bos=flag))
        marked = pieces(tmp_path, "h", special=True) == ["<|im_start|>", "h"]
        assert marked is expected, (splits, flag)


def test_llama_3_takes_digits_by_threes_and_whole_tokens_first(tmp_path: Path) -> None:
    tokens = [*samples.TOKENS, "1234", "123", "Ġab"]
    build(tmp_path, samples.byte_level("llama-bpe", tokens))
    # No merge leads to these; they are tokens all the same.
    assert pieces(tmp_path, "1234 ab") == ["123", "4", "Ġab"]


def test_transformers_and_the_file_agree(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    build(tmp_path, samples.byte_level())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    own = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*TEXTS, "<|im_start|>user\nhello<|im_end|>"]:
        assert tokenizer.encode(text) == own.encode(text).ids
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.model_max_length == samples.CONTEXT
    messages = [{"role": "user", "content": "hello"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == "<|im_start|>user\nhello<|im_end|>\n"


def test_control_tokens_that_end_a_turn_end_an_answer(tmp_path: Path) -> None:
    tokens = [*samples.TOKENS, "<|eot_id|>"]
    assert build(tmp_path, samples.byte_level(tokens=tokens)).eos_token_ids == (2,)
    control = [*samples.SPECIAL, "<|eot_id|>"]
    built = build(tmp_path, samples.byte_level(tokens=tokens, control=control))
    assert built.eos_token_ids == (2, len(samples.TOKENS))


def test_families_and_splits_that_are_not_served_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="splits text as 'qwen2'; served are smollm"):
        build(tmp_path, samples.byte_level("qwen2"))

    def wordpiece(writer: Any) -> None:
        writer.add_tokenizer_model("bert")
        writer.add_token_list(["a"])

    with pytest.raises(ModelUnsupported, match="family 'bert'"):
        build(tmp_path, wordpiece)


def test_merges_of_tokens_that_do_not_exist_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="its tokenizer is broken"):
        build(tmp_path, samples.byte_level(tokens=samples.TOKENS[:-3]))


def test_special_ids_outside_the_vocabulary_are_an_error(tmp_path: Path) -> None:
    def add(writer: Any) -> None:
        samples.byte_level()(writer)
        writer.add_pad_token_id(100_000)

    with pytest.raises(ModelInvalid, match="padding_token_id is 100000"):
        build(tmp_path, add)


def test_sentencepiece_gives_the_ids_that_its_own_library_gives(tmp_path: Path) -> None:
    sentencepiece = train_sentencepiece(tmp_path)
    build(tmp_path, sentencepiece_metadata(sentencepiece))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        if not text.strip():
            continue  # the library gives nothing at all for these
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == sentencepiece.encode(text), text
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode(text).ids == [1, *ids]


def test_mlx_lm_knows_the_decoders_it_has_fast_detokenizers_for(tmp_path: Path) -> None:
    build(tmp_path, sentencepiece_metadata(train_sentencepiece(tmp_path)))
    decoder = json.loads((tmp_path / "tokenizer.json").read_text())["decoder"]
    # What mlx_lm.tokenizer_utils compares with, which no test process imports.
    assert decoder == {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }


def train_sentencepiece(tmp_path: Path) -> Any:
    """A small tokenizer of llama 2's kind, trained by SentencePiece on a few sentences."""
    import sentencepiece

    text = "the quick brown fox jumps over a lazy dog while hello world says it's naïve"
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(f"{text[i % 40 : i % 40 + 30]} {i}" for i in range(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "spm"),
        model_type="bpe",
        vocab_size=360,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))


def sentencepiece_metadata(processor: Any) -> Callable[[Any], None]:
    """What llama.cpp writes for such a tokenizer."""

    def kind(token_id: int) -> int:
        if processor.is_unknown(token_id):
            return 2
        if processor.is_control(token_id):
            return 3
        return 6 if processor.is_byte(token_id) else 1

    def add(writer: Any) -> None:
        ids = range(processor.get_piece_size())
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([processor.id_to_piece(i) for i in ids])
        writer.add_token_scores([processor.get_score(i) for i in ids])
        writer.add_token_types([kind(i) for i in ids])
        writer.add_bos_token_id(processor.bos_id())
        writer.add_eos_token_id(processor.eos_id())
        writer.add_unk_token_id(processor.unk_id())

    return add
