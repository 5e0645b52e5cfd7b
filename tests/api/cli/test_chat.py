"""Asking a server, and taking up an answer that broke off."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.cli.answer_stream import SseMessage, parse
from api.cli.chat import chat
from infrastructure import server_file
from infrastructure.server_file import ServerInfo
from tests.api.cli.fake_server import Step, chunk, done, error, playing
from tests.api.cli.support import run

HELLO = chunk(0, "Hel") + chunk(1, "lo \u2028 wörld.\n") + chunk(2, finish_reason="stop") + done(3)


def ask(url: str, *arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(
        chat, [*(arguments or ("Hi",)), "--url", url], input=input, env={"INFERLOG_HOME": None}
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_answer_is_printed_as_it_was_said() -> None:
    with playing(Step(body=HELLO)) as (url, seen):
        result = ask(url)
    assert (result.exit_code, result.stdout) == (0, "Hello \u2028 wörld.\n")
    assert seen[0].body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_an_answer_without_a_line_break_at_its_end_gets_one() -> None:
    with playing(Step(body=chunk(0, "a\nb") + done(1))) as (url, _):
        assert ask(url).stdout == "a\nb\n"


def test_wishes_are_passed_on() -> None:
    wishes = [
        "--system",
        "S",
        "--model",
        "m",
        "--max-tokens",
        "3",
        "--temperature",
        "0",
        "--seed",
        "7",
    ]
    with playing(Step(body=HELLO)) as (url, seen):
        ask(f"{url}/v1/", "Hi", *wishes)
    body = seen[0].body
    assert body["messages"][0] == {"role": "system", "content": "S"}
    assert body["model"] == "m"
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (3, 0, 7)


def test_a_dash_reads_the_prompt_from_standard_input() -> None:
    with playing(Step(body=HELLO)) as (url, seen):
        ask(url, "-", input="Line\nLine\n")
    assert seen[0].body["messages"][0]["content"] == "Line\nLine\n"


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_that_breaks_off_is_taken_up_where_it_was(cut: bool) -> None:
    half = chunk(0, "Hel") + chunk(1, "lo")[:-20]
    rest = chunk(1, "lo") + done(2)
    with playing(Step(body=half, cut=cut), Step(body=rest)) as (url, seen):
        result = ask(url)
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert (seen[1].method, seen[1].path) == (
        "GET",
        "/v1/chat/completions/chatcmpl-1/stream?starting_after=0&include_usage=true",
    )


def test_a_request_lost_before_its_first_message_is_sent_again_under_the_same_key() -> None:
    with playing(Step(body=b": keep-alive\n\n", cut=True), Step(body=HELLO)) as (url, seen):
        result = ask(url)
    assert result.stdout.startswith("Hello")
    assert [request.method for request in seen] == ["POST", "POST"]
    assert seen[0].headers["idempotency-key"] == seen[1].headers["idempotency-key"]
    assert seen[0].body == seen[1].body


def test_a_server_that_is_just_starting_again_is_waited_for() -> None:
    steps = (
        Step(body=chunk(0, "a"), cut=True),
        error(503, "stopping", "shutting_down"),
        Step(body=chunk(1, "b") + done(2)),
    )
    with playing(*steps) as (url, _):
        assert ask(url).stdout == "ab\n"


def test_a_server_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.cli.answer_stream.TRIES", 3)
    monkeypatch.setattr("api.cli.answer_stream.PAUSES", (0.01,))
    broken = Step(body=b"", cut=True)
    with playing(Step(body=chunk(0, "a"), cut=True), broken, broken, broken) as (url, seen):
        result = ask(url)
    assert (result.exit_code, result.stdout) == (3, "a\n")
    assert "lost the server in the middle" in result.stderr
    assert len(seen) == 4


def test_a_server_without_numbered_messages_is_not_asked_again() -> None:
    body = chunk(0, "a").replace(b"id: 0\n", b"")
    with playing(Step(body=body, cut=True)) as (url, seen):
        result = ask(url)
    assert (result.exit_code, result.stdout) == (3, "a\n")
    assert len(seen) == 1


def test_an_error_in_the_middle_of_an_answer_is_told_after_it() -> None:
    failure = b'data: {"error": {"message": "It broke.", "code": "generation_failed"}}\n\n'
    with playing(Step(body=chunk(0, "Half") + failure + done(2))) as (url, _):
        result = ask(url)
    assert (result.exit_code, result.stdout) == (1, "Half\n")
    assert "It broke. (generation_failed)" in result.stderr


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (error(404, "No model 'x'.", "model_not_found"), "No model 'x'. (404 model_not_found)"),
        (error(503, "Not yet.", "model_unavailable"), "Not yet. (503 model_unavailable)"),
        (error(400, "Bad.", None), "Bad. (400)"),
        (Step(body=b"<h1>Oh\x1b[31m</h1>", status=502), "<h1>Oh[31m</h1> (502)"),
        (Step(body=b"", status=500), "Internal Server Error (500)"),
    ],
)
def test_a_refusal_is_printed_with_its_status_and_code(step: Step, said: str) -> None:
    with playing(step) as (url, _):
        result = ask(url)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert said in result.stderr


def test_a_server_without_a_model_is_named() -> None:
    with playing(models={"data": []}) as (url, _):
        result = ask(url)
    assert result.exit_code == 1
    assert "serves no model" in result.stderr


def test_what_is_no_such_server_is_named() -> None:
    with playing(models=["hello"]) as (url, _):
        result = ask(url)
    assert result.exit_code == 1
    assert "no OpenAI-compatible server" in result.stderr


def test_the_server_is_found_through_the_data_folder(tmp_path: Path) -> None:
    with playing(Step(body=HELLO)) as (url, _):
        server_file.write(tmp_path, ServerInfo(url=url, version="1"))
        result = CliRunner().invoke(chat, ["Hi", "--home", str(tmp_path)])
    assert result.stdout.startswith("Hello"), result.stderr


def test_without_a_server_one_line_says_how_to_start_one(tmp_path: Path) -> None:
    ended = run("chat", "Hi", cwd=tmp_path, INFERLOG_HOME=str(tmp_path))
    assert ended.returncode == 3
    assert ended.stderr.count("\n") == 1
    assert "inferlog serve" in ended.stderr
    assert str(tmp_path) in ended.stderr


def test_a_server_that_does_not_answer_is_out_of_reach() -> None:
    result = ask(f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 3
    assert "no server answers at" in result.stderr


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://a", "http://", "a\0b"])
def test_an_address_that_is_none_is_wrong_usage(url: str) -> None:
    result = ask(url)
    assert result.exit_code == 2
    assert "--url" in result.stderr


@pytest.mark.parametrize("prompt", ["", " \n", "\udcff"])
def test_a_prompt_that_is_none_is_wrong_usage(prompt: str) -> None:
    with playing() as (url, _):
        assert ask(url, prompt).exit_code == 2


@pytest.mark.parametrize("cuts", [1, 3, 1000])
def test_a_stream_is_parsed_however_it_is_cut(cuts: int) -> None:
    body = (
        b": comment\r\n\r\nid: 1\r\ndata: a\r\ndata:b\r\n\r\nevent: x\n\n"
        + "id:2\ndata: é\x85\u2028\n\n".encode()
        + b"data: cut off\n"
    )
    blocks = [body[i : i + cuts] for i in range(0, len(body), cuts)]
    assert list(parse(blocks)) == [SseMessage("1", "a\nb"), SseMessage("2", "é\x85\u2028")]
