"""The default model, made once for all tests."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from workers.models.catalog import resolve
from workers.models.messages import PreparedModel
from workers.models.prepare import prepare

_CACHE = Path(__file__).parent.parent / ".cache"


def default_model_home() -> Path:
    """A data folder in which the default model is ready.

    It is INFERLOG_TEST_HOME, or a folder in the checkout that outlives the tests. Processes
    that ask at once wait for the first. Only its `models` is to be used by tests.
    """
    home = os.environ.get("INFERLOG_TEST_HOME")
    if home:
        return _made(Path(home))
    _CACHE.mkdir(exist_ok=True)
    (_CACHE / ".gitignore").write_text("*\n")
    return _made(_CACHE / "models-home")


def default_model() -> PreparedModel:
    """The default model as prepared in `default_model_home`."""
    return prepare(resolve(None), default_model_home())


@cache
def _made(home: Path) -> Path:
    prepare(resolve(None), home)
    return home
