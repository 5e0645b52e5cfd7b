"""Servers whose runners follow a script: faults on purpose, in real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.harness import Server, serving
from tests.tiny_model import build_tiny_llama

Steps = list[dict[str, Any]]


def write_script(
    folder: Path,
    *,
    default: Steps,
    requests: list[Steps] | None = None,
    load: Steps | None = None,
) -> Path:
    """Write the script that runners in a folder follow from their next start on.

    Args:
        default: steps of a request beyond those in `requests`.
        requests: steps of the first requests, in their order.
        load: steps of loading the model.
    """
    parts = {"load": load, "default": default, "requests": requests}
    script = folder / "script.json"
    script.write_text(json.dumps({name: part for name, part in parts.items() if part is not None}))
    return script


@contextmanager
def scripted_server(
    folder: Path,
    *,
    default: Steps,
    requests: list[Steps] | None = None,
    load: Steps | None = None,
    args: tuple[str, ...] = (),
    ready: bool = True,
) -> Iterator[Server]:
    """A server with a tiny model's tokenizer and a script in place of its weights."""
    model = build_tiny_llama(folder / "tiny")
    script = write_script(folder, default=default, requests=requests, load=load)
    arguments = ("--engine", f"scripted:{script}", "--model", str(model), *args)
    with serving(folder / "home", *arguments, ready=ready) as server:
        yield server
