"""`/commands/{id}`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.fake_worker import Cancel, Fail, Say, Step, Stop, Wait
from tests.api.node import Node
from tests.api.openai.asking import PATH, asking


async def command(http: httpx.AsyncClient, id: str, query: str = "") -> Any:
    response = await http.get(f"/commands/{id}{query}")
    assert response.status_code == 200
    return response.json()


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        (Stop(), "complete", None),
        (Fail("runner_crashed", "It died."), "failed", "runner_crashed"),
        (Cancel(), "cancelled", None),
    ],
)
async def test_a_completions_command_tells_its_outcome(
    node: Node, http: httpx.AsyncClient, end: Step, status: str, error: str | None
) -> None:
    node.worker.script = lambda task: [Say("a"), end]
    await http.post(PATH, json=asking(), headers={"x-request-id": "mine"})
    [task] = node.worker.tasks
    found = await command(http, f"chatcmpl-{task.task_id}")
    assert found == await command(http, task.task_id)
    assert (found["object"], found["id"]) == ("command", task.task_id)
    assert (found["kind"], found["actor"]) == ("ChatCompletion", "anonymous")
    assert found["caller"]["request_id"] == "mine"
    assert found["status"] == status
    assert found["outcome"]["task_id"] == task.task_id
    assert (found["error"] and found["error"]["code"]) == error
    assert found["events"]["data"][0]["position"] == found["position"]
    types = [event["type"] for event in found["events"]["data"]]
    assert types[0] == "CommandAccepted"
    assert "ChunkGenerated" in types


async def test_a_command_is_accepted_then_running(node: Node, http: httpx.AsyncClient) -> None:
    node.worker.claims = False
    waiting = asyncio.create_task(http.post(PATH, json=asking()))
    while not node.worker.tasks:
        await asyncio.sleep(0.01)
    assert (await command(http, node.worker.tasks[0].task_id))["status"] == "accepted"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    node.worker.claims = True
    node.worker.script = lambda task: [Say("a"), Wait(asyncio.Event())]
    async with http.stream("POST", PATH, json=asking(stream=True)):
        found = await command(http, node.worker.tasks[1].task_id)
    assert (found["status"], found["outcome"], found["error"]) == ("running", None, None)


async def test_a_commands_events_come_in_pages(node: Node, http: httpx.AsyncClient) -> None:
    await http.post(PATH, json=asking())
    [task] = node.worker.tasks
    whole = (await command(http, task.task_id))["events"]["data"]
    first = (await command(http, task.task_id, "?limit=2"))["events"]
    assert (first["data"], first["has_more"]) == (whole[:2], True)
    rest = (await command(http, task.task_id, f"?after={first['next_after']}"))["events"]
    assert (rest["data"], rest["has_more"]) == (whole[2:], False)


async def test_a_refused_command_tells_why(node: Node, http: httpx.AsyncClient) -> None:
    await http.delete("/instance/none")
    [refused] = (await http.get("/events?type=CommandRefused")).json()["data"]
    found = await command(http, refused["payload"]["command_id"])
    assert (found["kind"], found["status"]) == ("DeleteInstance", "refused")
    assert found["error"]["code"] == "not_found"
    assert [event["type"] for event in found["events"]["data"]] == ["CommandRefused"]


async def test_an_immediate_command_ends_where_it_began(
    node: Node, http: httpx.AsyncClient
) -> None:
    created = (await http.post("/instance", json={"model_id": "tiny"})).json()
    found = await command(http, created["commandId"])
    assert (found["kind"], found["status"]) == ("CreateInstance", "complete")
    types = [event["type"] for event in found["events"]["data"]]
    assert types == ["CommandAccepted", "InstanceCreated"]


def test_an_unknown_command_is_404(shared: httpx.Client) -> None:
    response = shared.get("/commands/nope")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
