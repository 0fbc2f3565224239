"""What must fit in the pool before a waiting request may start.

Knows nothing of the queue's order or of prefix hits: the scheduler takes shared pages off by itself. Pages for the
request's first chunk are always leased; a policy says what must be leased beyond them.
"""

from typing import Protocol

from chairlift.core.views import RequestView


class AdmissionPolicy(Protocol):
    """Says how much KV memory a request takes when it is admitted."""

    def reserve_tokens(self, request: RequestView) -> int:
        """Return for how many of its tokens, from the first on, pages are leased at admission; 0 for no more than
        the first chunk.
        """
        ...


class Optimistic:
    """Pages of the first chunk only; the prompt takes the rest as its chunks are scheduled.

    More requests start than fit to the end. Prompts too may find no page and wait for one half-way, or be preempted;
    ``--watermark`` keeps some pages back for that.
    """

    def reserve_tokens(self, request: RequestView) -> int:
        """Return 0: chunks bring their own pages."""
        del request
        return 0


class ReservePrompt:
    """Pages for every token known now: the prompt, and after a preemption the output so far.

    Output still to come is not reserved, so decoding may have to preempt, but a prompt never stops half-way.
    """

    def reserve_tokens(self, request: RequestView) -> int:
        """Return the tokens known now."""
        return request.num_tokens


class ReserveFull:
    """Pages for the prompt and the longest output allowed: nobody is ever preempted for pages, and fewer run.

    The last output token is never computed and needs no page.
    """

    def reserve_tokens(self, request: RequestView) -> int:
        """Return the most tokens that are ever computed for it."""
        return request.num_prompt_tokens + max(request.max_tokens, 1) - 1
