"""The toy model: the next token is a hash of the whole context.

Knows nothing of pages; the executor hands it the context as read through them.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b

NextToken = Callable[[Sequence[int], int, int], int]
"""(context token ids, vocabulary size, seed or 0 when greedy) -> token id."""

FittingToken = Callable[[Sequence[int], Sequence[int], int], int]
"""(context token ids, tokens that a grammar allows, seed or 0 when greedy) -> one of them."""


def next_token(context: Sequence[int], vocab_size: int, seed: int = 0) -> int:
    """Return a token that depends on every token of the context, their order, and the seed."""
    digest = blake2b(digest_size=8)
    digest.update(seed.to_bytes(16, "little", signed=True))
    for token_id in context:
        digest.update(token_id.to_bytes(8, "little", signed=True))
    return int.from_bytes(digest.digest(), "little") % vocab_size


def reference_output(
    prompt: Sequence[int],
    num_tokens: int,
    vocab_size: int,
    *,
    seed: int = 0,
    stop_token_ids: frozenset[int] = frozenset(),
    min_tokens: int = 0,
) -> list[int]:
    """Return what the model says alone, without pages or batches: the truth that engine output is compared with."""
    context = list(prompt)
    for count in range(num_tokens):
        token_id = allowed_token(context, vocab_size, seed, stop_token_ids if count < min_tokens else frozenset())
        context.append(token_id)
        if token_id in stop_token_ids:
            break
    return context[len(prompt) :]


def allowed_token(
    context: Sequence[int], vocab_size: int, seed: int, forbidden: frozenset[int], model: NextToken = next_token
) -> int:
    """Return the model's next token, or the first one after it that is not forbidden."""
    token_id = model(context, vocab_size, seed)
    for _ in range(vocab_size):
        if token_id not in forbidden:
            break
        token_id = (token_id + 1) % vocab_size
    return token_id


def fitting_token(context: Sequence[int], allowed: Sequence[int], seed: int) -> int:
    """Return one of the allowed tokens, again by hash; there must be one."""
    return allowed[next_token(context, len(allowed), seed)]
