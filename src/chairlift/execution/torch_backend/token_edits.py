"""What one request adds to logits or rules out, as arrays made once when it starts.

Knows nothing of steps or batches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.core.sampling_params import SamplingParams

ANY_TOKEN = -1
"""Stands in :attr:`TokenEdits.heads` before the beginning of a sequence."""


@dataclass(frozen=True, slots=True)
class TokenEdits:
    """Arrays of one request; ``B`` bad sequences of more than one token, the longest of them of ``L + 1``.

    ::

        bad sequence    [ heads: L tokens, the first ones ANY_TOKEN if it is shorter | tails: its last token ]
    """

    biased_ids: NDArray[np.int64]
    biases: NDArray[np.float32]
    allowed_ids: NDArray[np.int64] | None
    bad_ids: NDArray[np.int64]
    """Tokens that may never come."""
    heads: NDArray[np.int64]  # [B, L]
    tails: NDArray[np.int64]  # [B]

    @classmethod
    def of(cls, sampling: SamplingParams) -> "TokenEdits | None":
        """Return the edits of a request; ``None`` if it has none."""
        if not sampling.has_edits:
            return None
        bias = sampling.logit_bias or {}
        long = [word for word in sampling.bad_token_ids if len(word) > 1]
        longest = max(map(len, long), default=1)
        heads = np.full((len(long), longest - 1), ANY_TOKEN, np.int64)
        for head, word in zip(heads, long, strict=True):
            head[longest - len(word) :] = word[:-1]
        allowed = sampling.allowed_token_ids
        return cls(
            biased_ids=np.fromiter(bias, np.int64, len(bias)),
            biases=np.fromiter(bias.values(), np.float32, len(bias)),
            allowed_ids=None if allowed is None else np.unique(np.array(allowed, np.int64)),
            bad_ids=np.array([word[0] for word in sampling.bad_token_ids if len(word) == 1], np.int64),
            heads=heads,
            tails=np.array([word[-1] for word in long], np.int64),
        )

    def find_bad_ids(self, outputs: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the tokens that would complete a bad sequence after these output tokens."""
        width = self.heads.shape[1]
        if not width:
            return self.tails
        last = np.full(width, ANY_TOKEN - 1, np.int64)
        known = outputs[max(0, len(outputs) - width) :]
        last[width - len(known) :] = known
        return self.tails[((self.heads == last) | (self.heads == ANY_TOKEN)).all(axis=1)]
