"""The one fold over an answer's tokens: detokenizer, then stop strings.

It is rebuilt after a crash by feeding it the logged tokens again. How tokens were split over
attempts never shows in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.runner.detokenizer import Detokenizer


class StopMatcher:
    """Ends a text before the first stop string in it.

    First is what is complete first; of several that end at the same place the longest, so
    that nothing of any of them is left in the text. Text that may turn out to be the
    beginning of one is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take more text; give what is certain to belong to the answer."""
        if not self._stops:
            return text
        if self.stopped or not text:
            return ""
        text = self._held + text
        if (begin := self._match(text)) is not None:
            self.stopped = True
            self._held = ""
            return text[:begin]
        certain = len(text) - self._held_length(text)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What was held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _match(self, text: str) -> int | None:
        """Where the first stop string begins."""
        found = [
            (begin + len(stop), begin) for stop in self._stops if (begin := text.find(stop)) >= 0
        ]
        return min(found)[1] if found else None

    def _held_length(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        longest = 0
        for stop in self._stops:
            begin = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while 0 <= begin < len(text) - longest:
                if stop.startswith(text[begin:]):
                    longest = len(text) - begin
                begin = text.find(stop[0], begin + 1)
        return longest


class TextFold:
    """Text of an answer, released as its tokens come in.

    Args:
        detokenizer: at the start of a text.
        stops: strings that end the answer and are no part of it.
        emitted: characters released by earlier attempts, which are not released again.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), emitted: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._skip = emitted

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._matcher.stopped

    def feed(self, token_id: int) -> str:
        """Take one more token; give the text that it releases."""
        return self._release(self._matcher.feed(self._detokenizer.add(token_id)))

    def finish(self) -> str:
        """Give the text that was held back; the answer has ended."""
        last = self._matcher.feed(self._detokenizer.finish())
        return self._release(last + self._matcher.finish())

    def _release(self, text: str) -> str:
        if not self._skip:
            return text
        skipped = min(self._skip, len(text))
        self._skip -= skipped
        return text[skipped:]
