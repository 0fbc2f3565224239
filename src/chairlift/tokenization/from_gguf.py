"""A tokenizer from the header of a GGUF file.

Knows nothing of tensors. Two kinds of vocabulary are built: byte-level BPE (``gpt2``) and SentencePiece BPE
(``llama``), with the meaning that llama.cpp gives to the header's keys.
"""

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from chairlift.config.gguf_metadata import GgufMetadata, read_gguf_metadata
from chairlift.errors import ModelLoadError
from chairlift.tokenization.backend import add_tokens, surround
from chairlift.tokenization.chat_template import ChatTemplate
from chairlift.tokenization.pre_tokenizers import find_pre_tokenization
from chairlift.tokenization.sentencepiece_merges import derive_merges
from chairlift.tokenization.tokenizer import DEFAULT_TEMPLATE, Tokenizer, TokenizerFacts

_PREFIX = "tokenizer.ggml."
_TEMPLATE_KEY = "tokenizer.chat_template"
_SPACE_MARK = "▁"
# Older conversions name only one end token; these texts end a turn or a text in every model that has them as control
# tokens, and llama.cpp stops at them too.
_END_TEXTS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>"}
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL_TYPES = frozenset({_TokenType.UNKNOWN, _TokenType.CONTROL})


def load_gguf_tokenizer(path: Path, chat_template: ChatTemplate | None = None) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes; ``chat_template`` replaces the file's own.

    Raises:
        ModelLoadError: the file cannot be read, or describes a tokenizer of another kind.
    """
    metadata = read_gguf_metadata(path)
    vocabulary = _Vocabulary(metadata, path)
    kind = metadata.string(f"{_PREFIX}model")
    try:
        if kind == "gpt2":
            backend, adds_bos = _byte_level_backend(metadata, vocabulary)
        elif kind == "llama":
            backend, adds_bos = _sentencepiece_backend(metadata, vocabulary)
        else:
            raise ModelLoadError(f"{path}: tokenizer.ggml.model is {kind!r}, but only gpt2 and llama are supported")
    except ModelLoadError:
        raise
    except Exception as error:
        # The library raises plain exceptions, for example for a merge of tokens that are not in the vocabulary.
        raise ModelLoadError(f"{path}: its tokenizer cannot be built: {error}") from error
    _add_tokens(backend, vocabulary)
    _set_begin_and_end(backend, metadata, vocabulary, adds_bos)
    return Tokenizer(backend, _facts(metadata, vocabulary, chat_template))


class _Vocabulary:
    """Token texts with their types; equal texts keep the first id, empty ones get a name of their own."""

    def __init__(self, metadata: GgufMetadata, path: Path) -> None:
        texts = metadata.strings(f"{_PREFIX}tokens")
        if not texts:
            raise ModelLoadError(f"{path} has no vocabulary (tokenizer.ggml.tokens)")
        self.texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
        self.types = metadata.integers(f"{_PREFIX}token_type") or [_TokenType.NORMAL] * len(texts)
        if len(self.types) != len(texts):
            raise ModelLoadError(f"{path} has {len(texts)} tokens, but {len(self.types)} token types")
        self.ids: dict[str, int] = {}
        for index, text in enumerate(self.texts):
            self.ids.setdefault(text, index)

    def text(self, token_id: int | None) -> str | None:
        """The text of an id; ``None`` for no id or one outside the vocabulary."""
        return self.texts[token_id] if token_id is not None and 0 <= token_id < len(self.texts) else None

    def of_types(self, types: frozenset[_TokenType]) -> list[str]:
        """The texts of all tokens of these types, in the order of ids."""
        return [text for text, kind in zip(self.texts, self.types, strict=True) if kind in types]


def _byte_level_backend(metadata: GgufMetadata, vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    pre_tokenization = find_pre_tokenization(metadata.string(f"{_PREFIX}pre") or "default")
    merges = _parse_merges(metadata.strings(f"{_PREFIX}merges") or ())
    backend = Backend(BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=pre_tokenization.ignores_merges))
    backend.pre_tokenizer = pre_tokenization.build()
    backend.decoder = decoders.ByteLevel()
    return backend, pre_tokenization.adds_bos


def _sentencepiece_backend(metadata: GgufMetadata, vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    scores = metadata.floats(f"{_PREFIX}scores")
    listed = metadata.strings(f"{_PREFIX}merges")
    if listed is None and (scores is None or len(scores) != len(vocabulary.texts)):
        raise ModelLoadError("a SentencePiece vocabulary needs one score (tokenizer.ggml.scores) for each token")
    merges = _parse_merges(listed) if listed is not None else derive_merges(vocabulary.ids, scores or ())
    unknown = vocabulary.text(metadata.integer(f"{_PREFIX}unknown_token_id"))
    backend = Backend(BPE(vocab=vocabulary.ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    mark_spaces = normalizers.Replace(" ", _SPACE_MARK)
    unmark_spaces = [decoders.Replace(_SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.flag(f"{_PREFIX}add_space_prefix") is False:
        backend.normalizer = mark_spaces
        backend.decoder = decoders.Sequence(unmark_spaces)
    else:
        # As a normalizer it also runs after each special token, which is what llama.cpp does.
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE_MARK), mark_spaces])
        backend.decoder = decoders.Sequence([*unmark_spaces, decoders.Strip(" ", 1, 0)])
    return backend, True


def _parse_merges(merges: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        # The space that separates is never the first character, which may be a space itself.
        cut = merge.find(" ", 1)
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _add_tokens(backend: Backend, vocabulary: _Vocabulary) -> None:
    # Not normalized: llama.cpp looks for them in the text as it is.
    kinds = ((_SPECIAL_TYPES, True), (frozenset({_TokenType.USER_DEFINED}), False))
    for types, is_special in kinds:
        texts = vocabulary.of_types(types)
        add_tokens(backend, [AddedToken(text, special=is_special, normalized=False) for text in texts])


def _set_begin_and_end(backend: Backend, metadata: GgufMetadata, vocabulary: _Vocabulary, adds_bos: bool) -> None:
    stated_bos = metadata.flag(f"{_PREFIX}add_bos_token")
    adds_bos = adds_bos if stated_bos is None else stated_bos
    begin = vocabulary.text(metadata.integer(f"{_PREFIX}bos_token_id")) if adds_bos else None
    adds_eos = metadata.flag(f"{_PREFIX}add_eos_token")
    end = vocabulary.text(metadata.integer(f"{_PREFIX}eos_token_id")) if adds_eos else None
    surround(backend, begin=begin, end=end)


def _facts(metadata: GgufMetadata, vocabulary: _Vocabulary, chat_template: ChatTemplate | None) -> TokenizerFacts:
    named = {name: metadata.integer(_PREFIX + key) for name, key in _NAMED_TOKENS.items()}
    control = frozenset({_TokenType.CONTROL})
    end_ids = {metadata.integer(_PREFIX + key) for key in _END_KEYS}
    end_ids |= {vocabulary.ids[text] for text in vocabulary.of_types(control) if text in _END_TEXTS}
    special_tokens = {name: vocabulary.text(token_id) for name, token_id in named.items()}
    return TokenizerFacts(
        bos_token_id=named["bos_token"],
        eos_token_ids=frozenset(token_id for token_id in end_ids if token_id is not None and vocabulary.text(token_id)),
        vocab_size=len(vocabulary.texts),
        special_tokens={name: text for name, text in special_tokens.items() if text is not None},
        chat_templates={DEFAULT_TEMPLATE: chat_template} if chat_template else _chat_templates(metadata),
    )


def _chat_templates(metadata: GgufMetadata) -> dict[str, ChatTemplate]:
    templates: dict[str, ChatTemplate] = {}
    for key in metadata:
        if key != _TEMPLATE_KEY and not key.startswith(f"{_TEMPLATE_KEY}."):
            continue
        source = metadata.string(key)
        if source:
            templates[key.removeprefix(_TEMPLATE_KEY).removeprefix(".") or DEFAULT_TEMPLATE] = ChatTemplate(source, key)
    return templates
