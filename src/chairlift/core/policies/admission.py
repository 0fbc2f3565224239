"""What must fit in the pool before a waiting request may start.

Knows nothing of the queue's order or of prefix hits: the scheduler takes shared pages off by itself.
"""

from typing import Protocol

from chairlift.core.views import RequestView


class AdmissionPolicy(Protocol):
    """Says how much KV memory a request takes when it is admitted."""

    def reserve_tokens(self, request: RequestView) -> int:
        """Return for how many tokens pages are leased at admission; at least all tokens known now are."""
        ...


class ReservePrompt:
    """Pages for every token known now: the prompt, and after a preemption the output so far.

    Output still to come is not reserved, so decoding may have to preempt, but a prompt never stops half-way.
    """

    def reserve_tokens(self, request: RequestView) -> int:
        """Return the tokens known now."""
        return request.num_tokens
