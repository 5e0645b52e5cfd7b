"""What MLX and its BLAS can do on this machine, as one JSON object on standard output.

A process of its own, `python -m workers.runner.probe`: a library that does not fit the
processor ends it with a signal, which tells the caller as much.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import metadata

import msgspec

from infrastructure import blas

_SIZE = 1024
_SECONDS = 0.5


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The findings.

    Attributes:
        device: MLX's default, such as `cpu` or `gpu`, and its name.
        blas_path: the library loaded ahead of MLX, or None.
        blas_slow: that is a fallback that costs a factor of 10 or more.
        gflops: 10^9 operations a second in a float32 product of 1024 by 1024 matrices, the
            best of several.
        memory_bytes: of the device; None where MLX does not say.
    """

    device: str
    device_name: str
    mlx_version: str
    blas_path: str | None
    blas_reason: str
    blas_slow: bool
    gflops: float
    memory_bytes: int | None


class ProbeFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why nothing could be measured."""

    error: str


def main() -> int:
    """Print a Probe, or a ProbeFailed and return 1."""
    try:
        found: Probe | ProbeFailed = probe(os.environ.get("INFERLOG_BLAS", ""))
    except (blas.BlasError, ImportError, RuntimeError) as error:
        found = ProbeFailed(error=str(error))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0 if isinstance(found, Probe) else 1


def probe(blas_setting: str) -> Probe:
    """Load BLAS and MLX, and measure.

    Raises:
        blas.BlasError: the library that the user named cannot be used.
        ImportError: MLX cannot be loaded.
        RuntimeError: its device does not work.
    """
    choice = blas.set_up(blas_setting)
    import mlx.core as mx  # only now: BLAS goes first

    device = mx.default_device()
    info = mx.device_info()
    return Probe(
        device="gpu" if device.type == mx.gpu else "cpu",
        device_name=str(info.get("device_name", "unknown")),
        mlx_version=metadata.version("mlx"),
        blas_path=None if choice.path is None else str(choice.path),
        blas_reason=choice.reason,
        blas_slow=choice.slow,
        gflops=_gflops(),
        memory_bytes=_memory(info),
    )


def _gflops() -> float:
    import mlx.core as mx

    matrix = mx.random.uniform(shape=(_SIZE, _SIZE), key=mx.random.key(0))
    mx.eval(matrix)
    best = float("inf")
    begin = time.perf_counter()
    while time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        mx.eval(matrix @ matrix)
        best = min(best, time.perf_counter() - start)
    return round(2 * _SIZE**3 / best / 1e9, 1)


def _memory(info: dict[str, str | int]) -> int | None:
    if size := info.get("memory_size") or info.get("total_memory"):
        return int(size)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


if __name__ == "__main__":
    sys.exit(main())
