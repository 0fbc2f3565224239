"""Stop strings: found wherever tokens are cut, never leaked, and nothing held back is lost."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chairlift.tokenization import StopChecker, StopResult

chunks = st.lists(st.text("ab", max_size=4), max_size=25)
stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4).map(tuple)


def run(checker: StopChecker, texts: list[str]) -> tuple[str, str | None]:
    emitted = ""
    for count, text in enumerate(texts, start=1):
        result = checker.push(text, count)
        emitted += result.emit
        if result.stopped is not None:
            return emitted, result.stopped
    return emitted + checker.flush(), None


def run_on_whole_text(
    texts: list[str], stop: tuple[str, ...], include_stop: bool, min_tokens: int
) -> tuple[str, str | None]:
    """The slow obvious model: after every character, look whether all text so far ends with a stop string."""
    text = ""
    for count, piece in enumerate(texts, start=1):
        for character in piece:
            text += character
            found = [candidate for candidate in stop if text.endswith(candidate)]
            if found and count >= min_tokens:
                longest = max(found, key=len)
                return (text if include_stop else text.removesuffix(longest)), longest
    return text, None


@given(chunks, stops, st.booleans(), st.integers(min_value=0, max_value=12))
@example(["P", "Q", "R", "S", "T"], ("PQRST",), False, 0)
@example(["P", "Q", "R", "S", "T"], ("RST", "PQRST"), False, 0)
@example(["a", "b", "a", "b", "a"], ("ababa", "ba"), True, 3)
@example(["a", "a", "a"], ("aa",), False, 3)  # the ignored match may be the beginning of one that counts
@example(["aaab"], ("aab",), False, 0)  # a mismatch falls back to a shorter beginning
def test_streaming_gives_what_the_whole_text_gives(
    texts: list[str], stop: tuple[str, ...], include_stop: bool, min_tokens: int
) -> None:
    streamed = run(StopChecker(stop, include_stop, min_tokens), texts)
    assert streamed == run_on_whole_text(texts, stop, include_stop, min_tokens)


@given(chunks, stops)
def test_exactly_the_longest_possible_beginning_of_a_stop_is_held(texts: list[str], stop: tuple[str, ...]) -> None:
    checker = StopChecker(stop)
    text = emitted = ""
    for count, piece in enumerate(texts, start=1):
        result = checker.push(piece, count)
        if result.stopped is not None:
            return
        text += piece
        emitted += result.emit
        beginnings = {candidate[:length] for candidate in stop for length in range(len(candidate))}
        held = max((beginning for beginning in beginnings if text.endswith(beginning)), key=len, default="")
        assert emitted + held == text


@given(st.text("ab", max_size=20), stops, st.booleans(), st.data())
def test_the_answer_does_not_depend_on_how_tokens_cut_the_text(
    text: str, stop: tuple[str, ...], include_stop: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(min_value=0, max_value=len(text)))))
    texts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(StopChecker(stop, include_stop), texts) == run(StopChecker(stop, include_stop), [text])


@pytest.mark.parametrize(("stop", "text"), [("PQRST", ""), ("RST", "PQ")])
def test_b36_no_character_of_a_stop_is_sent(stop: str, text: str) -> None:
    checker = StopChecker((stop,))
    results = [checker.push(letter, count) for count, letter in enumerate("PQRST", start=1)]
    assert "".join(result.emit for result in results) == text
    assert results[-1].stopped == stop


@pytest.mark.parametrize(("stop", "text"), [("Lond", ""), ("n.", "Londo"), ("ondon", "L")])
def test_b38_a_stop_inside_or_across_tokens_is_noticed(stop: str, text: str) -> None:
    assert run(StopChecker((stop,)), ["Lon", "don."]) == (text, stop)
    assert run(StopChecker((stop,), include_stop=True), ["Lon", "don."]) == (text + stop, stop)


def test_an_early_stop_does_not_count_before_min_tokens() -> None:
    texts = ["a", "\n", "b", "\n", "c"]
    assert run(StopChecker(("\n",), min_tokens=4), texts) == ("a\nb", "\n")
    # Complete at token 2, so token 3 does not stop on what is past.
    assert run(StopChecker(("\n",), min_tokens=3), ["a", "\n", "b"]) == ("a\nb", None)
    # Begun before min_tokens and complete after it.
    assert run(StopChecker(("xy",), min_tokens=2), ["x", "y"]) == ("", "xy")


def test_without_stops_text_passes_at_once() -> None:
    assert StopChecker().push("text", 1) == StopResult("text", None)


def test_after_a_stop_nothing_more_comes_out() -> None:
    checker = StopChecker(("b",))
    assert checker.push("abc", 1) == StopResult("a", "b")
    assert checker.push("def", 2) == StopResult("", None)
    assert checker.flush() == ""


def test_flush_gives_the_held_text_once() -> None:
    checker = StopChecker(("stop",))
    assert checker.push("do sto", 1) == StopResult("do ")
    assert (checker.flush(), checker.flush()) == ("sto", "")


def test_long_repetitive_stops_cost_little() -> None:
    # Naive matching would compare about 10^9 characters here; the pytest timeout catches it.
    stop = "a" * 30_000 + "b"
    checker = StopChecker((stop,))
    emitted = "".join(checker.push("a" * 100, count).emit for count in range(1, 1001))
    assert emitted + checker.flush() == "a" * 100_000


def test_choices_that_look_for_the_same_string_share_what_is_known_of_it():
    """A request may have thousands of choices, each with 64 stop strings of a thousand characters."""
    first, second = (StopChecker(("ab" * 500,))._matchers[0] for _ in range(2))
    assert first._borders is second._borders
