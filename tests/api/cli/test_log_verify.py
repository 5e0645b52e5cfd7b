"""Finding what was changed in a log."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.api.cli.sample_log import EVENTS, GOOD
from tests.api.cli.support import log, objects


def test_verify_finds_a_log_as_it_was_written(sample: Path) -> None:
    result = log(sample, "verify")
    assert result.exit_code == 0
    assert f"{EVENTS} events are as they were written" in result.stdout
    [found] = objects(log(sample, "verify", "--json"))
    assert (found["ok"], found["position"], found["fault"]) == (True, EVENTS, None)


@pytest.mark.parametrize(
    ("change", "position"),
    [
        ("UPDATE events SET payload = replace(payload, 'tiny', 'huge') WHERE position = 8", 8),
        ("UPDATE events SET content = x'80' WHERE position = 13", 13),
        ("UPDATE events SET recorded_at = recorded_at + 1 WHERE position = 20", 20),
        ("DELETE FROM events WHERE position = 5", 5),
        ("DELETE FROM events WHERE position = 26", 26),
    ],
)
def test_verify_names_the_first_position_that_was_changed(
    sample: Path, tmp_path: Path, change: str, position: int
) -> None:
    shutil.copy(sample / "log.db", tmp_path / "log.db")
    with sqlite3.connect(tmp_path / "log.db") as database:
        assert database.execute(change).rowcount == 1
    database.close()
    result = log(tmp_path, "verify")
    assert result.exit_code == 1
    assert f"the log is damaged at position {position}: " in result.stderr
    result = log(tmp_path, "verify", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["fault"]["position"]) == (False, position)


def test_a_damaged_event_does_not_keep_the_others_from_being_read(
    sample: Path, tmp_path: Path
) -> None:
    shutil.copy(sample / "log.db", tmp_path / "log.db")
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.execute("UPDATE events SET content = x'ff' WHERE position = 13")
        database.execute("UPDATE events SET type = 'Unheard' WHERE position = 14")
    database.close()
    assert len(log(tmp_path, "tail").stdout.splitlines()) == 20
    result = log(tmp_path, "show", GOOD)
    assert result.exit_code == 1
    assert "log verify" in result.stderr
