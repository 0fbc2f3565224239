"""Streaming text is whole characters, and joined it is what decoding at once gives."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, WordLevel

from chairlift.errors import ModelLoadError
from chairlift.tokenization import IncrementalDetokenizer, Tokenizer
from tests.unit.tokenization.vocabularies import (
    BYTE_CHARACTERS,
    byte_level_backend,
    id_of,
    sentencepiece_backend,
    wrap,
)

BYTE_LEVEL = byte_level_backend()
SENTENCEPIECE = sentencepiece_backend()
UNPREFIXED = sentencepiece_backend(prefix_space=False)
BACKENDS = [BYTE_LEVEL, SENTENCEPIECE, UNPREFIXED]
TOKENIZERS = [wrap(backend) for backend in BACKENDS]
CASES = list(zip(TOKENIZERS, BACKENDS, strict=True))

# Four ids beyond each vocabulary: padded models have such, without a token.
token_lists = st.lists(st.integers(min_value=0, max_value=SENTENCEPIECE.get_vocab_size() + 4), max_size=40)
# SentencePiece writes a space as ▁, so that it cannot tell the two apart.
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁"), max_size=30)


def stream(detokenizer: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def fallback_bytes_are_utf8(backend: Backend, ids: list[int]) -> bool:
    """Whether every run of byte tokens is UTF-8; where not, our decoding keeps more than the library's."""
    run = b""
    for token_id in [*ids, -1]:
        token = backend.id_to_token(token_id) if token_id >= 0 else ""
        if token and token.startswith("<0x"):
            run += bytes([int(token[3:5], 16)])
            continue
        if token is None or token in {"<unk>", "<s>", "</s>"}:
            continue
        if run.decode(errors="replace").encode() != run:
            return False
        run = b""
    return True


@given(token_lists, st.booleans())
@example([0xF0, 0x9F, 0x98, 0x80], True)
@example([0xF0, 0x9F, 0x98], True)
@example([0xFF, 0xC3, 0x28, 0xE2, 0x82, 0xE2, 0x82, 0xAC], False)
def test_byte_level_streams_join_to_what_the_library_decodes(ids: list[int], skip: bool) -> None:
    tokenizer = TOKENIZERS[0]
    expected = BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(tokenizer.detokenizer(skip_special_tokens=skip), ids)) == expected
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize(("tokenizer", "backend"), CASES[1:], ids=["prefix", "no-prefix"])
@given(ids=token_lists, skip=st.booleans())
def test_sentencepiece_streams_join_to_what_the_library_decodes(
    tokenizer: Tokenizer, backend: Backend, ids: list[int], skip: bool
) -> None:
    if fallback_bytes_are_utf8(backend, ids):
        expected = backend.decode(ids, skip_special_tokens=skip)
        assert "".join(stream(tokenizer.detokenizer(skip_special_tokens=skip), ids)) == expected


@pytest.mark.parametrize(("tokenizer", "backend"), CASES[1:], ids=["prefix", "no-prefix"])
@given(values=st.binary(max_size=20))
def test_bad_byte_tokens_cost_only_themselves(tokenizer: Tokenizer, backend: Backend, values: bytes) -> None:
    ids = [id_of(backend, f"<0x{value:02X}>") for value in values]
    ids += [id_of(backend, "a")]
    text = values.decode(errors="replace") + "a"
    has_lead = tokenizer is TOKENIZERS[1] and text.startswith(" ")
    assert "".join(stream(tokenizer.detokenizer(), ids)) == (text[1:] if has_lead else text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte-level", "prefix", "no-prefix"])
@given(text=texts)
@example("🙂 e\u0301 中文 🇩🇪 \u0000\n")
@example("  the  ")
def test_every_encoded_text_comes_back_in_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    deltas = stream(tokenizer.detokenizer(), tokenizer.encode(text, add_special_tokens=False))
    assert "".join(deltas) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte-level", "prefix", "no-prefix"])
@given(prompt=token_lists, output=token_lists, skip=st.booleans())
def test_after_a_prompt_the_text_goes_on_as_if_all_had_been_streamed(
    tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool
) -> None:
    whole = tokenizer.detokenizer(skip_special_tokens=skip)
    for token_id in prompt:
        whole.push(token_id)
    assert stream(tokenizer.detokenizer(prompt, skip_special_tokens=skip), output) == stream(whole, output)


def test_the_space_of_the_first_word_stays_after_a_prompt() -> None:
    tokenizer, backend = CASES[1]
    the = id_of(backend, "▁the")
    assert tokenizer.detokenizer().push(the) == "the"
    assert tokenizer.detokenizer([the]).push(the) == " the"
    assert tokenizer.detokenizer([id_of(backend, "<s>")]).push(the) == "the"


@pytest.mark.parametrize(("text", "num_tokens"), [("🙂", 4), ("中", 3), ("🇩🇪", 8)])
def test_b45_a_character_of_several_tokens_comes_out_whole(text: str, num_tokens: int) -> None:
    ids = list(text.encode())
    deltas = stream(TOKENIZERS[0].detokenizer(), ids)
    assert len(ids) == num_tokens
    assert [delta for delta in deltas if delta] == list(text)


def test_b45_a_character_cut_off_is_one_replacement_character() -> None:
    deltas = stream(TOKENIZERS[0].detokenizer(), list("🙂".encode())[:3])
    assert deltas == ["", "", "", "\ufffd"]


@pytest.mark.parametrize(("tokenizer", "bad"), [(TOKENIZERS[0], 0xFF), (TOKENIZERS[1], 3 + 0xFF)])
def test_b47_endless_invalid_bytes_keep_flowing_and_nothing_piles_up(tokenizer: Tokenizer, bad: int) -> None:
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push(bad) for _ in range(2000)] == ["\ufffd"] * 2000
    # All that is kept between tokens: fewer bytes than one character has.
    pending, _ = detokenizer._utf8.getstate()
    assert len(pending) < 4


def test_special_tokens_inside_a_character_do_not_break_it() -> None:
    start = id_of(BYTE_LEVEL, "<|start|>")
    first, *rest = "é".encode()
    assert "".join(stream(TOKENIZERS[0].detokenizer(), [first, start, *rest])) == "é"
    assert "".join(stream(TOKENIZERS[0].detokenizer(skip_special_tokens=False), [start])) == "<|start|>"


@given(ids=st.lists(st.integers(min_value=0, max_value=4), max_size=12))
def test_a_metaspace_decoder_streams_as_the_library_decodes(ids: list[int]) -> None:
    backend = Backend(BPE(vocab={"▁": 0, "▁a": 1, "a": 2, "▁▁": 3, "a▁b": 4}, merges=[]))
    for scheme in ("always", "first", "never"):
        backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
        assert "".join(stream(wrap(backend).detokenizer(), ids)) == backend.decode(ids)


@given(ids=st.lists(st.integers(min_value=0, max_value=2), max_size=8))
def test_without_a_decoder_tokens_are_joined_by_spaces_as_in_the_library(ids: list[int]) -> None:
    backend = Backend(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    for skip in (False, True):
        streamed = stream(wrap(backend).detokenizer(skip_special_tokens=skip), ids)
        assert "".join(streamed) == backend.decode(ids, skip_special_tokens=skip)


@given(ids=st.lists(st.integers(min_value=0, max_value=3), max_size=8))
def test_replace_and_strip_for_each_token_are_the_librarys_own(ids: list[int]) -> None:
    from tokenizers import Regex

    backend = Backend(BPE(vocab={"_a_": 0, "x1y22": 1, "__": 2, "a": 3}, merges=[]))
    backend.decoder = decoders.Sequence(
        [decoders.Strip("_", 1, 1), decoders.Replace(Regex("[0-9]+"), "#"), decoders.Fuse()]
    )
    assert "".join(stream(wrap(backend).detokenizer(), ids)) == backend.decode(ids)


@given(ids=st.lists(st.integers(min_value=0, max_value=2), max_size=6))
def test_as_much_is_taken_off_the_front_as_the_decoder_says(ids: list[int]) -> None:
    backend = Backend(BPE(vocab={"-": 0, "--a": 1, "a-": 2}, merges=[]))
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip("-", 3, 0)])
    assert "".join(stream(wrap(backend).detokenizer(), ids)) == backend.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused_at_start(decoder: decoders.Decoder) -> None:
    backend = Backend(BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoder
    with pytest.raises(ModelLoadError, match="not supported"):
        wrap(backend)


def test_the_byte_alphabet_is_gpt2s() -> None:
    assert (BYTE_CHARACTERS[0x20], BYTE_CHARACTERS[0x0A], BYTE_CHARACTERS[0xAD]) == ("Ġ", "Ċ", "Ń")
    assert (BYTE_CHARACTERS[0x41], BYTE_CHARACTERS[0xE9]) == ("A", "é")
