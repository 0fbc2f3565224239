"""The toy model behind ``--executor fake``: lower-case words that depend on the whole prompt and on the seed.

Knows nothing of settings beyond the size of the pool. About one token in 128 is the end token.
"""

from collections.abc import Sequence

from chairlift.config.sections import CacheSettings
from chairlift.config.sizes import parse_bytes
from chairlift.engine.byte_tokenizer import END_ID, ByteTokenizer
from chairlift.errors import ConfigurationError
from chairlift.execution.fake import FakeExecutor, next_token
from chairlift.execution.fake.grammar import GrammarFollower
from chairlift.structured.compiler import GrammarCompiler
from chairlift.structured.masks import GrammarMasks

NAME = "fake"
MAX_MODEL_LEN = 2048
KV_BYTES_PER_TOKEN = 1024
"""So that ``--kv-cache-memory`` sizes the pool here too; it is arithmetic, no memory of that size."""

_DEFAULT_KV_MEMORY = "64MiB"
_MAX_PAGES = 2**22
_LETTERS = b"abcdefghijklmnopqrstuvwxyz     "
_NUM_OUTCOMES = 128
_CLOSING = (END_ID, *b'"}]<,')


def readable_token(context: Sequence[int], vocab_size: int, seed: int) -> int:
    """Return the token that follows a context: a letter or space of the byte vocabulary, or the end token."""
    del vocab_size
    outcome = next_token(context, _NUM_OUTCOMES, seed)
    return END_ID if outcome == 0 else _LETTERS[outcome % len(_LETTERS)]


def readable_fitting_token(context: Sequence[int], allowed: Sequence[int], seed: int) -> int:
    """Return one of the tokens that a grammar allows: what closes something half the time, else what can be read."""
    outcome = next_token(context, 2 * _NUM_OUTCOMES, seed)
    closing = [token for token in _CLOSING if token in allowed]
    if closing and outcome % 2 == 0:
        return closing[outcome // 2 % len(closing)]
    printable = [token for token in allowed if 32 <= token < 127]
    choice = [token for token in printable if token in _LETTERS] or printable or allowed
    return choice[outcome // 2 % len(choice)]


def pool_size(cache: CacheSettings) -> int:
    """Return how many pages ``--kv-cache-memory`` stands for.

    Raises:
        ConfigurationError: not even one.
    """
    memory = cache.kv_cache_memory or _DEFAULT_KV_MEMORY
    page_bytes = KV_BYTES_PER_TOKEN * cache.page_size
    num_pages = parse_bytes(memory, setting="--kv-cache-memory") // page_bytes
    if num_pages > _MAX_PAGES:
        raise ConfigurationError(
            f"--kv-cache-memory is {memory}: {num_pages} pages, but the toy model takes {_MAX_PAGES}"
        )
    if num_pages < 1:
        raise ConfigurationError(f"--kv-cache-memory is {memory}, but one page of the toy model has {page_bytes} bytes")
    return num_pages


def host_tier_size(cache: CacheSettings) -> int:
    """Return how many pages ``--swap-space`` stands for; none if it is smaller than a page.

    Raises:
        ConfigurationError: more than the toy model takes.
    """
    num_pages = parse_bytes(cache.swap_space, setting="--swap-space") // (KV_BYTES_PER_TOKEN * cache.page_size)
    if num_pages > _MAX_PAGES:
        raise ConfigurationError(
            f"--swap-space is {cache.swap_space}: {num_pages} pages, but the toy model takes {_MAX_PAGES}"
        )
    return num_pages


def build_executor(
    num_pages: int,
    page_size: int,
    num_host_pages: int = 0,
    compiler: GrammarCompiler | None = None,
    *,
    pace_s: float = 0.0,
) -> FakeExecutor:
    """Return the executor of the toy model, whose steps take so long at least; with a compiler it follows grammars."""
    return FakeExecutor(
        num_pages,
        page_size,
        num_host_pages=num_host_pages,
        vocab_size=ByteTokenizer.vocab_size,
        model=readable_token,
        grammars=None if compiler is None else GrammarFollower(GrammarMasks(compiler)),
        fitting=readable_fitting_token,
        pace_s=pace_s,
    )
