"""Reading a log from the command line."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from api.cli.main import main
from tests.api.cli.sample_log import BAD, CREATION, EVENTS, GOOD, INSTANCE, NODE, REFUSED, RUNNING
from tests.api.cli.support import log, objects


def test_tail_prints_the_last_events_one_a_line(sample: Path) -> None:
    lines = log(sample, "tail", "-n", "3").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["24", "25", "26"]
    assert f"completion/{RUNNING}" in lines[-1]
    assert "ChunkGenerated" in lines[-1]
    assert "“So”" in lines[-1]


def test_tail_prints_all_where_less_is_there_than_asked_for(sample: Path) -> None:
    assert len(log(sample, "tail", "-n", "1000").stdout.splitlines()) == EVENTS


def test_tail_of_nothing_prints_nothing(sample: Path) -> None:
    result = log(sample, "tail", "-n", "0")
    assert (result.exit_code, result.output) == (0, "")


def test_tail_knows_types_in_any_case_and_several(sample: Path) -> None:
    found = objects(log(sample, "tail", "--type", "taskfailed", "--type", "TaskCreated", "--json"))
    types = [event["type"] for event in found]
    assert types == ["TaskCreated", "TaskCreated", "TaskFailed", "TaskCreated"]


@pytest.mark.parametrize(
    "name", [GOOD, f"chatcmpl-{GOOD}", f"completion/{GOOD}", "a001", "…00a001"]
)
def test_tail_finds_a_stream_by_every_name_it_goes_by(sample: Path, name: str) -> None:
    found = objects(log(sample, "tail", "--stream", name, "-n", "2", "--json"))
    assert [event["position"] for event in found] == [15, 16]


def test_an_event_as_json_holds_all_that_the_log_holds(sample: Path) -> None:
    [event] = objects(log(sample, "tail", "--type", "CommandRefused", "--json"))
    assert event["stream"] == f"completion/{REFUSED}"
    assert (event["version"], event["schema_version"]) == (1, 1)
    assert event["payload"]["code"] == "model_not_found"
    assert json.loads(event["content"]["body"])["messages"][0]["content"] == "Say ä"
    assert event["recorded_at_iso"].endswith("Z")
    assert len(event["hash"]) == 64


def test_no_line_holds_a_control_character(sample: Path) -> None:
    for arguments in (["tail"], ["show", BAD], ["show", f"completion/{BAD}"]):
        out = log(sample, *arguments).stdout
        assert "The step failed.[31m" in out
        assert "\x1b" not in out


@pytest.mark.parametrize("name", [GOOD, f"chatcmpl-{GOOD}", "a001"])
def test_show_tells_the_story_of_a_completion(sample: Path, name: str) -> None:
    out = log(sample, "show", name).stdout
    for part in (
        f"chatcmpl-{GOOD}  Complete",
        "anonymous from 127.0.0.1:5000, request req-1",
        "OpenAI/Python 3.57",
        "temperature 0.5, top_p 1, seed 7, at most 9 tokens, streamed",
        "'END'",
        "team=blue",
        "│ <user>Say ä",
        "answer, 4 tokens, stop",
        "│ Ä wide",
        "│ answer.",
        "queued ",
        "first token after ",
        "10.0 tokens/s",
        "1 token; ended: runner_died: killed by signal 9",
        "3 tokens",
        "positions 7 to 16, 10 events",
    ):
        assert part in out


def test_the_story_as_json_is_one_object(sample: Path) -> None:
    [story] = objects(log(sample, "show", GOOD, "--json"))
    assert (story["id"], story["status"]) == (f"chatcmpl-{GOOD}", "Complete")
    assert story["answer"]["content"] == "Ä wide\nanswer."
    assert story["answer"]["finish_reason"] == "stop"
    assert (story["prompt_tokens"], story["completion_tokens"]) == (3, 4)
    assert [attempt["tokens"] for attempt in story["attempts"]] == [1, 3]
    assert story["timings"]["tokens_per_second"] == 10.0
    assert story["sampling"]["seed"] == 7
    assert story["error"] is None


@pytest.mark.parametrize(
    ("id", "status", "error"),
    [
        (BAD, "Failed", "generation_failed: The step failed."),
        (REFUSED, "Refused", "model_not_found: The model 'x' does not exist."),
    ],
)
def test_the_story_of_a_failure_says_why(sample: Path, id: str, status: str, error: str) -> None:
    out = log(sample, "show", id).stdout
    assert f"chatcmpl-{id}  {status}" in out
    assert error in out


def test_the_story_of_a_running_completion_ends_where_the_log_does(sample: Path) -> None:
    [story] = objects(log(sample, "show", RUNNING, "--json"))
    assert (story["status"], story["answer"]["content"]) == ("Running", "So")


@pytest.mark.parametrize(("name", "events"), [(INSTANCE, 4), (f"node/{NODE}", 2)])
def test_show_lists_what_happened_to_an_instance_or_node(
    sample: Path, name: str, events: int
) -> None:
    out = log(sample, "show", name).stdout.splitlines()
    assert len(out) == 1 + events
    assert len(objects(log(sample, "show", name, "--json"))) == events


def test_show_finds_an_instance_by_the_command_that_made_it(sample: Path) -> None:
    assert log(sample, "show", CREATION).stdout == log(sample, "show", INSTANCE).stdout


def test_show_prints_one_event_by_its_position(sample: Path) -> None:
    out = log(sample, "show", "11").stdout
    assert "AttemptEnded at position 11" in out
    assert '"reason": "runner_died"' in out
    assert '"error_message": "killed by signal 9"' in out
    [event] = objects(log(sample, "show", "11", "--json"))
    assert event["position"] == 11


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "nothing"], 1, "'nothing'"),
        (["show", "server"], 1, "'server'"),
        (["show", "27"], 1, "the log ends at 26"),
        (["show", "0"], 1, "no event 0"),
        (["show", "…1"], 1, "'…1'"),
        (["show", "-5000"], 2, "No such option"),
        (["tail", "--stream", "nothing"], 1, "'nothing'"),
        (["tail", "--type", "Nothing"], 2, "--type"),
        (["state", "--at", "27"], 1, "the log ends at 26"),
        (["state", "--at", "-1"], 2, "--at"),
    ],
)
def test_what_is_not_there_is_one_line(
    sample: Path,
    arguments: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INFERLOG_HOME", str(sample))
    assert main(["log", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_an_ending_that_fits_several_names_them(sample: Path, tmp_path: Path) -> None:
    shutil.copy(sample / "log.db", tmp_path / "log.db")
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.execute(
            "UPDATE streams SET name = replace(name, 'a002', '1a001') WHERE name LIKE '%a002'"
        )
    database.close()
    result = log(tmp_path, "show", "a001")
    assert result.exit_code == 1
    assert "may mean" in result.stderr
    assert f"completion/{GOOD}" in result.stderr


def test_stats_count_the_log(sample: Path) -> None:
    out = log(sample, "stats").stdout
    assert f"{EVENTS} events" in out
    for row in ("1  Complete", "1  Failed: generation_failed", "1  Refused: model_not_found"):
        assert row in out
    [found] = objects(log(sample, "stats", "--json"))
    assert found["head"]["position"] == sum(found["events"].values()) == EVENTS
    assert found["events"]["ChunkGenerated"] == 6
    assert found["completions"]["outcomes"]["Complete"] == 1
    assert found["completions"]["running"] == 1
    assert found["completions"]["completion_tokens"] == 4
    assert found["bytes"] == (sample / "log.db").stat().st_size


def test_state_shows_what_is_alive_now(sample: Path) -> None:
    out = log(sample, "state").stdout
    for part in (NODE, INSTANCE, RUNNING, "Ready", "ready: llama"):
        assert part in out
    assert GOOD not in out


def test_state_shows_what_was_alive_then(sample: Path) -> None:
    [then] = objects(log(sample, "state", "--at", "9", "--json"))
    [now] = objects(log(sample, "state", "--json"))
    assert (then["position"], now["position"]) == (9, EVENTS)
    assert list(then["state"]["tasks"]) == [GOOD]
    assert list(now["state"]["tasks"]) == [RUNNING]
    [empty] = objects(log(sample, "state", "--at", "0", "--json"))
    assert not any(empty["state"].values())
    assert "nodes (0)" in log(sample, "state", "--at", "0").stdout


@pytest.mark.parametrize("command", ["tail", "stats", "state", "verify"])
def test_without_a_log_one_line_says_where_it_was_looked_for(tmp_path: Path, command: str) -> None:
    result = log(tmp_path, command)
    assert result.exit_code == 3
    assert str(tmp_path / "log.db") in result.stderr
    assert "--home" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["nonsense", "postgresql://host/db", "mysql://host/db"])
def test_a_database_that_is_not_served_is_one_line(tmp_path: Path, url: str) -> None:
    result = log(tmp_path, "stats", "--database-url", url)
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_no_log_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_text("hello " * 1000)
    result = log(tmp_path, "stats")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1


def test_the_log_is_found_through_a_url(sample: Path, tmp_path: Path) -> None:
    result = log(tmp_path, "stats", "--database-url", f"sqlite:///{sample / 'log.db'}")
    assert f"{EVENTS} events" in result.stdout


def test_reading_leaves_a_log_at_rest_untouched(sample: Path) -> None:
    before = sorted((p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in sample.iterdir())
    assert log(sample, "verify").exit_code == 0
    assert log(sample, "tail").exit_code == 0
    after = sorted((p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in sample.iterdir())
    assert before == after
