"""Tokenizers from GGUF headers, against the same vocabularies built directly."""

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType
from hypothesis import given
from hypothesis import strategies as st

from chairlift.config.model_source import ModelSource
from chairlift.errors import ModelLoadError
from chairlift.tokenization import Tokenizer, load_tokenizer
from chairlift.tokenization.pre_tokenizers import find_pre_tokenization
from tests.unit.tokenization.vocabularies import (
    BYTE_MERGES,
    END,
    START,
    THINK,
    byte_level_backend,
    sentencepiece_backend,
    wrap,
)

BYTE_TEXTS = [byte_level_backend().id_to_token(token_id) for token_id in range(byte_level_backend().get_vocab_size())]
PIECE_TEXTS = [sentencepiece_backend().id_to_token(index) for index in range(sentencepiece_backend().get_vocab_size())]
BYTE_TYPES = [TokenType.NORMAL] * (len(BYTE_TEXTS) - 3) + [TokenType.CONTROL] * 2 + [TokenType.USER_DEFINED]
PIECE_TYPES = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
PIECE_TYPES += [TokenType.NORMAL] * (len(PIECE_TEXTS) - len(PIECE_TYPES))
START_ID, END_ID = BYTE_TEXTS.index(START), BYTE_TEXTS.index(END)

# SentencePiece writes a space as ▁, so that it cannot tell the two apart.
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁"), max_size=30) | st.text(
    "the lon d.é中\n<|start|>", max_size=30
)


def write(path: Path, **keys: Any) -> ModelSource:
    """Write a header; keys go under ``tokenizer.ggml.`` unless they hold a dot."""
    writer = GGUFWriter(path, "llama")
    for key, value in keys.items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return ModelSource("gguf", path, "test")


def byte_level(path: Path, **keys: Any) -> Tokenizer:
    header: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": BYTE_TEXTS, "merges": BYTE_MERGES}
    header |= {"token_type": [int(kind) for kind in BYTE_TYPES], "bos_token_id": START_ID, "eos_token_id": END_ID}
    return load_tokenizer(write(path / "byte.gguf", **header | keys))


def sentencepiece(path: Path, **keys: Any) -> Tokenizer:
    header: dict[str, Any] = {"model": "llama", "tokens": PIECE_TEXTS, "unknown_token_id": 0, "bos_token_id": 1}
    header |= {"scores": [-float(index) for index in range(len(PIECE_TEXTS))], "eos_token_id": 2}
    header |= {"token_type": [int(kind) for kind in PIECE_TYPES]}
    return load_tokenizer(write(path / "pieces.gguf", **header | keys))


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_level(tmp_path_factory.mktemp("byte"))


@pytest.fixture(scope="module")
def piece_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return sentencepiece(tmp_path_factory.mktemp("pieces"))


@given(text=texts)
def test_byte_level_tokens_are_those_of_the_tokenizer_itself(byte_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_tokenizer.encode(text)
    assert ids == byte_level_backend().encode(text).ids
    assert byte_tokenizer.decode(ids, skip_special_tokens=False) == text


@given(text=texts)
def test_sentencepiece_tokens_are_those_of_the_tokenizer_itself(piece_tokenizer: Tokenizer, text: str) -> None:
    ids = piece_tokenizer.encode(text, add_special_tokens=False)
    assert ids == sentencepiece_backend().encode(text).ids
    assert piece_tokenizer.decode(ids) == text


def test_token_types_decide_what_is_special(byte_tokenizer: Tokenizer, piece_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.special_ids == {START_ID, END_ID}
    assert byte_tokenizer.encode(f"{START}{THINK}") == [START_ID, BYTE_TEXTS.index(THINK)]
    assert byte_tokenizer.decode([START_ID, BYTE_TEXTS.index(THINK), END_ID]) == THINK
    assert piece_tokenizer.special_ids == {0, 1, 2}


def test_named_ids_and_sizes_come_from_the_header(byte_tokenizer: Tokenizer, piece_tokenizer: Tokenizer) -> None:
    assert (byte_tokenizer.bos_token_id, byte_tokenizer.vocab_size) == (START_ID, len(BYTE_TEXTS))
    # <|end|> is an end token by its id and by its text.
    assert byte_tokenizer.eos_token_ids == {END_ID}
    assert piece_tokenizer.eos_token_ids == {2}


def test_all_end_tokens_of_the_header_end_and_known_texts_too(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path, eos_token_id=5, eot_token_id=6, eom_token_id=7)
    assert tokenizer.eos_token_ids == {5, 6, 7, END_ID}
    assert byte_level(tmp_path, eos_token_id=99_999).eos_token_ids == {END_ID}


def test_begin_and_end_tokens_follow_the_header_or_the_kind(
    tmp_path: Path, byte_tokenizer: Tokenizer, piece_tokenizer: Tokenizer
) -> None:
    assert byte_tokenizer.encode("a") == [97]
    assert piece_tokenizer.encode("the")[0] == 1
    assert byte_level(tmp_path, pre="llama-bpe").encode("a") == [START_ID, 97]
    assert byte_level(tmp_path, pre="llama-bpe", add_bos_token=False).encode("a") == [97]
    assert byte_level(tmp_path, add_bos_token=True, add_eos_token=True).encode("a") == [START_ID, 97, END_ID]


def test_llama3_takes_whole_words_of_the_vocabulary_before_merges(tmp_path: Path) -> None:
    # No merge leads to this word.
    words = [*BYTE_TEXTS, "lond"]
    types = [int(kind) for kind in [*BYTE_TYPES, TokenType.NORMAL]]
    keys: dict[str, Any] = {"tokens": words, "token_type": types, "add_bos_token": False}
    assert byte_level(tmp_path, pre="llama-bpe", **keys).encode("lond") == [len(BYTE_TEXTS)]
    assert byte_level(tmp_path, pre="qwen2", **keys).encode("lond") == [BYTE_TEXTS.index("lon"), ord("d")]


def test_without_a_prefix_space_words_stay_as_they_are(tmp_path: Path) -> None:
    tokenizer = sentencepiece(tmp_path, add_space_prefix=False)
    ids = tokenizer.encode("the the", add_special_tokens=False)
    assert [PIECE_TEXTS[token_id] for token_id in ids] == ["the", "▁the"]
    assert tokenizer.decode(ids) == "the the"


def test_each_text_after_a_special_token_gets_its_prefix_space(piece_tokenizer: Tokenizer) -> None:
    ids = piece_tokenizer.encode("the</s>the", add_special_tokens=False)
    assert [PIECE_TEXTS[token_id] for token_id in ids] == ["▁the", "</s>", "▁the"]


def test_listed_merges_replace_those_that_scores_imply(tmp_path: Path) -> None:
    tokenizer = sentencepiece(tmp_path, merges=["t h"])
    assert [PIECE_TEXTS[token_id] for token_id in tokenizer.encode("the")] == ["<s>", "▁", "th", "e"]


def test_templates_come_from_the_header(tmp_path: Path) -> None:
    tokenizer = byte_level(
        tmp_path,
        **{"tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}", "tokenizer.chat_template.tool_use": "tools"},
    )
    assert tokenizer.apply_chat_template([]) == START + END
    assert tokenizer.apply_chat_template([], tools=[{}]) == "tools"
    (tmp_path / "mine.jinja").write_text("mine")
    source = ModelSource("gguf", tmp_path / "byte.gguf", "test")
    assert load_tokenizer(source, str(tmp_path / "mine.jinja")).apply_chat_template([]) == "mine"


def test_equal_and_empty_tokens_do_no_harm(tmp_path: Path) -> None:
    texts = [*BYTE_TEXTS, "lo", "", ""]
    types = [int(kind) for kind in [*BYTE_TYPES, *[TokenType.NORMAL] * 3]]
    tokenizer = byte_level(tmp_path, tokens=texts, token_type=types)
    assert tokenizer.encode("lo") == [BYTE_TEXTS.index("lo")]
    assert tokenizer.vocab_size == len(BYTE_TEXTS) + 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert', but only gpt2 and llama"),
        ({"pre": "klingon"}, "tokenizer.ggml.pre is 'klingon'.*original Hugging Face folder.*smollm"),
        ({"tokens": "x"}, "tokens is a str, but must be a list of str"),
        ({"token_type": [1, 2]}, "tokens, but 2 token types"),
        ({"merges": ["x yz"]}, "cannot be built"),
        ({"model": "llama", "merges": 1}, "merges is a int"),
    ],
)
def test_other_headers_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        byte_level(tmp_path, **keys)


def test_sentencepiece_needs_scores(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="needs one score"):
        sentencepiece(tmp_path, scores=[0.0])


def test_a_header_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no vocabulary"):
        load_tokenizer(write(tmp_path / "bare.gguf", model="gpt2"))


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("smollm", "a 123", ["a", "Ġ", "1", "2", "3"]),
        ("gpt-2", "we'll pay 123!!", ["we", "'ll", "Ġpay", "Ġ123", "!!"]),
        ("llama-bpe", "We'LL 12345\n\n x", ["We", "'LL", "Ġ", "123", "45", "ĊĊ", "Ġx"]),
        ("qwen2", "a123 $x", ["a", "1", "2", "3", "Ġ$", "x"]),
        ("default", "a.b 1234", ["a", ".", "b", "Ġ", "123", "4"]),
        ("falcon", "x+y 1234", ["x", "+", "y", "Ġ", "123", "4"]),
        ("tekken", "helloWorld 12", ["hello", "World", "Ġ", "1", "2"]),
        ("gpt-4o", "HELLO's 1234", ["HELLO's", "Ġ", "123", "4"]),
        ("deepseek-v3", "a中b 1234", ["a", "ä¸Ń", "b", "Ġ", "123", "4"]),
        ("deepseek-coder", "x, 12\n", ["x", ",", "Ġ", "1", "2", "Ċ"]),
        ("viking", "a 12", ["a", "Ġ", "1", "2"]),
        ("qwen35", "e\u0301a", ["eÌģa"]),
    ],
)
def test_each_family_cuts_text_its_own_way(name: str, text: str, pieces: list[str]) -> None:
    cut = find_pre_tokenization(name).build().pre_tokenize_str(text)
    assert [piece for piece, _ in cut] == pieces


@given(texts, st.sampled_from(["default", "smollm", "llama-bpe", "qwen2", "gpt-4o", "tekken", "deepseek-v3", "bloom"]))
def test_cutting_loses_nothing(text: str, name: str) -> None:
    backend = byte_level_backend()
    backend.pre_tokenizer = find_pre_tokenization(name).build()
    assert wrap(backend).decode(backend.encode(text).ids, skip_special_tokens=False) == text
