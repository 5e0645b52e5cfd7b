"""Prepare a model in a process of its own: a crash or a full memory ends nothing else.

Writes one JSON line for each progress and a last one with the model or the failure; exits
with 0 or 1. Ends when its parent does.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import threading
from pathlib import Path
from typing import get_args

from workers.models.catalog import resolve
from workers.models.errors import ModelError
from workers.models.messages import DType, Failed, Message, encode
from workers.models.prepare import prepare

MAX_MESSAGE = 2_000
"""Characters: a broken file may name its tensors as it likes."""


def main() -> int:
    """Run as `python -m workers.models`; returns the exit code."""
    options = _options()
    _end_with_parent()
    # Libraries print; what this process has to say keeps a way out of its own.
    out = os.dup(1)
    os.dup2(2, 1)

    def say(message: Message) -> None:
        os.write(out, encode(message))

    try:
        model = prepare(resolve(options.source), options.home, options.dtype, say)
    except ModelError as error:
        say(Failed(code=error.code, message=str(error)[:MAX_MESSAGE]))
        return 1
    say(model)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.models", description=__doc__)
    parser.add_argument("--source", default="", help="as in `inferlog serve --model`")
    parser.add_argument("--home", type=Path, required=True, help="inferlog's data folder")
    parser.add_argument("--dtype", choices=get_args(DType), default="float32")
    return parser.parse_args()


def _end_with_parent() -> None:
    """Exit at the end of standard input, where that is a pipe that a parent holds open."""
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
