"""How the toy model rates tokens: a distribution around its next token, and what a request adds or rules out.

Knows nothing of pages. The token that the model would say is the most likely one; each token that follows it in the
vocabulary, counted on from its end to its beginning, is half as likely as the one before.
"""

import math
from collections.abc import Callable, Sequence

from chairlift.core.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from chairlift.core.step_plan import TokenLogprobs

_LN_2 = math.log(2.0)


def rate(token_id: int, likeliest: int, vocab_size: int, num_top: int) -> TokenLogprobs:
    """Return what the model makes of a token where it would say ``likeliest``."""
    rank = (token_id - likeliest) % vocab_size + 1
    top = tuple(((likeliest + place) % vocab_size, -(place + 1) * _LN_2) for place in range(min(num_top, vocab_size)))
    return TokenLogprobs(-rank * _LN_2, rank, top)


def choose(
    said: int, vocab_size: int, forbidden: frozenset[int], sampling: SamplingParams, output: Sequence[int]
) -> int | None:
    """Return the token that the model says, or the first one after it that the request permits; ``None`` if none is.

    Of a bias only what decides alone in any model counts: the lowest one rules a token out, the highest one in.
    """
    rules_out = _rules(forbidden, sampling, output)
    favoured = [token for token, bias in (sampling.logit_bias or {}).items() if bias >= MAX_LOGIT_BIAS]
    for token_id in (*favoured, *((said + place) % vocab_size for place in range(vocab_size))):
        if not rules_out(token_id):
            return token_id
    return None


def _rules(forbidden: frozenset[int], sampling: SamplingParams, output: Sequence[int]) -> Callable[[int], bool]:
    allowed = None if sampling.allowed_token_ids is None else frozenset(sampling.allowed_token_ids)
    bad = {word[-1] for word in sampling.bad_token_ids if len(word) == 1 or _ends_with(output, word[:-1])}
    bad.update(token for token, bias in (sampling.logit_bias or {}).items() if bias <= -MAX_LOGIT_BIAS)
    return lambda token_id: (
        token_id in forbidden or token_id in bad or (allowed is not None and token_id not in allowed)
    )


def _ends_with(output: Sequence[int], head: Sequence[int]) -> bool:
    return len(output) >= len(head) and tuple(output[len(output) - len(head) :]) == tuple(head)
