"""A server for the client to meet: it plays a script, one step a request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model"}]}


class Step(msgspec.Struct, kw_only=True):
    """What to answer to one request.

    Attributes:
        body: sent as it is; shorter than announced where `cut` is set.
        cut: close the connection after the body, as a killed server does.
    """

    body: bytes
    status: int = 200
    content_type: str = "text/event-stream"
    cut: bool = False


class Seen(msgspec.Struct):
    """A request that came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


def chunk(ordinal: int, text: str | None = None, **fields: Any) -> bytes:
    """One chunk of an answer as a server-sent event."""
    choice = {"index": 0, "delta": {} if text is None else {"content": text}}
    choice["finish_reason"] = fields.pop("finish_reason", None)
    data = {"id": "chatcmpl-1", "choices": [choice], **fields}
    return f"id: {ordinal}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def done(ordinal: int) -> bytes:
    """The end of an answer."""
    return f"id: {ordinal}\ndata: [DONE]\n\n".encode()


def error(status: int, message: str, code: str | None) -> Step:
    """An error in OpenAI's shape."""
    body = {"error": {"message": message, "type": "t", "param": None, "code": code}}
    return Step(body=json.dumps(body).encode(), status=status, content_type="application/json")


@contextmanager
def playing(*steps: Step, models: Any = MODELS) -> Iterator[tuple[str, list[Seen]]]:
    """Serve the steps in turn; give the address and the requests seen, those for models aside."""
    seen: list[Seen] = []
    left = list(steps)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._answer(Step(body=json.dumps(models).encode(), content_type="text/json"))
            else:
                self._next(None)

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            self._next(json.loads(self.rfile.read(length)))

        def _next(self, body: Any) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen.append(Seen(self.command, self.path, headers, body))
            self._answer(left.pop(0))

        def _answer(self, step: Step) -> None:
            self.send_response(step.status)
            self.send_header("content-type", step.content_type)
            self.send_header("content-length", str(len(step.body) + step.cut))
            self.end_headers()
            self.wfile.write(step.body)
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
