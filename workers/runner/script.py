"""Scripts for the scripted engine: what it says, and how it fails.

A script is a JSON file::

    {
      "load":     [step, ...],            while the model is "loaded"
      "default":  [step, ...],            for requests that `requests` does not cover
      "requests": [[step, ...], ...]      for the first request, the second, ...
    }

All three may be missing; the default answer is a short sentence. Requests are counted in the
order in which they are first inserted, by all runners that use the file, in all their lives:
a request that is tried again goes on with the script that it began with. What has to be
remembered for that stands in a journal beside the file, `FILE.journal`; delete it to count from
the start.

A step is an object with one of these keys:

    {"text": "Hi"}             one token for each character
    {"tokens": ["Hel", "lo"]}  one token for each string
    {"bytes": "f09f"}          one token for each byte, in hex
    {"finish": "stop"}         the end-of-answer token; so does the end of the script
    {"sleep": 0.5}             this row pauses for so many seconds, others go on
    {"stall": 0.5}             the whole loop does nothing for so many seconds
    {"hang": true}             the whole loop does nothing for ever
    {"raise": "why"}           the step fails and names this row as the culprit
    {"raise_batch": "why"}     the step fails, and nobody knows whose fault it was
    {"crash": "abort"}         the process dies; also "segv" and "kill"
    {"exit": 3}                the process exits with this status
    {"repeat": 3, "steps": []} the steps, so many times

A step with `"once": true` happens once in the life of the journal, whoever comes to it first.

While a model is loaded, text and tokens are told as progress, and every failure is one of
loading. A row that goes on after logged tokens skips all that came before the last of them; a
failure right after it happens again, unless it is to happen once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from workers.runner.engine import LoadError


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing to do; exactly one of its fields is set, `once` and `steps` aside."""

    text: str | None = None
    tokens: tuple[str, ...] | None = None
    bytes: str | None = None
    finish: Literal["stop"] | None = None
    sleep: float | None = None
    stall: float | None = None
    hang: Literal[True] | None = None
    raise_: str | None = msgspec.field(default=None, name="raise")
    raise_batch: str | None = None
    crash: Literal["abort", "segv", "kill"] | None = None
    exit: int | None = None
    repeat: int | None = None
    steps: tuple[Step, ...] = ()
    once: bool = False

    def __post_init__(self) -> None:
        """Refuse what says nothing, or two things at a time.

        Raises:
            ValueError: it is no step.
        """
        actions = set(self.__struct_fields__) - {"steps", "once"}
        if sum(getattr(self, name) is not None for name in actions) != 1:
            raise ValueError("a step does exactly one thing")
        if self.steps and self.repeat is None:
            raise ValueError("only `repeat` has `steps`")
        if self.bytes is not None:
            bytes_of(self.bytes)


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    load: tuple[Step, ...] = ()
    default: tuple[Step, ...] = (Step(text="This answer was read from a script."),)
    requests: tuple[tuple[Step, ...], ...] = ()

    def of_request(self, number: int) -> tuple[str, tuple[Step, ...]]:
        """Name and steps of the script for the request with this number, from 0."""
        if number < len(self.requests):
            return f"requests/{number}", self.requests[number]
        return "default", self.default

    def all_steps(self) -> Iterator[Step]:
        """Every step in the file, in order."""
        for steps in (self.load, self.default, *self.requests):
            yield from _flat(steps)


def read_script(file: Path) -> Script:
    """Read a script.

    Raises:
        LoadError: there is none, or it is not in order; says where.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Script)
    except OSError as error:
        raise LoadError(f"The script {file} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise LoadError(f"The script {file} is not in order: {error}") from error


def bytes_of(digits: str) -> bytes:
    """The bytes that hexadecimal digits stand for.

    Raises:
        ValueError: they are none.
    """
    return bytes.fromhex(digits)


def walk(steps: tuple[Step, ...], path: str) -> Iterator[tuple[str, Step]]:
    """The steps in the order in which they happen, each with its place in the file."""
    for index, step in enumerate(steps):
        place = f"{path}/{index}"
        if step.repeat is None:
            yield place, step
        for _ in range(step.repeat or 0):
            yield from walk(step.steps, place)


def _flat(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from _flat(step.steps)
