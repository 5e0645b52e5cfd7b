"""The command line and a real server, which is killed in the middle of an answer."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.api.cli.support import INFERLOG, clean_environment, log, objects
from tests.e2e.scripted import Steps, scripted_server

pytestmark = pytest.mark.e2e

WORDS = [f"word{number} " for number in range(40)]
SCRIPT: Steps = [step for word in WORDS for step in ({"tokens": [word]}, {"sleep": 0.05})]


def test_a_chat_survives_its_server_and_the_log_tells_its_story(tmp_path: Path) -> None:
    with scripted_server(tmp_path, default=SCRIPT) as server:
        with subprocess.Popen(
            [*INFERLOG, "chat", "hi", "--home", str(server.home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # or what is read ahead is lost to `communicate`
            env=clean_environment(),
        ) as chat:
            assert chat.stdout is not None
            began = chat.stdout.read(20)
            os.kill(server.pid, signal.SIGKILL)
            server.stop()
            server.start()
            rest, err = chat.communicate(timeout=60)
        assert (began + rest).decode() == "".join(WORDS) + "\n"
        assert (chat.returncode, err) == (0, b"")

        [created] = objects(log(server.home, "tail", "--type", "TaskCreated", "--json"))
        [story] = objects(log(server.home, "show", created["payload"]["task_id"], "--json"))
        assert (story["status"], len(story["attempts"])) == ("Complete", 2)
        assert story["answer"]["content"] == "".join(WORDS)
        assert log(server.home, "verify").exit_code == 0
