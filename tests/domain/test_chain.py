"""Golden vectors of the hash chain. Should one change, every log there is stops verifying."""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chain import GENESIS, link

FIRST: dict[str, Any] = {
    "position": 1,
    "stream": "node/n1",
    "version": 1,
    "type": "NodeStarted",
    "schema_version": 1,
    "recorded_at": 1_700_000_000_000_000,
    "key_ref": None,
    "payload": b'{"node_id":"n1","epoch":1}',
    "content": None,
}
SECOND: dict[str, Any] = {
    "position": 2,
    "stream": "completion/0190-ü",
    "version": 1,
    "type": "ChunkGenerated",
    "schema_version": 2,
    "recorded_at": 1_700_000_000_000_001,
    "key_ref": "subject/7",
    "payload": b'{"attempt":1,"first_index":0}',
    "content": b"\x81\xa9token_ids\x91\x07",
}


def test_the_genesis_hash_is_32_zero_bytes() -> None:
    assert bytes(32) == GENESIS


def test_the_chain_is_what_it_always_was() -> None:
    first = link(GENESIS, **FIRST)
    assert first.hex() == "8d2f33968ce19a9d597d13bcb79540abdf73289645f071344ca08633a5b97231"
    assert (
        link(first, **SECOND).hex()
        == "963239b1e3a96709f38038a63c026b35f28d896fa2dd7ea8b6abaac080c02dce"
    )


def test_the_input_is_what_the_design_says() -> None:
    """Built here by other means, as another implementation would read the words."""

    def field(value: bytes | str | int | None) -> bytes:
        match value:
            case None:
                value = b""
            case str():
                value = value.encode()
            case int():
                value = struct.pack(">q", value)
            case bytes():
                pass
        return struct.pack(">I", len(value)) + value

    order = "position stream version type schema_version recorded_at key_ref payload content"
    previous = b"\x07" * 32
    parts = [previous, *(SECOND[name] for name in order.split())]
    expected = sha256(b"inferlog/1" + b"".join(field(part) for part in parts)).digest()
    assert link(previous, **SECOND) == expected


@pytest.mark.parametrize("name", SECOND)
def test_every_field_counts(name: str) -> None:
    value = SECOND[name]
    other = value + (1 if isinstance(value, int) else value[:1])
    assert link(GENESIS, **SECOND) != link(GENESIS, **{**SECOND, name: other})


def test_the_event_before_counts() -> None:
    assert link(GENESIS, **SECOND) != link(b"\x01" + bytes(31), **SECOND)


@given(st.binary(max_size=8), st.binary(max_size=8), st.integers(min_value=1, max_value=8))
def test_no_byte_can_move_from_one_field_to_the_next(
    payload: bytes, content: bytes, count: int
) -> None:
    moved = content[:count]
    if moved:
        before = {**FIRST, "payload": payload, "content": content}
        after = {**FIRST, "payload": payload + moved, "content": content[count:]}
        assert link(GENESIS, **before) != link(GENESIS, **after)
