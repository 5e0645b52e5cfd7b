"""`/openapi` describes what is there."""

from __future__ import annotations

import json
from typing import Any

import httpx

from api.app import ROUTES
from api.openapi import document


def test_the_description_is_served(shared: httpx.Client) -> None:
    for path in ("/openapi", "/openapi.json"):
        response = shared.get(path)
        assert response.headers["content-type"] == "application/json"
        assert response.json() == document(ROUTES)


def test_every_route_is_described_with_its_errors() -> None:
    paths = document(ROUTES)["paths"]
    assert len(paths) == len({path for route in ROUTES for path in route.paths})
    for path in paths.values():
        for operation in path.values():
            assert operation["description"]
            assert set(operation["responses"]) >= {"200", "4XX", "5XX"}
            assert operation["responses"]["200"]["content"]


def test_every_reference_leads_somewhere() -> None:
    made = document(ROUTES)
    names = set(made["components"]["schemas"])
    assert {name.rpartition("/")[2] for name in _references(made)} <= names
    json.dumps(made)


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*(_references(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_references(item) for item in value))
    return set()
