"""Requests from raw bytes: what is understood, what is refused, and under which name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import errors
from api.errors import ApiError
from api.openai.request import NO_OPS, ChatRequest, parse
from api.prompting import Message

HI = [{"role": "user", "content": "Hi"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HI, **fields}).encode()


def refused(raw: bytes, **options: bool) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(raw, **options)
    assert caught.value.code == "bad_request"
    return caught.value


def test_a_minimal_request_gets_openais_defaults() -> None:
    assert parse(body()) == ChatRequest(
        model="m",
        messages=(Message("user", ("Hi",)),),
        max_tokens=None,
        temperature=1.0,
        top_p=1.0,
        seed=None,
        stop=(),
        stream=False,
        include_usage=False,
        user=None,
        metadata=None,
        ignored=(),
    )


def test_every_served_field_is_understood() -> None:
    request = parse(
        body(
            max_tokens=5,
            temperature=0,
            top_p=0.5,
            seed=-(2**63),
            stop=["a", "b"],
            stream=True,
            stream_options={"include_usage": True},
            user="u",
            metadata={"k": "v"},
        )
    )
    assert (request.max_tokens, request.temperature, request.top_p) == (5, 0.0, 0.5)
    assert (request.seed, request.stop) == (-(2**63), ("a", "b"))
    assert (request.stream, request.include_usage) == (True, True)
    assert (request.user, request.metadata) == ("u", {"k": "v"})


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert parse(body(max_tokens=5, max_completion_tokens=7)).max_tokens == 7


def test_one_stop_string_may_stand_by_itself() -> None:
    assert parse(body(stop="END")).stop == ("END",)


def test_a_developer_is_a_system_to_a_template() -> None:
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    roles = [message.role for message in parse(body(messages=messages)).messages]
    assert roles == ["system", "system", "assistant"]


def test_content_may_be_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    [message] = parse(body(messages=[{"role": "user", "content": parts}])).messages
    assert message.parts == ("a", "b")


def test_null_is_accepted_for_every_optional_field() -> None:
    names = [
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"),
        *("stream", "stream_options", "user", "metadata", "reasoning_effort", *NO_OPS),
    ]
    assert parse(body(**dict.fromkeys(names))) == parse(body())


@pytest.mark.parametrize(
    ("field", "value"), [(name, value) for name, values in NO_OPS.items() for value in values]
)
def test_a_value_that_changes_nothing_is_accepted(field: str, value: Any) -> None:
    assert parse(body(**{field: value})) == parse(body())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("presence_penalty", 0.1),
        ("frequency_penalty", -1),
        ("tools", [{"type": "function"}]),
        ("logprobs", True),
        ("logprobs", 0),
        ("top_logprobs", 3),
        ("logit_bias", {"50": 1}),
        ("response_format", {"type": "json_object"}),
        ("store", True),
        ("parallel_tool_calls", False),
        ("reasoning_effort", "low"),
        ("top_k", 5),
        ("nobody_knows_me", 1),
    ],
)
def test_what_is_not_served_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(body(**{field: value}))
    assert error.param == field
    assert field in error.message


def test_a_lenient_server_names_what_it_ignores() -> None:
    messages = [{"role": "user", "content": "Hi", "name": "Ann"}]
    request = parse(body(messages=messages, n=2, top_k=5), lenient=True)
    assert request.ignored == ("messages[0].name", "n", "top_k")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [*HI, {"role": "user", "content": "x", "name": "a"}]}, "messages[1].name"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": 1}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"x": 1}}, "stream_options.x"),
        ({"user": 5}, "user"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"k": 5}}, "metadata.k"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"user": "\ud800"}, "user"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages[0].content"),
        ({"metadata": {"\ud800": "v"}}, "metadata"),
        ({"\ud800": 1}, "?"),
    ],
)
def test_a_bad_value_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(body(**fields)).param == param


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{} x", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"model": "\xff"}', "not UTF-8"),
        ('{"model": "m"}'.encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[]", "expected an object, got an array"),
        (b"null", "expected an object, got null"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(raw: bytes, says: str) -> None:
    assert says in refused(raw).message


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse(b"\xef\xbb\xbf" + body()) == parse(body())


def test_a_key_that_occurs_twice_is_refused() -> None:
    assert refused(b'{"model": "a", "model": "b"}').param == "model"


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 10_000])
def test_a_huge_number_is_out_of_range(number: str) -> None:
    raw = body(temperature=0).replace(b'"temperature": 0', f'"temperature": {number}'.encode())
    assert refused(raw).param == "temperature"
    raw = body(seed=0).replace(b'"seed": 0', f'"seed": {number}'.encode())
    assert refused(raw).param == "seed"


def test_control_characters_are_text_like_any_other() -> None:
    [message] = parse(body(messages=[{"role": "user", "content": "\x00\x1b"}])).messages
    assert message.parts == ("\x00\x1b",)


def test_an_answer_can_be_sent_back_as_the_sdk_holds_it() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
        "audio": None,
    }
    assert parse(body(messages=[*HI, answer])).messages[1] == Message("assistant", ("Hi",))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    *("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed"),
    *("stop", "stream", "stream_options", "user", "metadata", *NO_OPS),
]
odd_messages = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "name"]),
        st.sampled_from(["user", "system", "\ud800"])
        | json_values
        | st.lists(
            st.dictionaries(st.sampled_from(["type", "text"]), json_values | st.just("text"))
        ),
    ),
    max_size=3,
)
requests = st.dictionaries(
    st.sampled_from(FIELDS) | st.text(max_size=3000), json_values, max_size=6
) | st.builds(
    lambda messages, more: {**more, "model": "m", "messages": messages},
    odd_messages,
    st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3),
)


@given(value=json_values | requests, lenient=st.booleans())
def test_any_json_is_understood_or_refused_in_few_words(value: Any, lenient: bool) -> None:
    error = outcome(json.dumps(value).encode(), lenient)
    if isinstance(error, ChatRequest):
        assert error.messages
        return
    sent = errors.body(error).error
    assert error.code == "bad_request"
    assert len(sent.message) <= errors.LONGEST_MESSAGE
    assert len(sent.param or "") <= errors.LONGEST_PARAM
    (sent.message + (sent.param or "")).encode()


def outcome(raw: bytes, lenient: bool) -> ChatRequest | ApiError:
    try:
        return parse(raw, lenient=lenient)
    except ApiError as error:
        return error


@given(raw=st.binary())
def test_any_bytes_are_understood_or_refused(raw: bytes) -> None:
    refused(raw)
