"""What a client sees, and what the log says, when something goes wrong."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.e2e.harness import Client, Server, chat_body
from tests.e2e.kills import ends, events_of, kill_runner
from tests.e2e.scripted import Steps, scripted_server, write_script

HELLO: Steps = [{"text": "Hello "}, {"text": "there"}, {"finish": "stop"}]
SLOW: Steps = [{"repeat": 2000, "steps": [{"tokens": ["word "]}, {"sleep": 0.01}]}]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error in a body, whose shape is OpenAI's."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return dict(body["error"])


def test_an_exception_while_generating_ends_that_request_only(tmp_path: Path) -> None:
    broken: Steps = [{"text": "Hel"}, {"raise": "the tensor fell over"}]
    with scripted_server(tmp_path, default=HELLO, requests=[broken, broken]) as server:
        failed = server.chat("one")
        assert failed.status_code == 500
        assert error_of(failed)["code"] == "generation_failed"
        assert "the tensor fell over" in error_of(failed)["message"]
        streamed = Client.asking(server, chat_body("tiny", "two")).finished()
        assert streamed.status == 200
        assert streamed.text == "Hel"
        assert streamed.chunks[-1]["error"]["code"] == "generation_failed"
        assert streamed.done
        assert not any(c.get("finish_reason") == "error" for c in _choices(streamed))
        served = server.chat("three")
        assert served.json()["choices"][0]["message"]["content"] == "Hello there"
        events = events_of(server, streamed.completion_id)
        last_chunk = [event for event in events if event["type"] == "ChunkGenerated"][-1]
        assert last_chunk["payload"]["finish_reason"] == "error"
        assert "the tensor fell over" in last_chunk["content"]["error_message"]
        [end] = ends(events)
        assert end["type"] == "TaskFailed"


def test_no_error_chunk_is_written_when_nothing_failed(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=HELLO) as server:
        client = Client.asking(server, chat_body("tiny", "hi")).finished()
        assert client.finish_reason == "stop"
        events = events_of(server, client.completion_id)
        reasons = [event["payload"].get("finish_reason") for event in events]
        assert reasons.count("stop") == 1
        assert "error" not in reasons


def test_the_sdk_raises_openai_s_errors(tmp_path: Path) -> None:
    broken: Steps = [{"text": "Hel"}, {"raise": "no"}]
    with (
        scripted_server(tmp_path, default=broken) as server,
        openai.OpenAI(
            base_url=f"{server.url}/v1",
            api_key="unused",
            max_retries=0,
            _strict_response_validation=True,
        ) as client,
    ):
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(**ask)  # type: ignore[call-overload]
        assert failed.value.code == "generation_failed"
        with pytest.raises(openai.APIError, match="no"):
            list(client.chat.completions.create(stream=True, **ask))  # type: ignore[call-overload]
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(**{**ask, "model": "other"})  # type: ignore[call-overload]
        assert unknown.value.code == "model_not_found"


@pytest.mark.parametrize("how", ["abort", "segv", "kill"])
def test_a_request_goes_on_after_its_runner_crashed_once(tmp_path: Path, how: str) -> None:
    crash: Steps = [{"text": "a "}, {"crash": how, "once": True}, {"text": "b"}, {"finish": "stop"}]
    with scripted_server(tmp_path, default=HELLO, requests=[crash]) as server:
        client = Client.asking(server, chat_body("tiny", "hi")).finished()
        assert client.text == "a b"
        assert client.finish_reason == "stop"
        assert server.chat("again").status_code == 200
        types = [event["type"] for event in events_of(server, client.completion_id)]
        assert types.count("TaskAcknowledged") == 2
        assert types.count("AttemptEnded") == 1


def test_a_request_that_keeps_killing_its_runner_fails_and_others_are_served(
    tmp_path: Path,
) -> None:
    crash: Steps = [{"text": "a "}, {"crash": "abort"}]
    with scripted_server(tmp_path, default=HELLO, requests=[crash]) as server:
        failed = server.chat("hi")
        assert failed.status_code == 500
        assert error_of(failed)["code"] == "runner_crashed"
        assert server.chat("again").status_code == 200


def test_a_model_that_cannot_be_loaded_fails_its_requests_within_a_second(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=HELLO) as server:
        assert server.chat("hi").status_code == 200
        write_script(
            tmp_path, default=HELLO, load=[{"sleep": 2}, {"raise": "the weights are rotten"}]
        )
        kill_runner(server)
        failed = server.chat("waits while the next runner loads")
        assert failed.status_code == 500
        assert error_of(failed)["code"] == "model_load_failed"
        assert "the weights are rotten" in error_of(failed)["message"]
        refused = server.chat("again")
        assert error_of(refused) == error_of(refused) | {"code": "model_load_failed"}
        ready = server.get("/ready")
        assert ready.status_code == 503
        assert "the weights are rotten" in ready.text
        statuses = server.get("/events?type=RunnerStatusUpdated&limit=1000").json()["data"]
        known = [e for e in statuses if e["payload"]["status"]["type"] == "Failed"][-1]
        [end] = server.get("/events?type=TaskFailed").json()["data"]
        assert end["recorded_at"] - known["recorded_at"] < 1_000_000


def test_deleting_an_instance_ends_its_running_requests_within_a_second(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=SLOW) as server:
        client = Client.asking(server, chat_body("tiny", "hi"))
        client.first.wait(30)
        [instance] = server.get("/state").json()["instances"]
        began = time.monotonic()
        assert httpx.delete(f"{server.url}/instance/{instance}", timeout=30).status_code == 200
        client.finished()
        assert time.monotonic() - began < 1.0
        assert client.chunks[-1]["error"]["code"] == "instance_deleted"
        assert client.done
        gone = server.post("/v1/chat/completions", chat_body("tiny", "hi"))
        assert gone.status_code == 404
        assert error_of(gone)["code"] == "model_not_found"
        deadline = time.monotonic() + 10
        while server.runner_pids() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.runner_pids() == []
        placed = server.post("/instance", {"model_id": str(tmp_path / "tiny")})
        assert placed.status_code == 200, placed.text
        server.wait_ready()
        assert server.get("/v1/models").json()["data"]


def test_a_full_queue_is_429_with_retry_after(tmp_path: Path) -> None:
    args = ("--queue", "2", "--max-batch", "1")
    with scripted_server(tmp_path, default=SLOW, args=args) as server:
        running = Client.asking(server, chat_body("tiny", "hi"))
        running.first.wait(30)
        waiting = [Client.asking(server, chat_body("tiny", "hi")) for _ in range(2)]
        _wait_tasks(server, 3)
        refused = server.chat("one more")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        assert all(client.status is None for client in waiting)


def test_requests_wait_while_the_model_loads(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=HELLO, load=[{"sleep": 2}], ready=False) as server:
        _wait_loading(server)
        ready = server.get("/ready")
        assert ready.status_code == 503
        answered = server.chat("hi")
        assert answered.status_code == 200
        assert server.get("/ready").status_code == 200


def test_a_hanging_runner_is_replaced_and_its_request_goes_on(tmp_path: Path) -> None:
    hang: Steps = [{"text": "a "}, {"hang": True, "once": True}, {"text": "b"}, {"finish": "stop"}]
    args = ("--progress-timeout", "1")
    with scripted_server(tmp_path, default=HELLO, requests=[hang], args=args) as server:
        client = Client.asking(server, chat_body("tiny", "hi")).finished()
        assert client.text == "a b"
        failures = server.get("/events?type=RunnerStatusUpdated&limit=1000").json()["data"]
        messages = [e["payload"]["status"].get("error_message", "") for e in failures]
        assert any("INFERLOG_PROGRESS_TIMEOUT" in message for message in messages)


def test_a_client_that_goes_away_harms_nobody(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=_long()) as server:
        with httpx.stream(
            "POST",
            f"{server.url}/v1/chat/completions",
            json={**chat_body("tiny", "hi"), "stream": True},
            timeout=30,
        ) as response:
            next(response.iter_lines())
        stays = Client.asking(server, chat_body("tiny", "hi")).finished()
        assert stays.finish_reason == "stop"
        assert server.chat("again").status_code == 200


def test_a_second_server_on_the_same_log_says_who_owns_it(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=HELLO) as server:
        second = server.cli("serve", "--port", "0", "--model", str(tmp_path / "tiny"))
        assert second.returncode == 3
        assert str(server.pid) in second.stderr
        assert server.chat("still here").status_code == 200


def test_a_stopped_server_leaves_its_requests_for_the_next_start(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=_long()) as server:
        client = Client.asking(server, chat_body("tiny", "hi"))
        client.first.wait(30)
        assert server.stop() == 0
        client.finished()
        assert client.error is not None
        assert not client.done
        server.start()
        rest = Client.resuming(server, client.completion_id, client.received[-1][0]).finished()
        assert rest.finish_reason == "stop"
        assert (client.text + rest.text) == "word " * 100


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on another process")
def test_a_full_disk_refuses_new_requests_and_running_ones_go_on_after_it(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=_long()) as server:
        process = psutil.Process(server.pid)
        running = Client.asking(server, chat_body("tiny", "hi"))
        running.first.wait(30)
        # No file of the server may grow: what a full disk looks like from inside.
        process.rlimit(psutil.RLIMIT_FSIZE, (1, -1))
        refused = server.chat("more")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert error_of(refused)["code"] == "log_unavailable"
        time.sleep(1)
        seen = len(running.received)
        time.sleep(1)
        assert len(running.received) == seen, "what is not recorded is not sent"
        assert server.get("/health").status_code == 200
        process.rlimit(psutil.RLIMIT_FSIZE, (-1, -1))
        running.finished()
        assert running.text == "word " * 100
        assert running.done
        assert server.chat("again").status_code == 200
        assert server.cli("log", "verify").returncode == 0


def _long() -> Steps:
    return [
        {"repeat": 100, "steps": [{"tokens": ["word "]}, {"sleep": 0.02}]},
        {"finish": "stop"},
    ]


def _choices(client: Client) -> list[dict[str, Any]]:
    return [choice for chunk in client.chunks for choice in chunk.get("choices", [])]


def _wait_tasks(server: Server, count: int) -> None:
    """Wait until so many requests are alive."""
    deadline = time.monotonic() + 30
    while len(server.get("/state").json()["tasks"]) < count:
        assert time.monotonic() < deadline, "the requests never arrive"
        time.sleep(0.02)


def _wait_loading(server: Server) -> None:
    """Wait until the model's folder is known, from when on requests wait."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        statuses = server.get("/state").json()["runners"].values()
        if any("RunnerLoading" in status for status in statuses):
            return
        time.sleep(0.02)
    raise AssertionError("the runner never began to load")
