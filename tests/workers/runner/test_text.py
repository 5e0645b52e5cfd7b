import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workers.runner.detokenizer import ByteDetokenizer
from workers.runner.text import TextFold

# Few letters, so that stop strings occur, overlap and repeat; and characters of 2 to 4 bytes.
letters = st.text(alphabet="ab é€😀", max_size=30)
texts = st.one_of(letters, st.text(max_size=30))
stops = st.lists(st.text(alphabet="ab é€😀", min_size=1, max_size=4), max_size=3)
cuts = st.lists(st.integers(0, 200), max_size=40)


def split(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Bytes cut in pieces anywhere, in the middle of characters too."""
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[begin:end] for begin, end in itertools.pairwise(borders)]


def fold_of(pieces: Sequence[bytes], stop: Sequence[str], emitted: int = 0) -> TextFold:
    return TextFold(ByteDetokenizer(dict(enumerate(pieces))), stop, emitted)


def run(fold: TextFold, tokens: Sequence[int]) -> list[str]:
    """What each token releases, and at last what was held back."""
    released = []
    for token in tokens:
        released.append(fold.feed(token))
        if fold.stopped:
            break
    return [*released, fold.finish()]


def expected(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The definition: the text before the stop string that is the first to be complete."""
    for end in range(1, len(text) + 1):
        if found := [s for s in stop if text[:end].endswith(s)]:
            return text[: end - max(map(len, found))], True
    return text, False


@given(texts, cuts, stops)
@example("xabab", [3], ["abab", "ba"])
@example("aab", [2], ["ab"])
def test_any_split_into_tokens_gives_the_text_up_to_its_first_stop(
    text: str, places: list[int], stop: list[str]
) -> None:
    pieces = split(text.encode(), places)
    fold = fold_of(pieces, stop)
    assert ("".join(run(fold, range(len(pieces)))), fold.stopped) == expected(text, stop)


@given(letters, cuts, stops)
def test_what_was_released_never_has_to_be_taken_back(
    text: str, places: list[int], stop: list[str]
) -> None:
    pieces = split(text.encode(), places)
    answer, _ = expected(text, stop)
    so_far = ""
    for released in run(fold_of(pieces, stop), range(len(pieces))):
        so_far += released
        assert answer.startswith(so_far)
        assert not any(s in so_far for s in stop)


@given(letters, cuts, stops)
def test_nothing_is_held_back_without_need(text: str, places: list[int], stop: list[str]) -> None:
    pieces = split(text.encode(), places)
    fold = fold_of(pieces, stop)
    seen, so_far = b"", ""
    for token, piece in enumerate(pieces):
        so_far += fold.feed(token)
        seen += piece
        if fold.stopped:
            break
        whole = seen.decode(errors="ignore")
        held = whole[len(so_far) :]
        assert not held or any(s.startswith(held) for s in stop)


@given(texts, cuts, stops, st.data())
def test_a_replay_at_any_cut_goes_on_as_if_nothing_had_happened(
    text: str, places: list[int], stop: list[str], data: st.DataObject
) -> None:
    pieces = split(text.encode(), places)
    tokens = range(len(pieces))
    first = fold_of(pieces, stop)
    emitted = ""
    for token in tokens[: data.draw(st.integers(0, len(pieces)))]:
        emitted += first.feed(token)
        if first.stopped:
            return  # an ended row is never resumed
    # The log may have less of the text than the tokens in it would release.
    emitted = emitted[: data.draw(st.integers(0, len(emitted)))]
    second = fold_of(pieces, stop, len(emitted))
    assert emitted + "".join(run(second, tokens)) == expected(text, stop)[0]


@given(st.binary(max_size=30), cuts)
def test_bytes_that_are_no_text_become_replacement_characters(
    data: bytes, places: list[int]
) -> None:
    pieces = split(data, places)
    text = "".join(run(fold_of(pieces, ()), range(len(pieces))))
    assert text == data.decode(errors="replace")


def test_a_character_split_over_tokens_appears_once_it_is_whole() -> None:
    fold = fold_of([b"\xf0", b"\x9f\x98", b"\x80", b"\xf0\x9f"], ())
    assert [fold.feed(token) for token in range(4)] == ["", "", "😀", ""]
    assert fold.finish() == "\ufffd"


def test_half_a_stop_string_is_text_when_the_answer_ends() -> None:
    fold = fold_of([b"so</s"], ["</stop>"])
    assert (fold.feed(0), fold.finish(), fold.stopped) == ("so", "</s", False)


def test_a_stop_string_may_come_of_what_was_held_back() -> None:
    fold = fold_of([b"a\xf0"], ["\ufffd"])
    assert (fold.feed(0), fold.finish(), fold.stopped) == ("a", "", True)


@pytest.mark.parametrize("stop", [(), ("",)])
def test_no_stop_strings_hold_nothing_back(stop: Sequence[str]) -> None:
    fold = fold_of([b"abc", b""], stop)
    assert (fold.feed(0), fold.feed(1), fold.finish()) == ("abc", "", "")


def test_text_logged_by_another_version_of_the_fold_is_not_said_again() -> None:
    fold = fold_of([b"abc", b"def"], (), emitted=4)
    assert [fold.feed(token) for token in range(2)] == ["", "ef"]
