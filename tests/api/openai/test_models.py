"""`/v1/models`."""

from __future__ import annotations

import time

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.api.node import MODEL, Node


async def test_models_are_listed_as_the_sdk_wants_them(
    node: Node, sdk: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    for _ in range(2):
        await http.post("/instance", json={"model_id": "org/other"})
    models = {model.id: model async for model in sdk.models.list()}
    assert set(models) == {MODEL, "org/other"}
    assert models[MODEL].owned_by == "inferlog"
    assert abs(models["org/other"].created - time.time()) < 60


async def test_one_model_is_shown_whatever_its_id(
    node: Node, sdk: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    await http.post("/instance", json={"model_id": "org/other"})
    assert (await sdk.models.retrieve("org/other")).id == "org/other"
    for path in ("/v1/models/org/other", "/v1/models/org%2Fother"):
        assert (await http.get(path)).json()["id"] == "org/other"


async def test_an_unknown_model_is_404(node: Node, sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.models.retrieve("org/none")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
