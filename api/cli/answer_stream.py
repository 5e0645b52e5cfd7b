"""The client's side of a streamed answer: it takes up a broken stream where it was.

Each message of a completion has a number, the same on every connection. A stream that ends
without `[DONE]` has broken off, and is asked for again from the number after the last one.
Before the first message there is no completion to ask for, so the request itself is sent
again, under the idempotency key that makes it the same request.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import msgspec

TIMEOUT = httpx.Timeout(10.0, read=30.0)
"""A living server says something every ten seconds."""

PATIENCE = 60.0
"""Seconds without a new message after which a broken stream is given up."""
TRIES = 30
PAUSES = (0.1, 0.2, 0.5, 1.0)
"""Seconds before each try; the last one repeats."""

MAX_ERROR = 64 * 1024
"""Bytes of an error's body that are read."""


class ServerError(Exception):
    """The server answered with an error."""

    def __init__(self, message: str, code: str | None, status: int | None) -> None:
        self.code = code
        self.status = status
        named = " ".join(str(part) for part in (status, code) if part is not None)
        super().__init__(f"{message} ({named})" if named else message)


class Lost(Exception):
    """The server could not be reached, or not again."""


def unreachable(url: str, error: httpx.TransportError) -> Lost:
    """What to say of an address where nobody answers."""
    return Lost(f"no server answers at {url} ({error}); `inferlog doctor` tells more")


class SseMessage(msgspec.Struct, frozen=True):
    """One message of a server-sent event stream."""

    id: str | None
    data: str


def parse(blocks: Iterable[bytes]) -> Iterator[SseMessage]:
    """Messages from the bytes of a stream; one that is cut off is dropped."""
    id: str | None = None
    data: list[str] = []
    for line in _lines(blocks):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield SseMessage(id, "\n".join(data))
            id, data = None, []
        elif field == "data":
            data.append(value)
        elif field == "id":
            id = value


def _lines(blocks: Iterable[bytes]) -> Iterator[str]:
    # By hand, as `str.splitlines` also splits at characters that may stand in an answer.
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")


def server_error(response: httpx.Response) -> ServerError:
    """What a response says went wrong."""
    body = b""
    for block in response.iter_bytes():
        body += block
        if len(body) > MAX_ERROR:
            break
    try:
        error = msgspec.json.decode(body)["error"]
        return ServerError(str(error["message"]), error.get("code"), response.status_code)
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        text = " ".join(body.decode(errors="replace").split())[:200]
        return ServerError(text or response.reason_phrase, None, response.status_code)


class AnswerStream:
    """One completion, asked for once and read to its end.

    Attributes:
        completion_id: `chatcmpl-…`, once known.
        resumed: how often the stream was taken up again.
    """

    def __init__(
        self,
        client: httpx.Client,
        locate: Callable[[], str],
        body: bytes,
        *,
        patience: float = PATIENCE,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare a request.

        Args:
            locate: the server's address, or Lost; asked again for each try, as a server that
                was started anew may have another.
            body: of the request, which asks for a stream.
            patience: seconds without a new message after which to give up.
            on_lost: called when the stream broke off.
        """
        self._client = client
        self._locate = locate
        self._body = body
        self._patience = patience
        self._on_lost = on_lost
        self._key = str(uuid.uuid4())
        self._last: str | None = None
        self._begun = False
        self.completion_id: str | None = None
        self.resumed = 0

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The answer's chunks, each once.

        Raises:
            ServerError: the server answered with an error, or the answer ends with one.
            Lost: no server, or the stream broke off and could not be taken up.
        """
        tries, given_up_at = 0, time.monotonic() + self._patience
        while True:
            try:
                for chunk in self._connect():
                    if chunk is None:
                        return
                    yield chunk
                    tries, given_up_at = 0, time.monotonic() + self._patience
                reason = "the stream broke off"
            except httpx.TransportError as error:
                reason = str(error) or type(error).__name__
                if not self._begun and isinstance(error, httpx.ConnectError):
                    raise unreachable(self._locate(), error) from error
            except Lost as error:
                if not self._begun:
                    raise
                reason = str(error)
            except ServerError as error:
                # A server on its way down or up again says so; a request not yet taken on
                # is the user's to repeat.
                if error.status != 503 or self._last is None:
                    raise
                reason = str(error)
            if self.completion_id is not None and self._last is None:
                raise Lost(f"the answer broke off, and this server cannot go on with it: {reason}")
            pause = PAUSES[min(tries, len(PAUSES) - 1)]
            tries += 1
            if tries > TRIES or time.monotonic() + pause > given_up_at:
                raise Lost(f"lost the server in the middle of its answer: {reason}")
            self._on_lost()
            self.resumed += 1
            time.sleep(pause)

    def _connect(self) -> Iterator[dict[str, Any] | None]:
        """Chunks of one connection, and None for the end of the answer."""
        with self._request() as response:
            self._begun = True
            if response.status_code != 200:
                raise server_error(response)
            for message in parse(response.iter_bytes()):
                if message.data == "[DONE]":
                    yield None
                    return
                chunk = msgspec.json.decode(message.data, type=dict[str, Any])
                if error := chunk.get("error"):
                    raise ServerError(str(error.get("message")), error.get("code"), None)
                self.completion_id = chunk.get("id", self.completion_id)
                self._last = message.id
                yield chunk

    def _request(self) -> Any:
        url = self._locate()
        if self._last is None or self.completion_id is None:
            headers = {"content-type": "application/json", "idempotency-key": self._key}
            return self._client.stream(
                "POST", f"{url}/v1/chat/completions", content=self._body, headers=headers
            )
        return self._client.stream(
            "GET",
            f"{url}/v1/chat/completions/{self.completion_id}/stream",
            params={"starting_after": self._last, "include_usage": "true"},
        )
