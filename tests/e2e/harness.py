"""A real server in a process of its own, and clients that write down what they receive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

INFERLOG = Path(sys.executable).with_name("inferlog")
START_TIMEOUT = 90.0
"""Seconds until a started server has written where it listens, and until it is ready."""


class Server:
    """`inferlog serve` on a data folder. It can be killed and started again."""

    def __init__(self, home: Path, *args: str) -> None:
        self.home = home
        self._args = args
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.output = home.parent / f"{home.name}.out"

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, ready: bool = True) -> Server:
        """Start it, and wait until it listens and, if asked, has a model loaded."""
        self.home.mkdir(parents=True, exist_ok=True)
        command = [str(INFERLOG), "serve", "--home", str(self.home), "--port", "0", *self._args]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INFERLOG_")}
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, cwd=self.home
            )
        self.url = self._where()
        if ready:
            self.wait_ready()
        return self

    def _where(self) -> str:
        file = self.home / "server.json"
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                break
            try:
                said = json.loads(file.read_text())
            except (OSError, ValueError):
                said = {}
            if said.get("pid") == self.pid:
                return str(said["url"]).rstrip("/")
            time.sleep(0.02)
        raise AssertionError(f"the server did not start:\n{self.output.read_text()[-4000:]}")

    def wait_ready(self) -> None:
        """Wait until a runner is ready."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self.get("/ready").status_code == 200:
                return
            time.sleep(0.05)
        raise AssertionError(
            f"never ready: {self.get('/ready').text}\n{self.output.read_text()[-4000:]}"
        )

    def runner_pids(self) -> list[int]:
        """The runner processes."""
        return [
            child.pid
            for child in psutil.Process(self.pid).children()
            if "workers.runner" in child.cmdline()
        ]

    def kill(self) -> None:
        """SIGKILL; runners have to be gone within a second."""
        runners = self.runner_pids()
        os.kill(self.pid, signal.SIGKILL)
        self._wait(5)
        deadline = time.monotonic() + 1.0
        while alive := [pid for pid in runners if _alive(pid)]:
            assert time.monotonic() < deadline, f"runners that outlive their server: {alive}"
            time.sleep(0.01)

    def stop(self) -> int:
        """SIGTERM, and wait for the end."""
        if self._process is None or self._process.poll() is not None:
            return self._process.returncode if self._process else 0
        self._process.terminate()
        return self._wait(30)

    def _wait(self, timeout: float) -> int:
        assert self._process is not None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    # --- asking -----------------------------------------------------------------------

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET a path."""
        return httpx.get(f"{self.url}{path}", timeout=30, **options)

    def post(self, path: str, body: object, **options: Any) -> httpx.Response:
        """POST JSON to a path."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=120, **options)

    def chat(self, content: str, **options: Any) -> httpx.Response:
        """One chat completion, not streamed."""
        return self.post("/v1/chat/completions", chat_body(self.model, content, **options))

    @property
    def model(self) -> str:
        """The id of the first model."""
        return str(self.get("/v1/models").json()["data"][0]["id"])

    def cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run the command line on this server's data folder."""
        return subprocess.run(
            [str(INFERLOG), *args, "--home", str(self.home)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def chat_body(model: str, content: str, **options: Any) -> dict[str, Any]:
    """A chat completion's request body."""
    return {"model": model, "messages": [{"role": "user", "content": content}], **options}


@contextmanager
def serving(home: Path, *args: str, ready: bool = True) -> Iterator[Server]:
    """A server that is stopped at the end, whatever happened."""
    server = Server(home, *args)
    try:
        yield server.start(ready=ready)
    finally:
        server.stop()


def _alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Client(threading.Thread):
    """Streams one completion and writes down each message as it comes.

    Attributes:
        received: ordinal and data of each message.
        body: of a response that is no stream.
        error: how the connection broke, if it did.
    """

    def __init__(self, url: str, method: str, path: str, body: object = None) -> None:
        super().__init__(daemon=True)
        self._url, self._method, self._path, self._body = url, method, path, body
        self.status: int | None = None
        self.body = ""
        self.received: list[tuple[int, str]] = []
        self.error: Exception | None = None
        self.first = threading.Event()
        """Set when text has come."""

    @classmethod
    def asking(cls, server: Server, body: dict[str, Any]) -> Client:
        """A client that posts a streamed chat completion."""
        client = cls(server.url, "POST", "/v1/chat/completions", {**body, "stream": True})
        client.start()
        return client

    @classmethod
    def resuming(cls, server: Server, completion_id: str, starting_after: int | None) -> Client:
        """A client that continues after a message, or begins again."""
        path = f"/v1/chat/completions/{completion_id}/stream"
        if starting_after is not None:
            path += f"?starting_after={starting_after}"
        client = cls(server.url, "GET", path)
        client.start()
        return client

    def run(self) -> None:
        """Receive until the stream ends or breaks."""
        try:
            with httpx.stream(
                self._method, f"{self._url}{self._path}", json=self._body, timeout=120
            ) as response:
                self.status = response.status_code
                if self.status != 200:
                    self.body = response.read().decode()
                    return
                ordinal = -1
                for line in response.iter_lines():
                    if line.startswith("id: "):
                        ordinal = int(line[4:])
                    elif line.startswith("data: "):
                        self.received.append((ordinal, line[6:]))
                        if len(self.received) > 1:
                            self.first.set()
        except httpx.HTTPError as error:
            self.error = error
        finally:
            self.first.set()

    def finished(self, timeout: float = 120) -> Client:
        """Wait until the stream has ended."""
        self.join(timeout)
        assert not self.is_alive(), f"a stream that never ends: {self.received[-3:]}"
        return self

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The messages that are JSON."""
        return [json.loads(data) for _, data in self.received if data != "[DONE]"]

    @property
    def done(self) -> bool:
        """Whether the stream ended as OpenAI's do."""
        return bool(self.received) and self.received[-1][1] == "[DONE]"

    @property
    def completion_id(self) -> str:
        """The completion's id, from its first message."""
        return str(self.chunks[0]["id"])

    @property
    def text(self) -> str:
        """The content so far."""
        return "".join(
            choice["delta"].get("content") or ""
            for chunk in self.chunks
            for choice in chunk.get("choices", [])
        )

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, if it has."""
        reasons = [
            choice["finish_reason"]
            for chunk in self.chunks
            for choice in chunk.get("choices", [])
            if choice["finish_reason"]
        ]
        return reasons[-1] if reasons else None


@contextmanager
def default_model_server(home: Path, *args: str) -> Iterator[Server]:
    """A server of the real default model, whose folder all tests share."""
    share_default_model(home)
    with serving(home, *args) as server:
        yield server


def share_default_model(home: Path) -> None:
    """Let a data folder have the default model without making it once more."""
    from tests.default_model import default_model_home

    home.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(default_model_home() / "models", target_is_directory=True)
