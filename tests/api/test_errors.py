"""The one table of errors, and bodies that stay small."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import errors
from api.errors import WIRE, ApiError
from domain.errors import Code, Refusal


def test_every_code_has_its_place_on_the_wire() -> None:
    assert set(WIRE) == set(get_args(Code))


@pytest.mark.parametrize("code", WIRE)
def test_a_code_is_sent_as_its_status_demands(code: Code) -> None:
    wire = WIRE[code]
    kinds = {429: "rate_limit_error"} | {500: "server_error", 503: "server_error"}
    fallback = "server_error" if wire.status >= 500 else "invalid_request_error"
    assert wire.type == kinds.get(wire.status, fallback)
    headers = errors.headers(ApiError(code, "x"))
    assert ("retry-after" in headers) == (wire.status in (429, 503))
    assert (headers.get("x-should-retry") == "false") == (wire.status in (409, 504))


@given(message=st.text(max_size=5000), param=st.none() | st.text(max_size=5000))
def test_a_body_is_small_and_has_all_four_keys(message: str, param: str | None) -> None:
    sent = msgspec.json.decode(
        msgspec.json.encode(errors.body(ApiError("bad_request", message, param)))
    )
    assert set(sent) == {"error"}
    assert set(sent["error"]) == {"message", "type", "param", "code"}
    assert len(sent["error"]["message"]) <= errors.LONGEST_MESSAGE


def test_half_a_surrogate_pair_does_not_break_an_error() -> None:
    error = ApiError("bad_request", "a\ud800b", "\udfff")
    assert (error.message, error.param) == ("a?b", "?")


def test_a_refusal_becomes_the_error_that_it_names() -> None:
    error = ApiError.refused(Refusal("model_not_found", "No.", "model"), recorded=True)
    assert (error.status, error.code, error.param, error.recorded) == (
        404,
        "model_not_found",
        "model",
        True,
    )
