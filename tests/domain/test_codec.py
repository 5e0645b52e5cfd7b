from typing import get_args

import msgspec
import pytest
from hypothesis import given

from domain import codec
from domain.commands import Command
from domain.events import EVENT_TYPES, ChunkGenerated, Event, TaskFailed
from tests import strategies


@given(strategies.events)
def test_every_event_round_trips_through_its_stored_bytes(event: Event) -> None:
    stored = codec.encode(event)
    assert codec.decode(stored.type, stored.schema_version, stored.payload, stored.content) == event


@given(strategies.commands)
def test_every_command_round_trips_through_its_encoding(command: Command) -> None:
    assert msgspec.json.decode(msgspec.json.encode(command), type=Command) == command


@given(strategies.events)
def test_content_stays_out_of_the_payload(event: Event) -> None:
    stored = codec.encode(event)
    assert not type(event).CONTENT & msgspec.json.decode(stored.payload).keys()


def test_content_fields_exist_on_their_events() -> None:
    for cls in EVENT_TYPES.values():
        assert set(cls.__struct_fields__) >= cls.CONTENT


def test_text_of_users_and_models_is_named_as_content() -> None:
    assert {"token_ids", "deltas", "logprobs", "error_message"} <= ChunkGenerated.CONTENT
    assert "message" in TaskFailed.CONTENT


def test_an_event_of_an_unknown_type_is_a_named_error() -> None:
    with pytest.raises(codec.UnknownEvent, match="SomethingNewer version 1"):
        codec.decode("SomethingNewer", 1, b"{}", None)


def test_an_event_of_a_newer_shape_is_a_named_error() -> None:
    with pytest.raises(codec.UnknownEvent, match="TaskFailed version 9"):
        codec.decode("TaskFailed", 9, b"{}", None)


def test_every_type_in_the_union_can_be_decoded() -> None:
    assert set(EVENT_TYPES) == {cls.__name__ for cls in get_args(Event)}
