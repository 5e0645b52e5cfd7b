import random
from collections.abc import Iterator

import pytest

from tests.e2e.harness import Server, default_model_server
from tests.e2e.kills import kill_runner_in_mid_stream, kill_server_in_mid_stream

KILLS = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with default_model_server(tmp_path_factory.mktemp("kills") / "home") as server:
        yield server


def test_a_killed_server_loses_nothing_and_every_request_ends_once(server: Server) -> None:
    rng = random.Random(1)
    for _ in range(KILLS):
        kill_server_in_mid_stream(server, rng)


def test_a_killed_runner_is_replaced_and_its_requests_go_on(server: Server) -> None:
    rng = random.Random(2)
    for _ in range(KILLS):
        kill_runner_in_mid_stream(server, rng)
