"""Messages as a client reads them: numbered the same everywhere, and one answer either way."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.openai.render import Renderer, Transcript, whole
from domain import events as e
from domain.commands import Sampling
from tests.api.fake_worker import FACTS, Fail, Say, Silent, Step, Stop, played

CREATED = e.TaskCreated(
    task_id="t",
    model_id="m",
    model=FACTS,
    created_at=1_700_000_000_999_999,
    sampling=Sampling(seed=1, max_tokens=9),
    prompt_tokens=3,
    prompt_text="p",
    token_ids=(1, 2, 3),
)

middles = st.lists(st.builds(Say, st.text(max_size=5)) | st.just(Silent()), max_size=6)
ends = st.sampled_from([Stop("stop"), Stop("length")])
failures = st.builds(Fail, message=st.text(max_size=5000))


def events_of(steps: list[Step]) -> list[e.Event]:
    made: list[e.Event] = [CREATED]
    for index, step in enumerate(steps):
        made += played("t", index, step)
    return made


def sse(events: list[e.Event], include_usage: bool = True) -> bytes:
    transcript = Transcript(include_usage)
    sent = b""
    for event in events:
        messages = transcript.add(event)
        sent += Renderer(transcript.progress.created, include_usage).events(messages)
    return sent


def parsed(sent: bytes) -> list[tuple[int, Any]]:
    """What an SSE client makes of bytes; it fails where they are not just as they should be."""
    found = []
    for block in sent.decode().split("\n\n")[:-1]:
        first, second = block.split("\n")
        assert first.startswith("id: ")
        assert second.startswith("data: ")
        data = second.removeprefix("data: ")
        found.append((int(first[4:]), data if data == "[DONE]" else json.loads(data)))
    return found


def answer(events: list[e.Event]) -> Any:
    transcript = Transcript(include_usage=True)
    messages = [numbered.message for event in events for numbered in transcript.add(event)]
    return msgspec.to_builtins(whole(CREATED, messages))


@given(middle=middles, end=ends)
def test_streamed_and_whole_agree(middle: list[Step], end: Step) -> None:
    events = events_of([*middle, end])
    sent = parsed(sse(events))
    assert [number for number, _ in sent] == list(range(len(sent)))
    *chunks, usage = [data for _, data in sent[:-1]]
    assert sent[-1][1] == "[DONE]"
    whole_answer = answer(events)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all("role" not in delta for delta in deltas[1:])
    assert deltas[-1] == {}
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == whole_answer["choices"][0]["message"]["content"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole_answer["choices"][0]["finish_reason"]]
    assert usage["choices"] == []
    assert usage["usage"] == whole_answer["usage"]
    for name in ("id", "created", "model", "system_fingerprint"):
        assert {chunk[name] for chunk in (*chunks, usage)} == {whole_answer[name]}


@given(middle=middles, end=ends)
def test_a_number_means_the_same_with_and_without_usage(middle: list[Step], end: Step) -> None:
    events = events_of([*middle, end])
    without = parsed(sse(events, include_usage=False))
    assert not any("usage" in data for _, data in without[:-1])
    assert [number for number, _ in without] == list(range(len(without)))
    with_usage = parsed(sse(events))
    for (number, data), (same, more) in zip(without[:-1], with_usage, strict=False):
        assert number == same
        assert data == {name: value for name, value in more.items() if name != "usage"}


@given(middle=middles, end=failures)
def test_a_failure_is_one_error_then_done(middle: list[Step], end: Step) -> None:
    events = events_of([*middle, end])
    sent = parsed(sse(events))
    assert [number for number, _ in sent] == list(range(len(sent)))
    data = [data for _, data in sent]
    assert data[-1] == "[DONE]"
    assert set(data[-2]) == {"error"}
    assert set(data[-2]["error"]) == {"message", "type", "param", "code"}
    assert len(data[-2]["error"]["message"]) <= 2000
    assert not any("error" in chunk for chunk in data[:-2])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in data[:-2])
    assert answer(events) is None


@given(middle=middles)
def test_an_answer_without_its_end_is_no_answer(middle: list[Step]) -> None:
    assert answer(events_of(middle)) is None


def test_the_parts_of_a_tool_call_come_together() -> None:
    chunk = e.ChunkGenerated(
        attempt=1,
        first_index=0,
        token_ids=(1,),
        deltas=(
            e.Reasoning("hm"),
            e.ToolCall(0, "call_1", "f", ""),
            e.ToolCall(0, None, None, '{"a":'),
            e.ToolCall(0, None, None, "1}"),
            e.RefusalText("no"),
        ),
    )
    events = [CREATED, chunk, *played("t", 1, Stop("tool_calls"))]
    deltas = [data["choices"][0]["delta"] for _, data in parsed(sse(events))[1:-3]]
    first = {"index": 0, "id": "call_1", "type": "function"}
    assert deltas == [
        {"reasoning_content": "hm"},
        {"tool_calls": [{**first, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"refusal": "no"},
    ]
    [choice] = answer(events)["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": "no",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "f", "arguments": '{"a":1}'},
            }
        ],
    }


def test_line_separators_in_text_do_not_break_the_stream() -> None:
    events = events_of([Say("a\nb\r\u2028\u0085c\n\nd"), Stop()])
    texts = [data["choices"][0]["delta"].get("content") for _, data in parsed(sse(events))[1:2]]
    assert texts == ["a\nb\r\u2028\u0085c\n\nd"]
