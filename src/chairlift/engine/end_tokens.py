"""Which tokens end a request.

Knows nothing of stop strings.
"""

from chairlift.core.sampling_params import SamplingParams


def end_tokens(sampling: SamplingParams, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """Return every token that ends a request: its own, and the model's unless it ignores them.

    The end of a grammar cannot be ignored: there is nothing else that could come.
    """
    own = frozenset(sampling.stop_token_ids)
    return own if sampling.ignore_eos and sampling.grammar is None else own | eos_token_ids
