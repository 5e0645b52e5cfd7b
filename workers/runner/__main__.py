"""A runner: `python -m workers.runner --fd-in N --fd-out M --engine mlx|scripted:FILE`.

It is started by a node with two inherited descriptors and serves it until the node goes away.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infrastructure.blas import set_up
from workers.protocol import VERSION, Hello
from workers.runner.channel import Channel, take_over
from workers.runner.engine import Engine
from workers.runner.loop import Loop


def main() -> int:
    """Run until told to end; the exit status."""
    options = _options()
    channel = Channel(*take_over(options.fd_in, options.fd_out))
    # Before anything that takes time: a node that is gone must be noticed from the start.
    channel.start()
    # The node ends its runners itself, in order; Ctrl-C in its terminal is meant for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A crash leaves its stack in the node's log, and no file with what users said.
    faulthandler.enable(all_threads=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    engine = _engine(options.engine, options.blas)
    channel.send(Hello(version=VERSION, pid=os.getpid(), engine=engine.name))
    return Loop(engine, channel).run()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.runner", description=__doc__)
    parser.add_argument("--fd-in", type=int, required=True, help="descriptor to read from")
    parser.add_argument("--fd-out", type=int, required=True, help="descriptor to write to")
    parser.add_argument("--engine", required=True, help="mlx, or scripted:FILE")
    parser.add_argument(
        "--blas", default="", help="library to load ahead of MLX, or none; default: as installed"
    )
    options = parser.parse_args()
    kind, _, file = options.engine.partition(":")
    if options.engine != "mlx" and (kind != "scripted" or not file):
        parser.error("--engine is mlx, or scripted:FILE")
    return options


def _engine(engine: str, blas: str) -> Engine:
    _, _, file = engine.partition(":")
    if file:
        from workers.runner.scripted_engine import ScriptedEngine

        return ScriptedEngine(Path(file))
    # MLX binds to whichever BLAS is there when it is imported.
    set_up(blas)
    # Models are folders on this machine; nothing here has any business on the network.
    os.environ["HF_HUB_OFFLINE"] = "1"
    with _limits_kept():
        from workers.runner.mlx_engine import MlxEngine

    return MlxEngine()


@contextmanager
def _limits_kept() -> Iterator[None]:
    """Keep mlx-lm from changing the limits of open files as it is imported.

    It would fail where the hard limit is lower than what it wants.
    """
    original = resource.setrlimit
    resource.setrlimit = lambda resource, limits: None
    try:
        yield
    finally:
        resource.setrlimit = original


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    # Not through the interpreter's own ending, in which MLX's threads can abort the process.
    os._exit(status)
