"""Kills, and what has to hold after each. `make test` does a few, `make chaos` many."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import psutil

from tests.e2e.harness import Client, Server, chat_body

PROMPTS = (
    "What is the capital of France? Explain briefly.",
    "List three colours.",
    "Write a short poem about the sea.",
    "Count from one to fifty in words.",
)


def ask_some(server: Server, seed: int, max_tokens: int = 24) -> list[Client]:
    """Several streamed requests at once."""
    model = server.model
    return [
        Client.asking(
            server,
            chat_body(model, prompt, max_tokens=max_tokens, seed=seed + i, temperature=i % 2),
        )
        for i, prompt in enumerate(PROMPTS)
    ]


def events_of(server: Server, completion_id: str) -> list[dict[str, Any]]:
    """All events of a completion, from the server."""
    stream = f"completion/{completion_id.removeprefix('chatcmpl-')}"
    events: list[dict[str, Any]] = []
    after = 0
    while True:
        page = server.get(f"/events?stream={stream}&after={after}&limit=1000").json()["data"]
        events += page
        if len(page) < 1000:
            return events
        after = page[-1]["position"]


def ends(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The terminal events among some."""
    return [event for event in events if event["type"] in ("TaskFailed", "TaskStatusUpdated")]


def wait_ended(server: Server, completion_id: str, timeout: float = 120) -> dict[str, Any]:
    """A completion's one end."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := ends(events_of(server, completion_id)):
            assert len(found) == 1, f"{completion_id} has ended {len(found)} times"
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"{completion_id} never ends")


def commands(server: Server) -> list[str]:
    """Ids of every completion that was ever accepted."""
    ids: list[str] = []
    after = 0
    while True:
        page = server.get(f"/events?type=TaskCreated&after={after}&limit=1000").json()["data"]
        ids += [event["payload"]["task_id"] for event in page]
        if len(page) < 1000:
            return ids
        after = page[-1]["position"]


def kill_server_in_mid_stream(server: Server, rng: random.Random) -> None:
    """SIGKILL the server while it streams, start it again, and check every promise."""
    clients = ask_some(server, rng.randrange(2**31))
    clients[0].first.wait(60)
    time.sleep(rng.uniform(0, 1.5))
    server.kill()
    for client in clients:
        client.finished()
    verify = server.cli("log", "verify")
    assert verify.returncode == 0, verify.stdout + verify.stderr
    server.start()
    begun = [client for client in clients if client.received]
    for client in begun:
        assert client.status == 200
        after = client.received[-1][0]
        rest = Client.resuming(server, client.completion_id, after).finished()
        whole = Client.resuming(server, client.completion_id, None).finished()
        assert whole.done
        assert client.received + rest.received == whole.received
        assert whole.finish_reason in ("stop", "length")
    for command in commands(server):
        wait_ended(server, command)
    assert server.cli("log", "verify").returncode == 0


def kill_runner(server: Server) -> int:
    """SIGKILL the runner, waiting for one if it is just being replaced; its pid."""
    deadline = time.monotonic() + 60
    while not (pids := server.runner_pids()):
        assert time.monotonic() < deadline, "there is no runner to kill"
        time.sleep(0.01)
    os.kill(pids[0], signal.SIGKILL)
    return pids[0]


def kill_runner_in_mid_stream(server: Server, rng: random.Random) -> None:
    """SIGKILL the runner while it streams; its requests end once each, others are served."""
    clients = ask_some(server, rng.randrange(2**31))
    clients[0].first.wait(60)
    time.sleep(rng.uniform(0, 1.0))
    runner = kill_runner(server)
    for client in clients:
        client.finished()
        assert client.error is None
        assert client.done
        end = wait_ended(server, client.completion_id)
        assert end["type"] == "TaskStatusUpdated", end
    assert psutil.pid_exists(server.pid)
    server.wait_ready()
    assert server.runner_pids() != [runner]
    assert server.chat("Say hello.", max_tokens=4).status_code == 200
