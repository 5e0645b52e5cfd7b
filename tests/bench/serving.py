"""The server against the bare model, side by side."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.bench.report import Row, compare
from tests.default_model import default_model_home
from tests.e2e.harness import Client, Server, chat_body, default_model_server, serving
from tests.tiny_model import build_tiny_llama

PAIRS = 3
DEFAULT = ("default model", (1, 8, 16), 48)
TINY = ("tiny model, vocabulary of 49,152", (1, 16), 400)
PROMPT = "Count from one to one thousand in words, and do not stop before you are done."


def rows() -> Iterator[Row]:
    """Throughput served over bare, and memory."""
    with tempfile.TemporaryDirectory() as folder:
        with default_model_server(Path(folder) / "default") as server:
            model = default_model_home() / "models" / server.model
            yield from _against_bare(*DEFAULT, server, model)
        tiny = build_tiny_llama(Path(folder) / "tiny", vocab_size=49_152)
        with serving(Path(folder) / "home", "--model", str(tiny)) as server:
            yield from _against_bare(*TINY, server, tiny)
            yield _memory(server)


def _against_bare(
    name: str, batches: tuple[int, ...], tokens: int, server: Server, model: Path
) -> Iterator[Row]:
    for batch in batches:
        bare, served = [], []
        ttft_bare, ttft_served = [], []
        _serve(server, batch, 8)
        for _ in range(PAIRS):
            with _stopped(server):
                alone = _bare(model, batch, tokens)
            speed, ttft = _serve(server, batch, tokens)
            bare.append(alone["tokens_per_s"])
            ttft_bare.append(alone["ttft"])
            served.append(speed)
            ttft_served.append(ttft)
        yield compare(f"{name}, batch {batch}: served over bare", "tokens/s", served, bare)
        yield compare(f"{name}, batch {batch}: first token", "s", ttft_served, ttft_bare)


@contextmanager
def _stopped(server: Server) -> Iterator[None]:
    """The runner's threads must not take the processor from what is measured beside it."""
    processes = [psutil.Process(pid) for pid in (server.pid, *server.runner_pids())]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def _bare(model: Path, batch: int, tokens: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.bare", str(model), str(batch), str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _serve(server: Server, batch: int, tokens: int) -> tuple[float, float]:
    """Tokens a second while all streams decode, and seconds to the last one's first token."""
    body = chat_body(server.model, PROMPT, max_tokens=tokens, temperature=0)
    began = time.perf_counter()
    clients = [Client.asking(server, body) for _ in range(batch)]
    for client in clients:
        client.first.wait(600)
    first = time.perf_counter()
    before = sum(len(client.received) for client in clients)
    for client in clients:
        client.finished(600)
    after = sum(len(client.received) for client in clients)
    return (after - before) / (time.perf_counter() - first), first - began


def _memory(server: Server) -> Row:
    def size() -> float:
        return float(psutil.Process(server.pid).memory_info().rss) / 2**20

    before = size()
    _serve(server, 100, 20)
    return compare("server's memory after 100 streams over before", "MiB", [size()], [before])
