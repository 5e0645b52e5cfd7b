"""Messages to token ids, with the model folder's own tokenizer and chat template.

What the template renders is tokenized as `transformers` does it for chats: nothing is added,
and the text of a special token within a message becomes that token.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import msgspec

from api.errors import ApiError
from domain.events import ModelPrepared

log = logging.getLogger(__name__)

MOST_TOKENIZERS = 8
"""Tokenizers kept in memory; the one used longest ago goes first."""

THREADS = 4
"""Prompts prepared at once. A long one takes seconds and must not hold up all others."""

T = TypeVar("T")

_importing = threading.Lock()

_PROBE = "inferlog probe"

Role = Literal["system", "user", "assistant"]


class Message(msgspec.Struct, frozen=True):
    """A message as templates know it. `parts` are its pieces of text, one or more."""

    role: Role
    parts: tuple[str, ...]


class Prompt(msgspec.Struct, frozen=True):
    """What a model is given: the rendered text, and its tokens."""

    text: str
    token_ids: tuple[int, ...]


class Prompter:
    """Prepares prompts in threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prompt")
        self._chats: OrderedDict[tuple[str, str, str], asyncio.Future[Chat]] = OrderedDict()

    async def warm(self) -> None:
        """Import what takes seconds to import, before the first request waits for it."""
        await self._in_thread(_auto_tokenizer)

    async def load(self, model: ModelPrepared) -> None:
        """Load a model's tokenizer, before the first request waits for it."""
        await self._chat(model)

    async def prepare(self, model: ModelPrepared, messages: Sequence[Message]) -> Prompt:
        """Render and tokenize a conversation, with room for the answer.

        Raises:
            ApiError: the template does not take these messages, or the tokenizer is broken.
        """
        chat = await self._chat(model)
        return await self._in_thread(chat.prompt, messages)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _chat(self, model: ModelPrepared) -> Chat:
        key = (model.path, model.model.tokenizer_digest, model.model.template_digest)
        loading = self._chats.get(key)
        if loading is None or (loading.done() and loading.exception() is not None):
            loading = asyncio.ensure_future(self._in_thread(Chat, model.path))
            self._chats[key] = loading
            if len(self._chats) > MOST_TOKENIZERS:
                self._chats.popitem(last=False)
        self._chats.move_to_end(key)
        # Shielded: others may wait for the same tokenizer when this request goes away.
        try:
            return await asyncio.shield(loading)
        except Exception as error:  # whatever a folder's files make the libraries raise
            raise ApiError(
                "model_load_failed", f"The model's tokenizer cannot be loaded: {error}"
            ) from error

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


class Chat:
    """A model folder's tokenizer, and what was found out about its template.

    Attributes:
        has_system: the template shows the model what a system message says.
        as_parts: the template reads content as a list of parts, not as a string.
    """

    def __init__(self, path: str) -> None:
        self._tokenizer: Any = _tokenizer(path)
        self._backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            # A tokenizer's file may say to cut long texts, which would go unnoticed here.
            self._backend.no_truncation()
            self._backend.no_padding()
        user = Message("user", (_PROBE,))
        self.as_parts = not self._shows([user], False) and self._shows([user], True)
        self.has_system = self._shows(
            [Message("system", (_PROBE,)), Message("user", ("x",))], self.as_parts
        )

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Render and tokenize a conversation.

        Raises:
            ApiError: the template does not take these messages.
        """
        if getattr(self._tokenizer, "chat_template", None) is None:
            raise ApiError("bad_request", "The model has no chat template.", "model")
        if not self.has_system:
            for index, message in enumerate(messages):
                if message.role == "system":
                    raise ApiError(
                        "bad_request",
                        "The model's chat template has no system role. Put the instructions "
                        "into the first user message.",
                        f"messages[{index}].role",
                    )
        text = self._rendered(messages)
        return Prompt(text, self._tokens(text))

    def _rendered(self, messages: Sequence[Message]) -> str:
        try:
            return self._render(messages, self.as_parts)
        except Exception as error:  # a template is a program of the model's and may do anything
            raise ApiError(
                "bad_request",
                f"The model's chat template does not take these messages: {error}",
                "messages",
            ) from error

    def _render(self, messages: Sequence[Message], as_parts: bool) -> str:
        plain = [
            {
                "role": message.role,
                "content": [{"type": "text", "text": part} for part in message.parts]
                if as_parts
                else "".join(message.parts),
            }
            for message in messages
        ]
        rendered = self._tokenizer.apply_chat_template(
            plain, tokenize=False, add_generation_prompt=True
        )
        return str(rendered)

    def _shows(self, messages: Sequence[Message], as_parts: bool) -> bool:
        """Whether what the messages say is in what the template makes of them."""
        try:
            return _PROBE in self._render(messages, as_parts)
        except Exception:  # as above; a template that fails shows nothing
            return False

    def _tokens(self, text: str) -> tuple[int, ...]:
        if self._backend is None:
            return tuple(self._tokenizer([text], add_special_tokens=False)["input_ids"][0])
        # The batch form releases the interpreter's lock, the single one does not.
        [encoding] = self._backend.encode_batch([text], add_special_tokens=False)
        return tuple(encoding.ids)


def _auto_tokenizer() -> Any:
    """Import transformers, without its notice that there is no torch, which is on purpose."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # It swaps its own modules while they are imported, which a second thread must not see.
    with _importing:
        from transformers import AutoTokenizer
    return AutoTokenizer


def _tokenizer(path: str) -> Any:
    auto = _auto_tokenizer()
    with _importing:  # it imports what the folder's kind of model needs
        return auto.from_pretrained(path, local_files_only=True, trust_remote_code=False)
