"""Prompts: rendered and tokenized as the model's folder says, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from api.errors import LONGEST_MESSAGE, ApiError
from api.prompting import Message, Prompter
from domain.events import ModelPrepared
from tests.api.fake_worker import FACTS
from tests.tiny_model import CHAT_TEMPLATE, IM_END, IM_START, tokenizer

Folder = Callable[..., ModelPrepared]

STRINGS_ONLY = (
    "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + '\n' }}{% endfor %}"
)
PARTS_ONLY = (
    "{% for m in messages %}{{ m['role'] }}:"
    "{% for part in m['content'] %}{{ part['text'] }}|{% endfor %}{% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}" + STRINGS_ONLY
)
SYSTEM_DROPPED = "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if loop.index0 and m['role'] == messages[loop.index0 - 1]['role'] %}"
    "{{ raise_exception('Roles must alternate ' + 'x' * 5000) }}{% endif %}{{ m['content'] }}"
    "{% endfor %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Makes a folder with a tokenizer and a template of one's choice."""

    def make(template: str | None = CHAT_TEMPLATE) -> ModelPrepared:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
        tokenizer().save(str(tmp_path / "tokenizer.json"))
        names = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
        return ModelPrepared(
            model_id="m",
            node_id="n",
            source="s",
            path=str(tmp_path),
            model=FACTS,
            context_length=10,
            vocab_size=1024,
            size_bytes=1,
            architecture="llama",
        )

    return make


@pytest.fixture
def prompter() -> Prompter:
    return Prompter()


USER = Message("user", ("Hi",))
SYSTEM = Message("system", ("Be kind",))


async def test_the_template_is_rendered_and_tokenized(folder: Folder, prompter: Prompter) -> None:
    prompt = await prompter.prepare(folder(), [SYSTEM, USER])
    assert prompt.text == (
        "<|im_start|>system\nBe kind<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.token_ids.count(IM_START) == 3
    assert prompt.token_ids.count(IM_END) == 2
    assert tokenizer().decode(list(prompt.token_ids), skip_special_tokens=False) == prompt.text


async def test_special_tokens_in_a_message_become_those_tokens(
    folder: Folder, prompter: Prompter
) -> None:
    prompt = await prompter.prepare(folder(), [Message("user", ("<|im_end|>",))])
    assert prompt.token_ids.count(IM_END) == 2


async def test_parts_are_joined_as_they_are(folder: Folder, prompter: Prompter) -> None:
    parts = await prompter.prepare(folder(), [Message("user", ("H", "i"))])
    assert parts == await prompter.prepare(folder(), [USER])


async def test_a_template_that_reads_parts_gets_parts(folder: Folder, prompter: Prompter) -> None:
    prompt = await prompter.prepare(folder(PARTS_ONLY), [Message("user", ("a", "b"))])
    assert prompt.text == "user:a|b|"


@pytest.mark.parametrize("template", [NO_SYSTEM, SYSTEM_DROPPED])
async def test_a_template_without_a_system_role_says_so(
    folder: Folder, prompter: Prompter, template: str
) -> None:
    model = folder(template)
    assert (await prompter.prepare(model, [USER])).text
    with pytest.raises(ApiError, match="no system role") as caught:
        await prompter.prepare(model, [USER, SYSTEM])
    assert (caught.value.code, caught.value.param) == ("bad_request", "messages[1].role")


async def test_what_a_template_objects_to_is_told_in_few_words(
    folder: Folder, prompter: Prompter
) -> None:
    with pytest.raises(ApiError, match="Roles must alternate") as caught:
        await prompter.prepare(folder(ALTERNATING), [USER, USER])
    assert (caught.value.code, caught.value.param) == ("bad_request", "messages")
    assert len(caught.value.message) <= LONGEST_MESSAGE


async def test_a_model_without_a_template_cannot_chat(folder: Folder, prompter: Prompter) -> None:
    with pytest.raises(ApiError, match="no chat template"):
        await prompter.prepare(folder(None), [USER])


async def test_a_broken_folder_is_a_model_that_failed_until_it_is_mended(
    folder: Folder, prompter: Prompter, tmp_path: Path
) -> None:
    model = folder()
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ApiError) as caught:
        await prompter.prepare(model, [USER])
    assert caught.value.code == "model_load_failed"
    folder()
    assert (await prompter.prepare(model, [USER])).token_ids


async def test_a_folder_made_anew_is_read_anew(folder: Folder, prompter: Prompter) -> None:
    first = await prompter.prepare(folder(STRINGS_ONLY), [USER])
    changed = msgspec.structs.replace(FACTS, template_digest="d" * 64)
    model = msgspec.structs.replace(folder(), model=changed)
    assert (await prompter.prepare(model, [USER])).text != first.text
