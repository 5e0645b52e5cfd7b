"""The hash chain over the log: each event's hash covers its bytes and the hash before it."""

from __future__ import annotations

from hashlib import sha256

GENESIS = bytes(32)
"""The hash before the first event."""

_TAG = b"inferlog/1"


def _bytes(value: bytes | None) -> bytes:
    return len(value).to_bytes(4) + value if value is not None else b"\0\0\0\0"


def _int(value: int) -> bytes:
    return b"\0\0\0\x08" + value.to_bytes(8, signed=True)


def link(
    previous: bytes,
    *,
    position: int,
    stream: str,
    version: int,
    type: str,
    schema_version: int,
    recorded_at: int,
    key_ref: str | None,
    payload: bytes,
    content: bytes | None,
) -> bytes:
    """Hash one event into the chain.

    The input is a version tag, then each field as a 4-byte big-endian length and its bytes;
    integers are 8 bytes big-endian, an absent field has length 0. PostgreSQL can compute the
    same with `int8send`, `convert_to` and `sha256`.

    Args:
        previous: hash of the event before, or `GENESIS`.
        recorded_at: microseconds since the epoch.

    Returns:
        32 bytes.
    """
    return sha256(
        b"".join(
            (
                _TAG,
                _bytes(previous),
                _int(position),
                _bytes(stream.encode()),
                _int(version),
                _bytes(type.encode()),
                _int(schema_version),
                _int(recorded_at),
                _bytes(key_ref.encode() if key_ref is not None else None),
                _bytes(payload),
                _bytes(content),
            )
        )
    ).digest()
