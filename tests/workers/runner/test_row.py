from domain.events import Content
from tests.workers.runner.fakes import order
from workers.protocol import Insert
from workers.runner.detokenizer import ByteDetokenizer
from workers.runner.row import LONGEST_MESSAGE, ActiveRow

EOS = 0


def row_of(insert: Insert) -> ActiveRow:
    pieces = {token: bytes([token]) for token in range(1, 256)}
    row = ActiveRow(insert, ByteDetokenizer(pieces), frozenset({EOS}), now=5_000)
    row.replay()
    return row


def test_a_row_counts_its_tokens_and_its_time() -> None:
    row = row_of(order(7, max_tokens=3, choice=2))
    share = row.take(ord("a"), now=12_000)
    assert (share.uid, share.choice, share.first_index, share.token_ids) == (7, 2, 0, (97,))
    assert (share.deltas, share.finish_reason, share.offset) == ((Content("a"),), None, 7)
    assert row.take(ord("b"), now=13_000).first_index == 1


def test_the_end_token_counts_and_is_no_text() -> None:
    row = row_of(order(1))
    share = row.take(EOS, now=0)
    assert (share.token_ids, share.deltas, share.finish_reason) == ((EOS,), (), "stop")


def test_the_last_token_allowed_ends_a_row() -> None:
    row = row_of(order(1, max_tokens=1))
    assert row.take(ord("a"), now=0).finish_reason == "length"


def test_a_stop_string_completed_by_the_last_token_allowed_is_a_stop() -> None:
    row = row_of(order(1, max_tokens=2, stop=("ab",)))
    assert row.take(ord("a"), now=0).deltas == ()
    share = row.take(ord("b"), now=0)
    assert (share.deltas, share.finish_reason) == ((), "stop")


def test_an_end_token_that_is_the_last_one_allowed_is_a_stop() -> None:
    assert row_of(order(1, max_tokens=1)).take(EOS, now=0).finish_reason == "stop"


def test_what_was_held_back_comes_with_the_end() -> None:
    row = row_of(order(1, max_tokens=2, stop=("abc",)))
    row.take(ord("a"), now=0)
    share = row.take(ord("b"), now=0)
    assert (share.deltas, share.finish_reason) == ((Content("ab"),), "length")


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    share = row_of(order(1, max_tokens=1)).take(0xF0, now=0)
    assert share.deltas == (Content("\ufffd"),)


def test_logged_tokens_count_and_are_not_said_again() -> None:
    row = row_of(order(1, max_tokens=4, logged=(97, 98), emitted=1))
    assert row.request().tokens == (1, 97, 98)
    assert row.request().known == 2
    share = row.take(ord("c"), now=0)
    assert (share.first_index, share.deltas) == (2, (Content("bc"),))
    assert row.take(ord("d"), now=0).finish_reason == "length"


def test_logged_tokens_may_have_ended_the_answer() -> None:
    for insert, reason in (
        (order(1, logged=(97, EOS), emitted=1), "stop"),
        (order(1, max_tokens=2, logged=(97, 98), emitted=2), "length"),
        (order(1, logged=(97, 98), emitted=0, stop=("ab",)), "stop"),
    ):
        row = row_of(insert)
        assert row.finished == reason
        ended = row.ended(now=0)
        assert (ended.first_index, ended.token_ids, ended.finish_reason) == (2, (), reason)
        assert ended.deltas == ()


def test_an_error_names_the_next_token_and_is_bounded() -> None:
    row = row_of(order(1, logged=(97, 98), emitted=2))
    share = row.fail("x" * 10_000, now=0)
    assert (share.first_index, share.finish_reason) == (2, "error")
    assert share.error_message == "x" * LONGEST_MESSAGE
