from pathlib import Path

import psutil
import pytest

from tests.e2e.harness import Client, chat_body
from tests.e2e.scripted import Steps, scripted_server

STREAMS = 200
WORDS = 20


def test_two_hundred_streams_at_once_all_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script: Steps = [
        {"repeat": WORDS, "steps": [{"tokens": ["word "]}]},
        {"finish": "stop"},
    ]
    args = ("--max-batch", str(STREAMS))
    with scripted_server(tmp_path, default=script, args=args) as server:
        before = psutil.Process(server.pid).memory_info().rss
        clients = [Client.asking(server, chat_body("tiny", "hi")) for _ in range(STREAMS)]
        for client in clients:
            client.finished()
        after = psutil.Process(server.pid).memory_info().rss
        assert [client.body for client in clients if client.status != 200] == []
        assert {client.text for client in clients} == {"word " * WORDS}
        assert {client.finish_reason for client in clients} == {"stop"}
        assert all(client.done for client in clients)
        assert len({client.completion_id for client in clients}) == STREAMS
        assert server.cli("log", "verify").returncode == 0
    with capsys.disabled():
        mib = 1024 * 1024
        print(f"\n{STREAMS} streams: server at {before / mib:.0f} MiB, then {after / mib:.0f} MiB")
