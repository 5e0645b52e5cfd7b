import contextlib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from workers import protocol
from workers.protocol import Down, ProtocolError, Up

down = st.one_of([strategies.structs(cls) for cls in get_args(Down)])
up = st.one_of([strategies.structs(cls) for cls in get_args(Up)])


def body(packed: bytes) -> bytes:
    assert protocol.length(packed[:4]) == len(packed) - 4
    return packed[4:]


@given(down)
def test_every_message_to_a_runner_round_trips(message: Down) -> None:
    assert protocol.unpack_down(body(protocol.pack(message))) == message


@given(up)
def test_every_message_from_a_runner_round_trips(message: Up) -> None:
    assert protocol.unpack_up(body(protocol.pack(message))) == message


@given(st.binary(max_size=50))
def test_whatever_else_comes_is_a_named_error(data: bytes) -> None:
    for unpack in (protocol.unpack_down, protocol.unpack_up):
        with contextlib.suppress(ProtocolError):
            unpack(data)


def test_a_message_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        protocol.length((protocol.MAX_MESSAGE + 1).to_bytes(4))
