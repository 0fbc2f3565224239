"""The toy tokenizer: bytes in, whole characters out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.engine.byte_tokenizer import END_ID, VOCAB_SIZE, ByteTokenizer
from chairlift.errors import InvalidRequestError

TOKENIZER = ByteTokenizer()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_undoes_encoding(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token_id < VOCAB_SIZE for token_id in ids)


@given(st.lists(st.integers(0, VOCAB_SIZE - 1)))
def test_pieces_add_up_to_the_whole(ids: list[int]) -> None:
    detokenizer = TOKENIZER.detokenizer()
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == TOKENIZER.decode(ids)


def test_half_a_character_is_held_back() -> None:
    detokenizer = TOKENIZER.detokenizer()
    assert [detokenizer.push(byte) for byte in "é".encode()] == ["", "é"]
    assert detokenizer.push(0xC3) == ""
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"


def test_special_tokens_are_read_and_can_be_left_out() -> None:
    assert TOKENIZER.encode("<|end|>") == [END_ID]
    assert TOKENIZER.decode([104, END_ID, 105]) == "hi"
    assert TOKENIZER.decode([104, END_ID, 105], skip_special_tokens=False) == "h<|end|>i"


def test_chat_becomes_one_text() -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert TOKENIZER.apply_chat_template(chat) == "<|system|>s<|end|><|user|>u<|end|><|assistant|>"
    assert TOKENIZER.apply_chat_template(chat, add_generation_prompt=False).endswith("u<|end|>")
    assert TOKENIZER.apply_chat_template(chat, continue_final_message=True).endswith("<|user|>u")
    with pytest.raises(InvalidRequestError, match="role"):
        TOKENIZER.apply_chat_template([{"role": "nobody", "content": ""}])
