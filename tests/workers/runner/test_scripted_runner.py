import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workers.runner.client import ROOT, Answer, RunnerClient, insert, write_script
from workers.protocol import (
    CREDIT,
    VERSION,
    Committed,
    Frame,
    Load,
    LoadFailed,
    Progress,
    Remove,
)
from workers.runner.row import LONGEST_MESSAGE


def outcome(answer: Answer) -> tuple[str, str | None]:
    return answer.text, answer.finish_reason


def test_a_runner_says_who_it_is_loads_answers_and_ends(tmp_path: Path) -> None:
    engine = write_script(tmp_path / "s.json", default=[{"text": "Hi "}, {"bytes": "f09f9880"}])
    with RunnerClient(engine) as runner:
        runner.load()
        assert (runner.hello.version, runner.hello.pid) == (VERSION, runner.process.pid)
        assert runner.hello.engine == "scripted"
        [answer] = runner.run(insert())
        assert outcome(answer) == ("Hi 😀", "stop")
        assert [row.token_ids for row in answer.rows if row.deltas] == [
            (256 + ord("H"),),
            (256 + ord("i"),),
            (256 + ord(" "),),
            (0x80,),
        ]
        assert runner.shut_down() == 0


def test_a_culprit_fails_alone_and_the_others_lose_nothing(tmp_path: Path) -> None:
    steps = [{"repeat": 10, "steps": [{"text": "abcdefg "}]}]
    culprit = [{"text": "oh"}, {"raise": "no such luck"}]
    engine = write_script(tmp_path / "s.json", requests=[steps, culprit, steps], default=steps)
    with RunnerClient(engine) as runner:
        first, second, third = runner.load().run(insert(), insert(), insert())
        assert outcome(first) == outcome(third) == ("abcdefg " * 10, "stop")
        assert outcome(second) == ("oh", "error")
        assert second.error_message == "no such luck"
        assert second.rows[-1].first_index == 2
        [after] = runner.run(insert())
        assert outcome(after) == outcome(first)
        assert "no such luck" in runner.errors()


def test_an_unnamed_culprit_is_found(tmp_path: Path) -> None:
    steps = [{"repeat": 10, "steps": [{"text": "abcdefg "}]}]
    culprit = [{"text": "oh"}, {"raise_batch": "somebody did it"}]
    engine = write_script(tmp_path / "s.json", requests=[steps, culprit, steps, culprit, steps])
    with RunnerClient(engine) as runner:
        answers = runner.load().run(*(insert() for _ in range(5)))
        for answer in answers[::2]:
            assert outcome(answer) == ("abcdefg " * 10, "stop")
        for answer in answers[1::2]:
            assert outcome(answer) == ("oh", "error")
            assert answer.error_message == "RuntimeError: somebody did it"


def test_a_failure_that_nobody_repeats_alone_harms_nobody(tmp_path: Path) -> None:
    steps = [{"text": "abc"}, {"raise_batch": "a moment", "once": True}, {"text": "def"}]
    engine = write_script(tmp_path / "s.json", default=steps)
    with RunnerClient(engine) as runner:
        answers = runner.load().run(*(insert() for _ in range(3)))
        assert {outcome(answer) for answer in answers} == {("abcdef", "stop")}


def test_a_long_error_is_bounded(tmp_path: Path) -> None:
    engine = write_script(tmp_path / "s.json", default=[{"raise": "é" * 100_000}])
    with RunnerClient(engine) as runner:
        [answer] = runner.load().run(insert())
        assert answer.error_message == "é" * LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("step", "status"),
    [
        ({"crash": "abort"}, -signal.SIGABRT),
        ({"crash": "segv"}, -signal.SIGSEGV),
        ({"crash": "kill"}, -signal.SIGKILL),
        ({"exit": 3}, 3),
    ],
)
def test_a_runner_dies_as_its_script_says(
    tmp_path: Path, step: dict[str, object], status: int
) -> None:
    engine = write_script(tmp_path / "s.json", default=[{"text": "ab"}, step, {"text": "cd"}])
    with RunnerClient(engine) as runner:
        asked = insert()
        runner.load().send(asked)
        assert runner.listen_to_the_end() == status
        assert runner.answers[asked.uid].text == "ab"


def test_a_native_crash_leaves_its_stack(tmp_path: Path) -> None:
    engine = write_script(tmp_path / "s.json", load=[{"crash": "abort"}])
    with RunnerClient(engine) as runner:
        runner.send(Load(model_path=""))
        runner.listen_to_the_end()
        assert "Fatal Python error: Aborted" in runner.errors()


@pytest.mark.parametrize("cut", range(7))
def test_an_answer_goes_on_in_another_process(tmp_path: Path, cut: int) -> None:
    steps = [{"text": "ab"}, {"bytes": "c3a9"}, {"text": "c"}, {"crash": "kill", "once": True}]
    engine = write_script(tmp_path / "s.json", default=[*steps, {"text": "d</e"}])
    stop = ("cd</end>",)
    asked = insert(task="the same", stop=stop)
    with RunnerClient(engine) as runner:
        runner.load().send(asked)
        assert runner.listen_to_the_end() == -signal.SIGKILL
        first = runner.answers[asked.uid]
    log = Answer(first.rows[:cut])
    tokens, emitted = log.tokens, len(log.text)
    with RunnerClient(engine) as runner:
        again = insert(task="the same", stop=stop, logged=tokens, emitted=emitted)
        [rest] = runner.load().run(again)
    assert first.text[:emitted] + rest.text == "abécd</e"
    assert rest.rows[0].first_index == len(tokens)
    assert len(tokens + rest.tokens) == 5 + 4 + 1


def test_a_stop_string_ends_an_answer_over_token_borders(tmp_path: Path) -> None:
    engine = write_script(tmp_path / "s.json", default=[{"text": "one two three"}])
    with RunnerClient(engine) as runner:
        asked = insert(stop=("o th", "three"))
        [answer] = runner.load().run(asked)
        assert outcome(answer) == ("one tw", "stop")
        assert len(answer.tokens) == len("one two th")


def test_a_removed_row_falls_silent(tmp_path: Path) -> None:
    engine = write_script(
        tmp_path / "s.json", default=[{"repeat": 10**6, "steps": [{"text": "a"}]}]
    )
    with RunnerClient(engine) as runner:
        asked, other = insert(max_tokens=10**6), insert(max_tokens=10**6)
        runner.load().send(asked, other)
        runner.until(lambda: len(runner.answers[asked.uid].rows) > 10)
        runner.send(Remove(uid=asked.uid))
        runner.until(lambda: {row.uid for row in last_frame(runner).rows} == {other.uid})
        count = len(runner.answers[asked.uid].rows)
        runner.until(lambda: len(runner.answers[other.uid].rows) > count + 100)
        assert len(runner.answers[asked.uid].rows) == count


def last_frame(runner: RunnerClient) -> Frame:
    return next(message for message in reversed(runner.heard) if isinstance(message, Frame))


def test_a_runner_waits_for_the_log(tmp_path: Path) -> None:
    engine = write_script(
        tmp_path / "s.json", default=[{"repeat": 10**6, "steps": [{"text": "a"}]}]
    )
    with RunnerClient(engine, commits=False) as runner:
        runner.load().send(insert(max_tokens=10**6))
        runner.until(lambda: isinstance(runner.heard[-1], Frame))

        def signs_of_life() -> int:
            frames = [i for i, message in enumerate(runner.heard) if isinstance(message, Frame)]
            return len(runner.heard) - 1 - frames[-1]

        def frames() -> list[Frame]:
            return [message for message in runner.heard if isinstance(message, Frame)]

        # It goes on telling that it is alive, and nothing else.
        runner.until(lambda: signs_of_life() == 2)
        assert len(frames()) == CREDIT
        runner.send(Committed(step=frames()[1].step))
        runner.until(lambda: len(frames()) > CREDIT)
        runner.until(lambda: signs_of_life() == 1)
        assert len(frames()) == CREDIT + 2
        steps = [message.step for message in runner.heard if isinstance(message, Frame | Progress)]
        assert steps == sorted(set(steps))


@pytest.mark.parametrize("steps", [[{"hang": True}], [{"repeat": 10**9, "steps": [{"text": "a"}]}]])
@pytest.mark.parametrize("phase", ["load", "default"])
def test_no_runner_outlives_its_node(tmp_path: Path, phase: str, steps: list[object]) -> None:
    engine = write_script(tmp_path / "s.json", **{phase: steps})
    with RunnerClient(engine) as runner:
        runner.send(Load(model_path=""), insert(max_tokens=10**9))
        runner.until(lambda: len(runner.heard) > 1)
        time.sleep(0.1)
        runner.hang_up()
        began = time.monotonic()
        runner.process.wait(5)
        assert time.monotonic() - began < 1


def test_a_failed_load_says_why(tmp_path: Path) -> None:
    engine = write_script(tmp_path / "s.json", load=[{"text": "half"}, {"raise": "no memory"}])
    with RunnerClient(engine) as runner:
        runner.send(Load(model_path=""))
        assert runner.listen_to_the_end() == 1
        assert runner.heard[-1] == LoadFailed(message="no memory")
        assert "half" in [m.detail for m in runner.heard if isinstance(m, Progress)]


def test_a_load_may_fail_only_once(tmp_path: Path) -> None:
    engine = write_script(tmp_path / "s.json", load=[{"raise": "not yet", "once": True}])
    with RunnerClient(engine) as runner:
        runner.send(Load(model_path=""))
        assert runner.listen_to_the_end() == 1
    with RunnerClient(engine) as runner:
        assert runner.load().run(insert())[0].finish_reason == "stop"


def test_a_missing_script_is_a_failed_load(tmp_path: Path) -> None:
    with RunnerClient(f"scripted:{tmp_path}/nowhere.json") as runner:
        runner.send(Load(model_path=""))
        assert runner.listen_to_the_end() == 1
        assert isinstance(runner.heard[-1], LoadFailed)
        assert "nowhere.json" in runner.heard[-1].message


def test_a_node_that_breaks_the_protocol_is_told_on_standard_error(tmp_path: Path) -> None:
    engine = write_script(tmp_path / "s.json")
    with RunnerClient(engine) as runner:
        runner.send(insert())
        assert runner.listen_to_the_end() == 1
        assert "ProtocolError: a row was inserted before a model" in runner.errors()


def test_the_protocol_may_use_the_standard_descriptors(tmp_path: Path) -> None:
    # Whatever a library prints then goes to standard error.
    engine = write_script(tmp_path / "s.json")
    code = "import os, workers.runner.channel as c; d = c.take_over(0, 1); os.write(d[1], b'up'); "
    code += "os.write(1, b'noise'); print(os.read(d[0], 9), os.read(0, 9))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=b"down", capture_output=True, check=True
    )
    assert engine
    assert (done.stdout, done.stderr) == (b"up", b"noise" + b"b'down' b''" + os.linesep.encode())


def test_two_hundred_rows_run_at_once(tmp_path: Path) -> None:
    steps = [{"repeat": 20, "steps": [{"text": "0123456789"}]}]
    engine = write_script(tmp_path / "s.json", default=steps)
    with RunnerClient(engine) as runner:
        runner.load(max_batch=256)
        began = time.monotonic()
        answers = runner.run(*(insert() for _ in range(200)))
        rate = 200 * 201 / (time.monotonic() - began)
        assert {outcome(answer) for answer in answers} == {("0123456789" * 20, "stop")}
        assert rate > 2000
