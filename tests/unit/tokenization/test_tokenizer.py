"""What every tokenizer refuses, and single tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.errors import InvalidRequestError
from chairlift.tokenization.sentencepiece_merges import derive_merges
from tests.unit.tokenization.vocabularies import byte_level_backend, id_of, sentencepiece_backend, wrap

TOKENIZER = wrap(byte_level_backend())
SIZE = TOKENIZER.vocab_size


@pytest.mark.parametrize("token_id", [-1, SIZE, 999_999, 2**63])
def test_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"token id {token_id} at position 2 is outside .*\[0, {SIZE}\)"):
        TOKENIZER.check_token_ids([1, 2, token_id])


def test_ids_inside_the_vocabulary_pass() -> None:
    TOKENIZER.check_token_ids([])
    TOKENIZER.check_token_ids(range(SIZE))


@pytest.mark.parametrize("text", ["\ud800", "fine until \udfff here"])
def test_lone_surrogates_are_a_bad_request(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"lone surrogate U\+D"):
        TOKENIZER.encode(text)


@given(st.integers(min_value=-5, max_value=2**70))
def test_any_id_decodes_to_something(token_id: int) -> None:
    assert isinstance(TOKENIZER.decode([token_id]), str)
    if not 0 <= token_id < SIZE:
        assert TOKENIZER.decode([token_id]) == ""


def test_single_tokens_show_their_text_and_bytes() -> None:
    pieces = wrap(sentencepiece_backend())
    the = id_of(sentencepiece_backend(), "▁the")
    assert (pieces.token_text(the), pieces.token_bytes(the)) == (" the", b" the")
    assert (TOKENIZER.token_text(0xF0), TOKENIZER.token_bytes(0xF0)) == ("\ufffd", b"\xf0")


def test_merges_join_the_best_scored_union_first() -> None:
    ids = {"a": 0, "b": 1, "c": 2, "bc": 3, "ab": 4, "abc": 5}
    assert derive_merges(ids, [0, 0, 0, -1.0, -2.0, -3.0]) == [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]
