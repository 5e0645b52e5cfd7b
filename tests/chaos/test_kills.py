import random
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.harness import Client, Server, chat_body, default_model_server
from tests.e2e.kills import (
    commands,
    kill_runner,
    kill_runner_in_mid_stream,
    kill_server_in_mid_stream,
    wait_ended,
)
from tests.e2e.scripted import Steps, scripted_server

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

KILLS = 20
SOAK = 120.0
"""Seconds."""


def test_twenty_killed_servers_lose_nothing(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with default_model_server(tmp_path / "home") as server:
        for _ in range(KILLS):
            kill_server_in_mid_stream(server, rng)


def test_twenty_killed_runners_are_replaced(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with default_model_server(tmp_path / "home") as server:
        for _ in range(KILLS):
            kill_runner_in_mid_stream(server, rng)


def test_under_load_and_kills_every_request_ends_once_and_memory_is_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script: Steps = [
        {"repeat": 50, "steps": [{"tokens": ["word "]}, {"sleep": 0.01}]},
        {"finish": "stop"},
    ]
    rng = random.Random(3)
    with scripted_server(tmp_path, default=script) as server:
        rounds, sizes = 0, []
        began = time.monotonic()
        while time.monotonic() - began < SOAK:
            clients = [Client.asking(server, chat_body("tiny", "hi")) for _ in range(24)]
            time.sleep(rng.uniform(0.1, 1.0))
            kill_runner(server)
            for client in clients:
                client.finished()
                assert client.text == "word " * 50, (client.status, client.body, client.received)
            rounds += 1
            sizes.append(_size(server))
        for command in commands(server):
            assert wait_ended(server, command)["type"] == "TaskStatusUpdated"
        assert server.cli("log", "verify").returncode == 0
        grown = max(sizes) - sizes[len(sizes) // 3]
        assert grown < 64 * 2**20, f"the server has grown by {grown} bytes"
    with capsys.disabled():
        print(f"\n{rounds} kills under load; server's memory {[s >> 20 for s in sizes]} MiB")


def _size(server: Server) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)
