"""What holds for every exchange, whatever the route."""

from __future__ import annotations

import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.frame import _host_name
from infrastructure.event_store import LogUnavailable
from tests.api.node import Node, running


def shape(response: httpx.Response) -> tuple[str, str | None, str | None]:
    """An error's type, parameter and code, where its body is as OpenAI's are."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]["type"], body["error"]["param"], body["error"]["code"]


def test_an_unknown_path_is_404(shared: httpx.Client) -> None:
    for path in ("/nope", "/", "/v1", "/openapi/x", "/events/x", "/v1/chat/completions/a/b"):
        response = shared.get(path)
        assert response.status_code == 404, path
        assert shape(response) == ("invalid_request_error", None, None)


def test_a_wrong_method_is_405_and_says_which_are_right(shared: httpx.Client) -> None:
    response = shared.get("/v1/chat/completions")
    assert response.status_code == 405
    assert shape(response) == ("invalid_request_error", None, "method_not_allowed")
    assert set(response.headers["allow"].split(", ")) == {"POST", "OPTIONS"}
    assert shared.request("TRACE", "/health").status_code == 405


def test_every_response_has_a_request_id(shared: httpx.Client) -> None:
    for method, path in (("GET", "/health"), ("GET", "/nope"), ("POST", "/health")):
        response = shared.request(method, path)
        assert uuid.UUID(response.headers["x-request-id"]).version == 7


def test_a_clients_request_id_is_kept_where_it_is_sane(shared: httpx.Client) -> None:
    response = shared.get("/health", headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    for odd in ("", "a b", "x" * 129):
        response = shared.get("/health", headers={"x-request-id": odd})
        assert uuid.UUID(response.headers["x-request-id"]).version == 7


async def _twice() -> AsyncIterator[bytes]:
    for _ in range(2):
        yield b"x" * 600


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_413(tmp_path: Path, announced: bool) -> None:
    async with (
        running(tmp_path, max_body=1000) as node,
        httpx.AsyncClient(base_url=node.url) as http,
    ):
        for path in ("/v1/chat/completions", "/instance"):
            content = b"x" * 1200 if announced else _twice()
            response = await http.post(path, content=content)
            assert response.status_code == 413
            assert shape(response) == ("invalid_request_error", None, "request_too_large")
            assert "1,000" in response.json()["error"]["message"]


async def test_a_bug_is_500_without_its_trace(
    empty_node: Node, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(name: str) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(empty_node.store, "stream", broken)
    response = await http.get("/v1/chat/completions/x/stream")
    assert response.status_code == 500
    assert shape(response) == ("server_error", None, "internal_error")
    assert "secret" not in response.text
    assert "Traceback" not in response.text


# --- the log ------------------------------------------------------------------------------


async def test_a_log_that_cannot_be_written_is_503_and_hides_no_refusal(
    node: Node, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(appends: object) -> None:
        raise LogUnavailable("the disk is full")

    monkeypatch.setattr(node.store, "append_all", full)
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    for method, path, body in (
        ("POST", "/v1/chat/completions", ask),
        ("POST", "/instance", {"model_id": "tiny"}),
        ("DELETE", "/instance/instance-1", None),
    ):
        response = await http.request(method, path, json=body)
        assert response.status_code == 503
        assert shape(response) == ("server_error", None, "log_unavailable")
        assert response.headers["retry-after"]
    assert (await http.get("/nope")).status_code == 404
    assert (await http.post("/v1/chat/completions", json={})).status_code == 400


# --- who may ask --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST.", "127.0.0.1:"]
)
def test_loopback_names_are_answered(shared: httpx.Client, host: str) -> None:
    assert shared.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "localhost@evil", "127.0.0.1 x", "", "::1"]
)
def test_other_names_are_refused_with_the_way_to_allow_them(
    shared: httpx.Client, host: str
) -> None:
    for path in ("/health", "/nope"):
        response = shared.get(path, headers={"host": host})
        assert response.status_code == 400
        assert shape(response) == ("invalid_request_error", None, None)
        assert "--allow-host" in response.json()["error"]["message"]
        assert response.headers["x-request-id"]


def test_a_request_without_a_host_is_refused(shared: httpx.Client) -> None:
    url = shared.base_url
    with socket.create_connection((url.host, url.port), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
        assert b" 400 " in connection.makefile("rb").readline()


async def test_allowed_names_are_answered(tmp_path: Path) -> None:
    async with (
        running(tmp_path, host="192.0.2.7", allow_host="a.example, B.example") as node,
        httpx.AsyncClient(base_url=node.url) as http,
    ):
        for host in ("a.example", "b.example:80", "192.0.2.7:8000"):
            assert (await http.get("/health", headers={"host": host})).status_code == 200
        assert (await http.get("/health", headers={"host": "c.example"})).status_code == 400


async def test_a_star_allows_all_names(tmp_path: Path) -> None:
    async with (
        running(tmp_path, allow_host="*") as node,
        httpx.AsyncClient(base_url=node.url) as http,
    ):
        assert (await http.get("/health", headers={"host": "any"})).status_code == 200


@given(header=st.text(max_size=30))
def test_any_host_header_can_be_read(header: str) -> None:
    name = _host_name(header)
    assert name is None or name in header.lower() or ":" in name or "." in name


async def test_pages_of_other_origins_may_change_nothing(
    node: Node, http: httpx.AsyncClient
) -> None:
    foreign = {"origin": "https://evil.example"}
    for method, path in (("POST", "/instance"), ("POST", "/v1/chat/completions")):
        response = await http.request(method, path, headers=foreign, content=b"{}")
        assert response.status_code == 400
        assert "--allow-origin" in response.json()["error"]["message"]
    response = await http.get("/health", headers=foreign)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers
    own = {"origin": node.url}
    assert (await http.delete("/instance/instance-1", headers=own)).status_code == 200


async def test_pages_of_an_allowed_origin_are_answered(tmp_path: Path) -> None:
    page = "https://app.example"
    async with (
        running(tmp_path, allow_origin=f"https://other.example, {page}") as node,
        httpx.AsyncClient(base_url=node.url) as http,
    ):
        preflight = await http.options(
            "/v1/chat/completions",
            headers={"origin": page, "access-control-request-method": "POST"},
        )
        assert preflight.headers["access-control-allow-origin"] == page
        response = await http.post("/v1/chat/completions", headers={"origin": page}, content=b"{")
        assert response.headers["access-control-allow-origin"] == page
        assert "not JSON" in response.json()["error"]["message"]


# --- anything at all ----------------------------------------------------------------------


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "OPTIONS"]),
    path=st.sampled_from(["/v1/models/", "/events/", "/commands/", "/instance/", "/"]),
    tail=st.text(st.characters(codec="utf-8"), max_size=20),
    query=st.dictionaries(
        st.sampled_from(["after", "limit", "stream", "type", "at", "starting_after"]),
        st.text(st.characters(codec="utf-8"), max_size=8) | st.integers().map(str),
        max_size=2,
    ),
    body=st.binary(max_size=50),
)
def test_no_request_is_a_500(
    shared: httpx.Client, method: str, path: str, tail: str, query: dict[str, str], body: bytes
) -> None:
    response = shared.request(method, path + quote(tail, safe=""), params=query, content=body)
    assert response.status_code < 500
    assert len(response.content) < 50_000
    if response.status_code >= 400:
        shape(response)
