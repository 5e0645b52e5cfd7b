"""`/instance` and `/state`, in exo's style."""

from __future__ import annotations

import asyncio
import uuid

import httpx
import pytest

from domain import events as e
from tests.api.fake_worker import INSTANCE, NODE, RUNNER, Say, Wait
from tests.api.node import MODEL, Node
from tests.api.openai.asking import PATH, asking

VIEW = {
    "MlxRingInstance": {
        "instanceId": INSTANCE,
        "shardAssignments": {
            "modelId": MODEL,
            "nodeToRunner": {NODE: RUNNER},
            "runnerToShard": {
                RUNNER: {
                    "PipelineShardMetadata": {"modelId": MODEL, "deviceRank": 0, "worldSize": 1}
                }
            },
        },
    }
}


async def test_state_shows_what_is_alive(node: Node, http: httpx.AsyncClient) -> None:
    state = (await http.get("/state")).json()
    assert state["instances"] == {INSTANCE: VIEW}
    assert state["runners"] == {RUNNER: {"RunnerReady": {}}}
    assert state["tasks"] == {}
    assert state["lastEventAppliedIdx"] == (await node.store.head()).position


async def test_a_ready_runner_with_tasks_is_running(node: Node, http: httpx.AsyncClient) -> None:
    node.worker.script = lambda task: [Say("a"), Wait(asyncio.Event())]
    async with http.stream("POST", PATH, json=asking(stream=True)):
        state = (await http.get("/state")).json()
    assert state["runners"] == {RUNNER: {"RunnerRunning": {}}}
    [task] = node.worker.tasks
    assert state["tasks"] == {
        task.task_id: {
            "ChatCompletion": {
                "taskId": task.task_id,
                "commandId": task.task_id,
                "modelId": MODEL,
                "taskStatus": "Running",
                "instanceId": INSTANCE,
                "runnerId": RUNNER,
                "attempt": 1,
            }
        }
    }


async def test_a_failed_runner_says_why(node: Node, http: httpx.AsyncClient) -> None:
    await node.worker.status(e.Failed(error_message="it broke"))
    runners = (await http.get("/state")).json()["runners"]
    assert runners == {RUNNER: {"RunnerFailed": {"errorMessage": "it broke"}}}


async def test_state_is_shown_as_it_was(node: Node, http: httpx.AsyncClient) -> None:
    await http.delete(f"/instance/{INSTANCE}")
    assert (await http.get("/state")).json()["instances"] == {}
    first = (await http.get("/state?at=1")).json()
    assert (first["instances"], first["lastEventAppliedIdx"]) == ({}, 1)
    second = (await http.get("/state?at=2")).json()
    assert second["instances"] == {INSTANCE: VIEW}
    assert second["runners"] == {RUNNER: {"RunnerIdle": {}}}
    empty = (await http.get("/state?at=0")).json()
    assert (empty["instances"], empty["lastEventAppliedIdx"]) == ({}, 0)


@pytest.mark.parametrize(
    ("at", "code"), [("9999", "position_out_of_range"), ("-1", None), ("x", None), ("null", None)]
)
def test_a_state_that_never_was_is_refused(shared: httpx.Client, at: str, code: str | None) -> None:
    response = shared.get(f"/state?at={at}")
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "at", code)


async def test_downloads_are_shown_as_they_go(empty_node: Node, http: httpx.AsyncClient) -> None:
    progress = e.ModelDownloadProgress(
        model_id=MODEL, node_id=NODE, phase="downloading", done_bytes=1, total_bytes=2
    )
    failed = e.ModelPreparationFailed(
        model_id="other", node_id=NODE, source="s", error_message="no"
    )
    await empty_node.worker.fold("node/node-1", progress, failed)
    first, second = (await http.get("/state")).json()["downloads"][NODE]
    assert first["DownloadOngoing"]["downloadProgress"] == {"downloadedBytes": 1, "totalBytes": 2}
    assert second["DownloadFailed"]["errorMessage"] == "no"


async def test_an_instance_is_created_shown_and_deleted(
    node: Node, http: httpx.AsyncClient
) -> None:
    created = (await http.post("/instance", json={"model_id": "org/other"})).json()
    assert created["message"] == "Command received."
    assert uuid.UUID(created["commandId"]).version == 7
    id = created["instanceId"]
    shown = (await http.get(f"/instance/{id}")).json()
    assert shown["MlxRingInstance"]["shardAssignments"]["modelId"] == "org/other"
    instance = node.services.projection.state.instances[id]
    assert (instance.source, instance.placed_by) == ("org/other", "api")
    deleted = await http.delete(f"/instance/{id}")
    assert (deleted.status_code, deleted.json()["instanceId"]) == (200, id)
    for method in ("GET", "DELETE"):
        response = await http.request(method, f"/instance/{id}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_an_instance_names_all_its_methods(shared: httpx.Client) -> None:
    for response in (shared.options("/instance/x"), shared.put("/instance/x")):
        assert set(response.headers["allow"].split(", ")) == {"DELETE", "GET", "OPTIONS"}


async def test_a_known_model_is_made_from_what_it_was_made_from(
    node: Node, http: httpx.AsyncClient
) -> None:
    for _ in range(2):
        created = (await http.post("/instance", json={"model_id": MODEL})).json()
        instance = node.services.projection.state.instances[created["instanceId"]]
        assert instance.source == "default"
        for id in list(node.services.projection.state.instances):
            await http.delete(f"/instance/{id}")


async def test_a_repeated_creation_makes_one_instance(node: Node, http: httpx.AsyncClient) -> None:
    headers = {"idempotency-key": "k"}
    first = await http.post("/instance", json={"model_id": MODEL}, headers=headers)
    again = await http.post("/instance", json={"model_id": MODEL}, headers=headers)
    assert again.json() == first.json()
    assert len(node.services.projection.state.instances) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b"{}", "model_id"),
        (b'{"model_id": 5}', "model_id"),
        (b'{"model_id": ""}', "model_id"),
        (b'{"model_id": "a", "sharding": "x"}', "sharding"),
    ],
)
def test_a_bad_instance_is_refused(shared: httpx.Client, body: bytes, param: str | None) -> None:
    response = shared.post("/instance", content=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_request_under_which_the_instance_is_deleted_ends(
    node: Node, http: httpx.AsyncClient
) -> None:
    await http.delete(f"/instance/{INSTANCE}")
    response = await http.post(PATH, json=asking())
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
