"""A process that prepares a model, stops for ever at a named moment, and waits to be killed.

Run as `python -m tests.workers.models.child FILE HOME MOMENT`; prints a line when there.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from workers.models import prepare as module
from workers.models.catalog import resolve
from workers.models.messages import Progress

_rename = Path.rename


def stop(*_: Any) -> None:
    """Say so, and wait for the end."""
    print("here", flush=True)
    signal.pause()


def rename_and_stop(path: Path, target: Path) -> None:
    """Rename, and never get to the next thing."""
    _rename(path, target)
    stop()


def main(file: str, home: str, moment: str) -> None:
    """Prepare up to the moment; up to the end if there is none of this name."""

    def progress(step: Progress) -> None:
        last = step.done_bytes == step.total_bytes
        if moment == "first tensor" or (moment == "last tensor" and last):
            stop()

    if moment == "written":
        patch.object(module, "_sync", stop).start()
    elif moment == "synced":
        patch.object(module._Place, "_publish", stop).start()
    elif moment == "old one moved":
        patch.object(Path, "rename", rename_and_stop).start()
    module.prepare(resolve(file), Path(home), "float32", progress)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
