"""The server to be checked: INFERLOG_TEST_URL, or one in this process with a scripted worker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest

from tests.api.node import in_thread
from tests.tiny_model import build_tiny_llama


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server is."""
    if given := os.environ.get("INFERLOG_TEST_URL"):
        yield given.rstrip("/")
        return
    folder = build_tiny_llama(tmp_path_factory.mktemp("model"))
    with in_thread(tmp_path_factory.mktemp("home"), folder) as url:
        yield url


@pytest.fixture(scope="session")
def model(url: str) -> str:
    """A model that answers."""
    [first, *_] = httpx.get(f"{url}/v1/models").json()["data"]
    return str(first["id"])
