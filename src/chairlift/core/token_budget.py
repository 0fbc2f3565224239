"""What one step may compute, and on what it was spent.

Knows nothing of who spends.
"""


class TokenBudget:
    """Counts a step's tokens. ``num_tokens`` may pass the limit only for a prompt that must run whole."""

    __slots__ = (
        "limit_tokens",
        "num_context_tokens",
        "num_decode_tokens",
        "num_padding_tokens",
        "num_prefill_tokens",
        "planned_ns",
    )

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.num_decode_tokens = 0
        self.num_prefill_tokens = 0
        self.num_padding_tokens = 0
        self.num_context_tokens = 0
        """KV tokens that the step's rows read, their own included."""
        self.planned_ns = 0

    @property
    def num_tokens(self) -> int:
        """Tokens spent on everything."""
        return self.num_decode_tokens + self.num_prefill_tokens + self.num_padding_tokens

    @property
    def num_left(self) -> int:
        """Tokens that may still be spent, never negative."""
        num_tokens = self.num_decode_tokens + self.num_prefill_tokens + self.num_padding_tokens
        return max(0, self.limit_tokens - num_tokens)
