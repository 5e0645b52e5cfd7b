"""One row of the batch, as the loop keeps it."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from domain.events import Content
from workers.protocol import Insert, Row
from workers.runner.detokenizer import Detokenizer
from workers.runner.engine import Request
from workers.runner.text import TextFold

LONGEST_MESSAGE = 2000
"""Characters of an error's text."""


class ActiveRow:
    """An answer as far as it is known, and what its text came to.

    Args:
        insert: the node's order.
        detokenizer: at the start of a text.
        eos: tokens that end an answer and are no text.
        now: nanoseconds on the monotonic clock.

    Attributes:
        finished: why the row is over, once it is.
    """

    def __init__(self, insert: Insert, detokenizer: Detokenizer, eos: Set[int], now: int) -> None:
        self.uid = insert.uid
        self._insert = insert
        self._eos = eos
        self._began = now
        self._fold = TextFold(detokenizer, insert.stop, insert.emitted)
        self._tokens: list[int] = []
        self._unsent = ""  # text that the logged tokens release beyond what was emitted
        self.finished: Literal["stop", "length", "error"] | None = None

    def replay(self) -> None:
        """Take the logged tokens again; they may turn out to have ended the answer."""
        for token_id in self._insert.logged:
            self._take(token_id)

    def request(self) -> Request:
        """What an engine needs to go on with it."""
        insert = self._insert
        return Request(
            uid=self.uid,
            task=insert.task,
            choice=insert.choice,
            tokens=(*insert.prompt, *self._tokens),
            known=len(self._tokens),
            sampling=insert.sampling,
        )

    def take(self, token_id: int, now: int) -> Row:
        """Take the next token; give the row's share of a frame."""
        first_index = len(self._tokens)
        self._take(token_id)
        return self._row(first_index, (token_id,), now)

    def ended(self, now: int) -> Row:
        """The end of a row whose logged tokens had ended it already."""
        return self._row(self._known, (), now)

    def fail(self, message: str, now: int) -> Row:
        """End it with an error, which takes the place of text still held back."""
        self.finished = "error"
        return Row(
            uid=self.uid,
            choice=self._insert.choice,
            first_index=self._known,
            finish_reason="error",
            error_message=message[:LONGEST_MESSAGE],
            offset=(now - self._began) // 1000,
        )

    @property
    def _known(self) -> int:
        """Tokens of the answer so far, whether they were replayed yet or not."""
        return max(len(self._tokens), len(self._insert.logged))

    def _take(self, token_id: int) -> None:
        self._tokens.append(token_id)
        eos = token_id in self._eos
        if not eos:
            self._unsent += self._fold.feed(token_id)
        if eos or self._fold.stopped:
            self.finished = "stop"
        elif len(self._tokens) >= self._insert.sampling.max_tokens:
            self.finished = "length"
        if self.finished:
            self._unsent += self._fold.finish()

    def _row(self, first_index: int, token_ids: tuple[int, ...], now: int) -> Row:
        text, self._unsent = self._unsent, ""
        return Row(
            uid=self.uid,
            choice=self._insert.choice,
            first_index=first_index,
            token_ids=token_ids,
            deltas=(Content(text),) if text else (),
            finish_reason=self.finished,
            offset=(now - self._began) // 1000,
        )
