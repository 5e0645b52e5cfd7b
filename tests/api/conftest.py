"""A node for the routes' tests: real log, real HTTP, a worker that plays scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.api.node import MODEL, Node, in_thread, running
from tests.tiny_model import build_tiny_llama


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer and a chat template."""
    return build_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[httpx.Client]:
    """A client of a node with a ready model, for tests that leave it as it was."""
    with (
        in_thread(tmp_path_factory.mktemp("shared"), model_folder) as url,
        httpx.Client(base_url=url, verify=False) as client,
    ):
        yield client


@pytest.fixture
async def empty_node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node with no model at all."""
    async with running(tmp_path / "home") as node:
        yield node


@pytest.fixture
async def node(empty_node: Node, model_folder: Path) -> Node:
    """A node with a model that is ready."""
    await empty_node.worker.ready(MODEL, model_folder)
    return empty_node


@pytest.fixture
async def http(empty_node: Node) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client of the node."""
    # Certificates, which nothing here needs, take longer to read than most tests.
    async with httpx.AsyncClient(base_url=empty_node.url, timeout=20, verify=False) as client:
        yield client


@pytest.fixture
async def sdk(node: Node) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client, which checks every answer against its types."""
    async with AsyncOpenAI(
        base_url=f"{node.url}/v1",
        api_key="none",
        max_retries=0,
        http_client=DefaultAsyncHttpxClient(timeout=20, verify=False),
        _strict_response_validation=True,
    ) as client:
        yield client
