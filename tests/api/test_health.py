"""`/health` and `/ready`."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from domain import events as e
from infrastructure.event_store import EventStore
from tests.api.node import MODEL, Node


async def test_a_server_without_a_model_is_alive_but_not_ready(
    empty_node: Node, http: httpx.AsyncClient
) -> None:
    assert (await http.get("/health")).json() == {"status": "ok", "log": "ok"}
    response = await http.get("/ready")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "model_unavailable"
    assert response.headers["retry-after"]
    # Asking whether it is ready is no refused request.
    assert await empty_node.log(e.RequestRefused) == []


async def test_readiness_tells_what_is_awaited(
    empty_node: Node, http: httpx.AsyncClient, model_folder: Path
) -> None:
    worker = empty_node.worker

    async def said() -> str:
        response = await http.get("/ready")
        assert response.status_code == 503
        status: str = response.json()["models"][MODEL]
        assert status in response.json()["status"]
        assert status in response.json()["error"]["message"]
        return status

    await worker.place(MODEL)
    assert await said() == "preparing"
    progress = e.ModelDownloadProgress(
        model_id=MODEL, node_id="node-1", phase="converting", done_bytes=1, total_bytes=3
    )
    await worker.fold("node/node-1", progress)
    assert await said() == "preparing (converting, 33 %)"
    await worker.prepared(MODEL, model_folder)
    assert await said() == "starting"
    await worker.status(e.Loading())
    assert await said() == "loading"
    await worker.status(e.WarmingUp())
    assert await said() == "warming up"
    await worker.status(e.Failed(error_message="out of memory"))
    assert await said() == "failed: out of memory"
    await worker.status(e.Ready())
    response = await http.get("/ready")
    assert (response.status_code, response.json()) == (
        200,
        {"status": "ready", "models": {MODEL: "ready"}},
    )


async def test_a_model_that_cannot_be_made_says_why(
    empty_node: Node, http: httpx.AsyncClient
) -> None:
    await empty_node.worker.place(MODEL)
    failed = e.ModelPreparationFailed(
        model_id=MODEL, node_id="node-1", source="x", error_message="no such file"
    )
    await empty_node.worker.fold("node/node-1", failed)
    assert (await http.get("/ready")).json()["models"] == {MODEL: "failed: no such file"}


async def test_a_log_that_cannot_be_written_is_told(
    node: Node, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = property(lambda self: "the disk is full")
    monkeypatch.setattr(type(node.store), "unavailable", full)
    assert isinstance(node.store, EventStore)
    health = await http.get("/health")
    assert (health.status_code, health.json()["log"]) == (200, "the disk is full")
    ready = await http.get("/ready")
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "log_unavailable")


async def test_a_stopping_server_is_not_ready(node: Node, http: httpx.AsyncClient) -> None:
    node.services.stopping.set()
    response = await http.get("/ready")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
