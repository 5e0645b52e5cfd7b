"""The rows that are being run, and what becomes of them when a step fails.

An exception inside a step leaves the engine's batch in an unknown state: other rows may have
lost a token. So the batch is thrown away and every row is inserted again from its own tokens.
Only the culprit ends with an error. Where the engine cannot name it, the rows are rerun alone,
one token each: who fails alone is one, and nobody pays for being in its company.
"""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from workers.protocol import Insert, ProtocolError, Row, Stats
from workers.runner.engine import Engine, RowError, Token
from workers.runner.row import ActiveRow

LONGEST_COMPLAINT = 4000
"""Characters of a failure on standard error."""


class Batch:
    """Rows on top of an engine that has loaded its model."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._rows: dict[int, ActiveRow] = {}
        self._inside: dict[int, None] = {}  # uids that the engine has, in order
        self._outside: dict[int, None] = {}  # those that it has not, in order
        self._suspects: deque[int] = deque()  # to be run alone before anything else
        self._ended: list[Row] = []  # ends that the next step tells of

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._rows and not self._ended

    def insert(self, insert: Insert) -> None:
        """Take a row on. What is wrong with it ends it, and it alone.

        Raises:
            ProtocolError: there is such a row already.
        """
        if insert.uid in self._rows:
            raise ProtocolError(f"row {insert.uid} was inserted twice")
        detokenizer = self._engine.detokenizer()
        row = ActiveRow(insert, detokenizer, self._engine.eos_token_ids, self._clock())
        self._rows[insert.uid] = row
        self._outside[insert.uid] = None
        try:
            row.replay()
        except Exception as error:
            self._fail(row, error)
            return
        if row.finished:
            self._ended.append(row.ended(self._clock()))
            self._drop(row.uid)

    def remove(self, uid: int) -> None:
        """Forget a row; nothing more is said of it."""
        self._ended = [row for row in self._ended if row.uid != uid]
        self._drop(uid)

    def step(self) -> list[Row]:
        """Decode once; the share of each row that has one."""
        self._admit()
        rows: list[Row] = []
        if self._inside:
            try:
                tokens = self._engine.step()
            except Exception as error:
                self._recover(error)
            else:
                now = self._clock()
                rows = [row for token in tokens if (row := self._take(token, now))]
        ended, self._ended = self._ended, []
        return ended + rows

    def stats(self) -> Stats:
        """The engine's gauges, with the rows that it does not know of."""
        stats = self._engine.stats()
        return msgspec.structs.replace(stats, waiting=stats.waiting + len(self._outside))

    def _admit(self) -> None:
        """Give rows to the engine: all that it lacks, or the next suspect alone."""
        if not self._suspects:
            self._put_in(list(self._outside))
        while self._suspects and not self._inside:
            self._put_in([self._suspects[0]])

    def _put_in(self, uids: Iterable[int]) -> None:
        for uid in uids:
            row = self._rows[uid]
            try:
                self._engine.insert(row.request())
            except Exception as error:
                self._fail(row, error)
            else:
                del self._outside[uid]
                self._inside[uid] = None

    def _take(self, token: Token, now: int) -> Row | None:
        row = self._rows.get(token.uid)
        if row is None:
            return None
        try:
            share = row.take(token.token_id, now)
        except Exception as error:
            self._fail(row, error)
            return None
        if row.finished:
            self._drop(row.uid)
        elif self._suspects:  # it got past the step that failed: not guilty
            self._suspects.popleft()
            self._engine.remove(row.uid)
            del self._inside[row.uid]
            self._outside[row.uid] = None
        return share

    def _recover(self, error: Exception) -> None:
        """Find the culprit of a failed step, or begin to; keep the others."""
        tried = list(self._inside)
        self._engine.reset()
        self._inside.clear()
        self._outside = dict.fromkeys([*tried, *self._outside])  # in order of arrival
        if isinstance(error, RowError) and error.uid in self._rows:
            self._fail(self._rows[error.uid], error)
        elif len(tried) == 1:
            self._fail(self._rows[tried[0]], error)
        else:
            _complain(error)
            self._suspects = deque(tried)

    def _fail(self, row: ActiveRow, error: Exception) -> None:
        _complain(error)
        self._ended.append(row.fail(describe(error), self._clock()))
        self._drop(row.uid)

    def _drop(self, uid: int) -> None:
        self._rows.pop(uid, None)
        self._outside.pop(uid, None)
        if uid in self._suspects:
            self._suspects.remove(uid)
        if uid in self._inside:
            del self._inside[uid]
            self._engine.remove(uid)


def describe(error: BaseException) -> str:
    """An exception in words for whoever asked."""
    if isinstance(error, RowError | ValueError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _complain(error: Exception) -> None:
    """Leave the stack where the node finds it; what it ends with may be of any length."""
    stack = "".join(traceback.format_exception(error, limit=-8))
    sys.stderr.write(stack[:LONGEST_COMPLAINT].rstrip() + "\n")
    sys.stderr.flush()
