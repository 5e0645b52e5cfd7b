"""What MLX can do here, asked of a process of its own: a library that does not fit the
processor ends that one and not this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from api.cli.checks import Check
from api.cli.output import size

COMMAND = (sys.executable, "-m", "workers.runner.probe")
TIMEOUT = 60.0
"""Seconds; MLX's first import after an installation reads hundreds of megabytes."""

SLOW = 20.0
"""GFLOP/s of a CPU below which its BLAS is to blame; the reference BLAS does 3 to 5."""

FASTER = "requests take 10 to 40 times as long as they could; "


class Findings(msgspec.Struct, kw_only=True):
    """What the probe prints: findings, or an error."""

    device: str = ""
    device_name: str = ""
    memory_bytes: int | None = None
    blas_path: str | None = None
    blas_reason: str = ""
    blas_slow: bool = False
    gflops: float = 0.0
    error: str | None = None


def probe(blas: str, timeout: float = TIMEOUT) -> Iterator[Check]:
    """The device and the BLAS in use, with its speed.

    Args:
        blas: the setting.
        timeout: seconds until the probe is ended.
    """
    try:
        found = _run(blas, timeout)
    except ProbeFailed as error:
        yield Check(name="device", value="unknown", status="problem", advice=str(error))
        return
    memory = "" if found.memory_bytes is None else f", {size(found.memory_bytes)} of memory"
    facts: dict[str, Any] = msgspec.to_builtins(found)
    yield Check(
        name="device",
        value=f"{found.device.upper()}, {found.device_name}, {os.cpu_count()} cores{memory}",
        facts={name: facts[name] for name in ("device", "device_name", "memory_bytes")},
    )
    yield _blas(found, facts)


def _blas(found: Findings, facts: dict[str, Any]) -> Check:
    advice = ""
    if found.blas_slow:
        advice = FASTER + found.blas_reason
    elif found.device == "cpu" and found.gflops < SLOW:
        advice = f"{FASTER}name a faster BLAS library with INFERLOG_BLAS, or free the processor"
    library = "MLX's own" if found.blas_path is None else Path(found.blas_path).name
    origin = "" if found.blas_path is None else f", {found.blas_reason}"
    return Check(
        name="BLAS",
        value=f"{found.gflops:.0f} GFLOP/s with {library}{origin}",
        status="warning" if advice else "ok",
        advice=advice,
        facts={name: facts[name] for name in ("blas_path", "blas_reason", "blas_slow", "gflops")},
    )


class ProbeFailed(Exception):
    """The probe found nothing; the message says why and what to do."""


def _run(blas: str, timeout: float) -> Findings:
    environment = {**os.environ, "INFERLOG_BLAS": blas}
    try:
        ended = subprocess.run(
            COMMAND,
            capture_output=True,
            env=environment,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ProbeFailed(
            f"MLX did not answer within {timeout:.0f} s; is the machine busy, or its GPU stuck?"
        ) from None
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        raise ProbeFailed(
            f"MLX or its BLAS library ended the probe with {name}, as one that is not made for "
            "this processor does; INFERLOG_BLAS=none takes MLX's own"
        )
    try:
        found = msgspec.json.decode(ended.stdout, type=Findings)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        raise ProbeFailed(f"the probe failed: {said[-1] if said else 'it said nothing'}") from None
    if found.error is not None:
        raise ProbeFailed(found.error)
    return found
