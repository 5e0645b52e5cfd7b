from pathlib import Path
from typing import Any

import msgspec
import pytest

from domain.commands import Sampling
from tests.workers.runner.client import write_script
from workers.runner.engine import LoadError, Request, RowError
from workers.runner.journal import Journal
from workers.runner.script import Script, Step, read_script, walk
from workers.runner.scripted_engine import END, ScriptedEngine


def engine_of(file: Path, **script: Any) -> ScriptedEngine:
    write_script(file, **script)
    engine = ScriptedEngine(file)
    engine.load("", 0, 1, 8, lambda phase, detail: None)
    return engine


def request(uid: int, task: str = "", known: tuple[int, ...] = (), seed: int = 0) -> Request:
    return Request(
        uid=uid,
        task=task,
        choice=0,
        tokens=(1, *known),
        known=len(known),
        sampling=Sampling(seed=seed, max_tokens=100),
    )


def run(engine: ScriptedEngine, uid: int) -> list[int]:
    """A row's tokens up to its end."""
    tokens: list[int] = []
    while tokens[-1:] != [END]:
        tokens += [token.token_id for token in engine.step() if token.uid == uid]
    engine.remove(uid)
    return tokens


def text(engine: ScriptedEngine, tokens: list[int]) -> str:
    detokenizer = engine.detokenizer()
    return "".join([detokenizer.add(token) for token in tokens if token != END])


def said(engine: ScriptedEngine, asked: Request) -> str:
    engine.insert(asked)
    return text(engine, run(engine, asked.uid))


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([{"says": "Hi"}], "unknown field `says`"),
        ([{}], "exactly one thing"),
        ([{"once": True}], "exactly one thing"),
        ([{"text": "a", "sleep": 1}], "exactly one thing"),
        ([{"text": "a", "steps": [{"text": "b"}]}], "only `repeat`"),
        ([{"bytes": "xyz"}], "fromhex"),
        ([{"crash": "politely"}], "Invalid enum value 'politely'"),
        ([{"repeat": 2, "steps": [{"tokens": [1]}]}], "Expected `str`"),
    ],
)
def test_a_script_that_is_not_in_order_says_where(
    tmp_path: Path, steps: list[Any], complaint: str
) -> None:
    with pytest.raises(LoadError, match=complaint):
        engine_of(tmp_path / "s.json", default=steps)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"nowhere\.json cannot be read"):
        read_script(tmp_path / "nowhere.json")


def test_the_documented_steps_are_all_steps_there_are() -> None:
    import workers.runner.script as module

    documented = module.__doc__ or ""
    for field in msgspec.structs.fields(Step):
        assert f'"{field.encode_name}"' in documented


def test_steps_repeat() -> None:
    inner = Step(repeat=2, steps=(Step(text="b"),))
    steps = (Step(repeat=2, steps=(Step(text="a"), inner)), Step(repeat=0, steps=(Step(text="c"),)))
    assert [step.text for _, step in walk(steps, "")] == ["a", "b", "b"] * 2


def test_text_tokens_and_bytes_come_one_by_one(tmp_path: Path) -> None:
    steps = [{"text": "aé😀"}, {"tokens": ["two", "é"]}, {"bytes": "f09f9880"}]
    engine = engine_of(tmp_path / "s.json", default=steps)
    engine.insert(request(1))
    tokens = run(engine, 1)
    assert len(tokens) == 3 + 2 + 4 + 1
    assert text(engine, tokens) == "aé😀twoé😀"


def test_the_same_text_has_the_same_tokens_in_every_process(tmp_path: Path) -> None:
    tokens = []
    for _ in range(2):
        engine = engine_of(tmp_path / "s.json", default=[{"tokens": ["x", "y", "x"]}])
        engine.insert(request(1))
        tokens.append(run(engine, 1))
    assert tokens[0] == tokens[1]


def test_requests_are_counted_by_all_engines_that_use_the_script(tmp_path: Path) -> None:
    script: dict[str, Any] = {
        "requests": [[{"text": "first"}], [{"text": "second"}]],
        "default": [{"text": "more"}],
    }
    one = engine_of(tmp_path / "s.json", **script)
    other = engine_of(tmp_path / "s.json", **script)
    assert said(one, request(1, "a")) == "first"
    assert said(other, request(1, "b")) == "second"
    assert said(one, request(2, "c")) == "more"
    assert said(other, request(2, "a")) == "first"


def test_without_names_requests_are_told_apart_by_prompt_and_seed(tmp_path: Path) -> None:
    engine = engine_of(tmp_path / "s.json", requests=[[{"text": "1"}], [{"text": "2"}]])
    assert said(engine, request(1, seed=5)) == "1"
    assert said(engine, request(2, seed=6)) == "2"
    assert said(engine, request(3, seed=5)) == "1"


@pytest.mark.parametrize("cut", range(7))
def test_a_row_goes_on_after_what_is_known(tmp_path: Path, cut: int) -> None:
    steps = [{"repeat": 2, "steps": [{"text": "ab"}]}, {"bytes": "c3a9"}]
    engine = engine_of(tmp_path / "s.json", default=steps)
    engine.insert(request(1))
    whole = run(engine, 1)
    engine.insert(request(2, known=tuple(whole[:cut])))
    assert run(engine, 2) == whole[cut:]


def test_a_failure_that_was_passed_does_not_happen_again(tmp_path: Path) -> None:
    engine = engine_of(tmp_path / "s.json", default=[{"text": "a"}, {"raise": "x"}, {"text": "b"}])
    engine.insert(request(1))
    [token] = engine.step()
    with pytest.raises(RowError, match="x"):
        engine.step()
    engine.reset()
    engine.insert(request(1, known=(token.token_id,)))
    with pytest.raises(RowError, match="x"):
        engine.step()
    engine.reset()
    engine.insert(request(1, known=(token.token_id, token.token_id + 1)))
    assert run(engine, 1) == [END]


def test_what_happens_once_happens_once_for_all(tmp_path: Path) -> None:
    steps = [{"raise_batch": "only once", "once": True}, {"text": "a"}]
    engine = engine_of(tmp_path / "s.json", default=steps)
    engine.insert(request(1))
    with pytest.raises(RuntimeError, match="only once"):
        engine.step()
    engine.reset()
    assert said(engine, request(1)) == "a"
    again = engine_of(tmp_path / "s.json", default=steps)
    assert said(again, request(2, seed=9)) == "a"


def test_only_so_many_rows_run_at_once(tmp_path: Path) -> None:
    engine = engine_of(tmp_path / "s.json")
    for uid in range(10):
        engine.insert(request(uid))
    assert len(engine.step()) == 8
    assert (engine.stats().batch, engine.stats().waiting) == (8, 2)


def test_a_sleeping_row_does_not_keep_others_waiting(tmp_path: Path) -> None:
    script = [[{"sleep": 3600}, {"text": "a"}], [{"text": "b"}]]
    engine = engine_of(tmp_path / "s.json", requests=script)
    engine.insert(request(1, "a"))
    engine.insert(request(2, "b"))
    assert text(engine, run(engine, 2)) == "b"
    assert engine.step() == []


def test_the_journal_outlives_its_process(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    journal = Journal(file)
    assert [journal.number_of("a"), journal.number_of("b")] == [0, 1]
    assert journal.first_time("x")
    journal.close()
    again = Journal(file)
    assert [again.number_of("c"), again.number_of("a")] == [2, 0]
    assert not again.first_time("x")


def test_a_script_may_leave_out_everything() -> None:
    assert msgspec.json.decode(b"{}", type=Script).of_request(3)[0] == "default"
