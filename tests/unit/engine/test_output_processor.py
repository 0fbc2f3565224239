"""From tokens to text: stop strings, end tokens, characters in pieces, merged deltas."""

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.byte_tokenizer import END_ID, ByteTokenizer
from chairlift.engine.output_processor import ChoiceProcessor, DeltaBuffer
from chairlift.engine.outputs import ChoiceDelta

TOKENIZER = ByteTokenizer()


def processor(**sampling: object) -> ChoiceProcessor:
    return ChoiceProcessor(0, SamplingParams(**sampling), TOKENIZER, [1])  # type: ignore[arg-type]


def feed(choice: ChoiceProcessor, text: str) -> list[ChoiceDelta]:
    """One byte per step, until the choice ends or the text does (then by length)."""
    deltas: list[ChoiceDelta] = []
    data = text.encode()
    for position, byte in enumerate(data, 1):
        reason = "length" if position == len(data) else None
        deltas.append(choice.process([byte], finish_reason=reason, num_cached_tokens=4))
        if choice.finish_reason is not None:
            break
    return deltas


def joined(deltas: list[ChoiceDelta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize(("stop", "text", "reason"), [("PQRST", "", "PQRST"), ("RST", "PQ", "RST")])
def test_no_character_of_a_stop_string_goes_out(stop: str, text: str, reason: str) -> None:
    choice = processor(stop=[stop])
    deltas = feed(choice, "PQRSTUV")
    assert joined(deltas) == text
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", reason)
    assert choice.ended_here
    assert choice.num_output_tokens == 5


def test_stop_string_is_kept_when_asked_for() -> None:
    assert joined(feed(processor(stop=["RS"], include_stop_str_in_output=True), "PQRSTUV")) == "PQRS"


def test_beginning_of_a_stop_string_that_never_completes_is_given_out_at_the_end() -> None:
    choice = processor(stop=["XYZ"])
    deltas = feed(choice, "aXY")
    assert [delta.text for delta in deltas] == ["a", "", "XY"]
    assert deltas[-1].finish_reason == "length"
    assert not choice.ended_here


def test_stop_string_on_the_last_allowed_token_wins_over_length_and_needs_no_word_to_the_engine() -> None:
    choice = processor(stop=["c"])
    deltas = feed(choice, "abc")
    assert deltas[-1].finish_reason == "stop"
    assert not choice.ended_here


def test_stop_string_before_min_tokens_does_not_count() -> None:
    choice = processor(stop=["b"], min_tokens=4, max_tokens=20)
    assert joined(feed(choice, "abcbdb")) == "abc"
    assert choice.num_output_tokens == 4


def test_tokens_after_a_stop_string_in_the_same_step_are_dropped() -> None:
    choice = processor(stop=["b"])
    delta = choice.process([ord(c) for c in "abcd"], finish_reason="length")
    assert (delta.text, delta.token_ids, delta.num_output_tokens) == ("a", (97, 98), 2)


@pytest.mark.parametrize(
    ("sampling", "token", "text", "stop_reason"),
    [
        ({}, END_ID, "a", None),
        ({"skip_special_tokens": False}, END_ID, "a", None),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, END_ID, "a<|end|>", None),
        ({"stop_token_ids": [98]}, 98, "a", 98),
        ({"stop_token_ids": [98], "include_stop_str_in_output": True}, 98, "ab", 98),
        ({"stop_token_ids": [98]}, END_ID, "a", None),
    ],
)
def test_stop_tokens_are_counted_but_not_shown(
    sampling: dict[str, object], token: int, text: str, stop_reason: int | None
) -> None:
    choice = processor(**sampling)
    first = choice.process([97])
    last = choice.process([token], finish_reason="stop", stop_token=token)
    assert first.text + last.text == text
    assert last.token_ids == (token,)
    assert (last.num_output_tokens, last.finish_reason, last.stop_reason) == (2, "stop", stop_reason)


def test_cut_character_gives_one_replacement_at_the_end() -> None:
    choice = processor()
    first = choice.process([0xF0])
    last = choice.process([0x9F], finish_reason="length")
    assert (first.text, last.text) == ("", "\N{REPLACEMENT CHARACTER}")


def test_without_detokenizing_there_are_only_tokens() -> None:
    delta = processor(detokenize=False).process([97, 98], finish_reason="length")
    assert (delta.text, delta.token_ids) == ("", (97, 98))


def test_cached_tokens_stay_what_they_were_at_first() -> None:
    choice = processor()
    assert choice.process([97], num_cached_tokens=16).num_cached_tokens == 16
    assert choice.process([97], num_cached_tokens=32).num_cached_tokens == 16


def test_abort_gives_out_what_was_held_back() -> None:
    choice = processor(stop=["XYZ"])
    choice.process([ord("X")])
    delta = choice.process((), finish_reason="abort")
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("X", (), "abort")


def test_unread_deltas_of_a_choice_become_one_and_no_choice_is_passed_over() -> None:
    buffer = DeltaBuffer()
    buffer.put(ChoiceDelta(0, "a", (1,), 1))
    buffer.put(ChoiceDelta(1, "x", (7,), 1))
    buffer.put(ChoiceDelta(0, "", (2,), 2))
    buffer.put(ChoiceDelta(0, "b", (3,), 3, 16, "stop", "b"))
    assert buffer.take() == ChoiceDelta(0, "ab", (1, 2, 3), 3, 16, "stop", "b")
    assert buffer
    assert buffer.take() == ChoiceDelta(1, "x", (7,), 1)
    assert not buffer
