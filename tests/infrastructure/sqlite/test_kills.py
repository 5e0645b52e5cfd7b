"""A process is killed while it appends: what it had acknowledged is in the log."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

from infrastructure.log_reader import LogReader
from infrastructure.sqlite.store import SqliteEventStore
from infrastructure.verify import verify_log
from tests.contract.samples import append

ROOT = Path(__file__).parents[3]
ROUNDS = 3


def append_until_killed(path: Path, seconds: float) -> dict[int, str]:
    """Kill the process some time after its first append; what it acknowledged."""
    child = [sys.executable, "-m", "tests.infrastructure.sqlite.append_for_ever", str(path)]
    with subprocess.Popen(child, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        lines += process.stdout.readlines()
        timer.join()
    assert process.returncode == -9
    # The kill may have cut off the last line.
    whole = [line.split() for line in lines if line.endswith("\n")]
    return {int(position): digest for position, digest in whole}


async def test_whatever_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    acknowledged: dict[int, str] = {}
    for _ in range(ROUNDS):
        acknowledged |= append_until_killed(path, random.uniform(0.05, 0.4))
        with LogReader(path) as reader:
            assert verify_log(reader).fault is None
            found = {event.position: event.hash.hex() for event in reader.events()}
        assert acknowledged.items() <= found.items()
        store = await SqliteEventStore.open(path)
        [recorded] = await store.append(append("server"))
        assert recorded.position == len(found) + 1
        await store.close()
    assert len(acknowledged) > 10 * ROUNDS
