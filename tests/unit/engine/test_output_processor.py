"""From tokens to text: stop strings, end tokens, characters in pieces, merged deltas."""

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import PromptLogprobs, TokenLogprobs
from chairlift.engine.byte_tokenizer import END_ID, ByteTokenizer
from chairlift.engine.output_processor import ChoiceProcessor, DeltaBuffer, PromptLogprobsGate
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
def test_b36_no_character_of_a_stop_string_goes_out(stop: str, text: str, reason: str) -> None:
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


def test_all_unread_deltas_are_taken_together_in_order() -> None:
    buffer = DeltaBuffer()
    buffer.put(ChoiceDelta(1, "x", (7,), 1))
    buffer.put(ChoiceDelta(0, "a", (1,), 1))
    buffer.put(ChoiceDelta(1, "y", (8,), 2, 16, "stop"))
    assert buffer.take_all() == [ChoiceDelta(1, "xy", (7, 8), 2, 16, "stop"), ChoiceDelta(0, "a", (1,), 1)]
    assert not buffer
    assert buffer.take_all() == []


def found(*logprobs: float) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(logprob, 1) for logprob in logprobs)


def test_an_offset_is_where_the_tokens_character_begins_whatever_is_held_back() -> None:
    choice = processor(logprobs=0, stop=["€5!"])
    deltas = [choice.process([byte], logprobs=found(-1.0)) for byte in "a€5".encode()]
    assert [delta.text for delta in deltas] == ["a", "", "", "", ""]
    assert [delta.text_offsets for delta in deltas] == [(0,), (1,), (1,), (1,), (2,)]
    assert all(len(delta.logprobs) == 1 for delta in deltas)


def test_logprobs_behind_a_stop_string_are_dropped_with_their_tokens() -> None:
    delta = processor(logprobs=0, stop=["b"]).process([97, 98, 99], logprobs=found(-1.0, -2.0, -3.0))
    assert (delta.token_ids, delta.logprobs, delta.text_offsets) == ((97, 98), found(-1.0, -2.0), (0, 1))


def test_prompt_logprobs_come_once_with_the_first_token_however_often_they_were_computed() -> None:
    choice = processor(prompt_logprobs=0)
    choice.note_prompt(PromptLogprobs(1, found(-1.0, -2.0)))
    choice.note_prompt(PromptLogprobs(1, found(-1.0, -2.0, -3.0)))
    choice.note_prompt(PromptLogprobs(3, found(-3.0, -4.0)))
    assert choice.process([97]).prompt_logprobs == found(-1.0, -2.0, -3.0, -4.0)
    assert choice.process([97]).prompt_logprobs is None


def test_choices_wait_until_the_first_one_knows_the_prompts_logprobs() -> None:
    gate = PromptLogprobsGate()
    early = [ChoiceDelta(1, "x", (1,), 1), ChoiceDelta(2, "y", (1,), 1), ChoiceDelta(1, "z", (2,), 2)]
    assert [gate.let_through(delta) for delta in early] == [[], [], []]
    told = gate.let_through(ChoiceDelta(0, "a", (1,), 1, prompt_logprobs=found(-1.0)))
    assert [(delta.index, delta.text) for delta in told] == [(0, "a"), (1, "x"), (2, "y"), (1, "z")]
    assert [delta.prompt_logprobs for delta in told] == [found(-1.0)] * 3 + [None]
    assert gate.let_through(ChoiceDelta(0, "b", (1,), 2)) == [ChoiceDelta(0, "b", (1,), 2)]


def test_choices_do_not_wait_for_a_first_one_that_ended_without_a_token() -> None:
    gate = PromptLogprobsGate()
    held, end = ChoiceDelta(1, "x", (1,), 1), ChoiceDelta(0, "", (), 0, finish_reason="abort")
    assert gate.let_through(held) == []
    assert gate.let_through(end) == [end, held]


def test_merged_deltas_keep_every_logprob() -> None:
    buffer = DeltaBuffer()
    buffer.put(ChoiceDelta(0, "a", (1,), 1, logprobs=found(-1.0), text_offsets=(0,), prompt_logprobs=found(-9.0)))
    buffer.put(ChoiceDelta(0, "b", (2,), 2, logprobs=found(-2.0), text_offsets=(1,)))
    merged = buffer.take()
    assert (merged.logprobs, merged.text_offsets) == (found(-1.0, -2.0), (0, 1))
    assert merged.prompt_logprobs == found(-9.0)
