"""What the masks of one request may cost, so that a costly grammar ends its own request and holds up no other.

Knows nothing of grammars or threads.
"""

_USUAL_MASK_NS = 1_000_000
_USUAL_TOKEN_NS = 50_000
"""What a mask, and a token that is read, may cost without being counted: several times what they do cost."""

_STEPS_TO_REFILL = 10
_NS_PER_S = 1e9


class MaskBudget:
    """Processor time for the masks of a request, those of all its choices together; any amount if ``None``.

    ::

        left   at most what one step may take
               + a tenth of that with every step
               - what masks took beyond the usual
    """

    __slots__ = ("__weakref__", "_left_ns", "_step_ns", "num_steps")

    def __init__(self, step_ns: int | None) -> None:
        self.num_steps = 0
        """Steps in which it was asked for a mask."""
        self._step_ns = step_ns
        self._left_ns = step_ns or 0

    @property
    def allowance(self) -> str:
        """What limits it, in words."""
        return f"--grammar-step-time allows, which is {(self._step_ns or 0) / _NS_PER_S:g} s in a step"

    @property
    def is_spent(self) -> bool:
        """Whether no further mask may be made."""
        return self._left_ns < 0

    def begin(self, num_masks: int) -> None:
        """A choice begins its mask of this number: those of the same number are made in the same step."""
        if num_masks > self.num_steps:
            self.num_steps = num_masks
            if self._step_ns is not None and not self.is_spent:
                self._left_ns = min(self._step_ns, self._left_ns + self._step_ns // _STEPS_TO_REFILL)

    def spend(self, cost_ns: int, *, num_tokens: int = 0, num_masks: int = 0) -> None:
        """Take off what it took to read tokens and make masks."""
        if self._step_ns is None:
            return
        usual_ns = num_tokens * _USUAL_TOKEN_NS + num_masks * _USUAL_MASK_NS
        self._left_ns -= max(0, cost_ns - usual_ns)
