"""A model hub on this machine: the few routes that huggingface_hub asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves one repository.

    Attributes:
        files: content by name.
        stalls: file whose first transfer stops half way, until `go_on` is set.
        stalled: that happened.
        requests: method, path and range of each.
    """

    daemon_threads = True

    def __init__(self, repo: str, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo = repo
        self.files = files
        self.stalls: str | None = None
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server.requests.append(f"{self.command} {self.path} {wanted}".strip())
        path = urlsplit(self.path).path
        repo = self.server.repo
        if path in (f"/api/models/{repo}", f"/api/models/{repo}/revision/main"):
            self._json({"id": repo, "sha": COMMIT, "siblings": []})
        elif path == f"/api/models/{repo}/tree/{COMMIT}":
            self._json([self._entry(name) for name in self.server.files])
        elif path.startswith(f"/{repo}/resolve/{COMMIT}/"):
            self._file(path.rpartition(f"{COMMIT}/")[2])
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def _entry(self, name: str) -> dict[str, object]:
        content = self.server.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str) -> None:
        content = self.server.files[name]
        headers = {
            "ETag": f'"{_digest(content)}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        wanted = self.headers.get("Range")
        if wanted is not None:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._answer(206, content[start:], headers)
        elif self.command == "GET" and self.server.stalls == name:
            self.server.stalls = None
            self._answer(200, content, headers, send=len(content) // 2)
            self.server.stalled.set()
            self.server.go_on.wait()
            self.close_connection = True
        else:
            self._answer(200, content, headers)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], send: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:send])


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serving(repo: str, files: dict[str, bytes]) -> Iterator[FakeHub]:
    """A hub with this repository, while the context lasts."""
    with FakeHub(repo, files) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
