"""Run all benchmarks, or those named: `python -m tests.bench [store] [serving]`."""

from __future__ import annotations

import sys

from tests.bench import serving, store

BENCHMARKS = {"store": store.rows, "serving": serving.rows}


def main(names: list[str]) -> None:
    """Print each benchmark's rows as they are found."""
    for name in names or BENCHMARKS:
        print(f"--- {name}: ratio (value / base)")
        for row in BENCHMARKS[name]():
            print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
