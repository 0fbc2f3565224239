"""A model's tokens as the grammar library wants them.

Knows nothing of grammars.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import llguidance

from chairlift.errors import ConfigurationError


class TokenTexts(Protocol):
    """The part of a tokenizer that matters here."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...


class _Tokens:
    """The interface that the library asks for."""

    def __init__(self, source: TokenTexts, tokens: Sequence[bytes], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(token for token in source.special_ids if token < len(tokens))
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self._source = source

    def __call__(self, text: str) -> list[int]:
        return self._source.encode(text, False)


def build_vocabulary(source: TokenTexts, vocab_size: int, end_tokens: Iterable[int]) -> llguidance.LLTokenizer:
    """Prepare a vocabulary for masks of ``vocab_size`` bits; takes about a second for 150,000 tokens.

    ``end_tokens`` are those that the engine ends requests at, one of which must follow a complete text.

    Raises:
        ConfigurationError: the model has no end token, so that nothing could end.
    """
    eos_token_ids = sorted(token for token in end_tokens if token < vocab_size)
    if not eos_token_ids:
        raise ConfigurationError("the model has no end token, so its output cannot be held to a grammar")
    tokens = [source.token_bytes(token) for token in range(vocab_size)]
    wrapper = llguidance.TokenizerWrapper(_Tokens(source, tokens, eos_token_ids[0]))
    return llguidance.LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=eos_token_ids)
