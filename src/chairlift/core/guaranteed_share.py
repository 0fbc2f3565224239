"""A small part of every step belongs to those who waited longest, so that no order starves anybody.

Knows nothing of policies: it counts the tokens of each step and says whose turn has come.

Each tier with waiting requests has a credit. A step of ``T`` tokens adds ``share * T`` to it and takes off what the
step gave to requests of the tier that are older than its oldest waiting one; credit is never less than 0. As soon as
it covers the tokens which the oldest waiting request has to compute, that one is promoted and its tokens are taken off.
So in the order of arrival the requests of a tier are served at least ``share`` of all tokens, whatever the policy:
either they run, or credit grows until they do.

A promoted request comes before everybody and takes the next slot. If none has become free when its tokens could have
been earned once more, it is overdue, and a running request gives way.

::

    tokens computed by the machine since arrival
    0 ............................... promoted .................... overdue
    | older ones served, or credit   |  waits for the next slot     | somebody gives way
    | at most (older + own) / share  |  at most own / share         |
"""

from collections.abc import Callable
from itertools import islice

from chairlift.core.request import Request
from chairlift.core.waiting_queue import WaitingQueue

MOST_IN_ALL = 0.5
"""All tiers together are guaranteed at most this part of the tokens; with many waiting tiers each gets less."""
MOST_SHARES = 4
"""And at most so many times the share of one: a client that spreads its requests over many tiers gains little."""
MAX_TIERS = 32
"""Tiers that earn credit at a time: bounds the cost of a step. Whoever was promoted makes room for the next."""


class GuaranteedShare:
    """Earns credit for the oldest waiting request of each tier, and promotes it.

    Args:
        share: part of the tokens that each tier is sure of; 0 guarantees nothing.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._credits: dict[int, float] = {}
        self._num_tokens = 0.0

    def part_for(self, num_tiers: int) -> float:
        """Return the part of the tokens that each of so many tiers is sure of."""
        in_all = min(MOST_IN_ALL, MOST_SHARES * self.share)
        return min(self.share, in_all / min(max(num_tiers, 1), MAX_TIERS))

    def is_overdue(self, turn: float | None) -> bool:
        """Whether a request promoted for this turn has waited for a slot long enough to be given somebody else's."""
        return turn is not None and self._num_tokens >= turn

    def settle(self, num_tokens: int, waiting: WaitingQueue, count_older: Callable[[int, int], int]) -> None:
        """Take a planned step into account, and promote those whose turn has come.

        Args:
            num_tokens: tokens of the step.
            waiting: who waits after it was planned.
            count_older: tokens that the step gives to a tier's requests that arrived before a number.
        """
        self._num_tokens += num_tokens
        if not self.share or not len(waiting):
            self._credits.clear()
            return
        self._follow(waiting)
        part = self.part_for(len(self._credits))
        for tier in list(islice(self._credits, MAX_TIERS)):
            oldest = waiting.oldest(tier)
            if oldest is None:  # All of them are held back: others may earn meanwhile.
                self._credits[tier] = self._credits.pop(tier)
                continue
            given = count_older(tier, oldest.sequence)
            credit = max(self._credits[tier] + part * num_tokens - given, 0.0)
            while oldest is not None and credit >= max(_num_to_compute(oldest), 1):
                credit -= max(_num_to_compute(oldest), 1)
                # Overdue when its tokens could have been earned once more.
                waiting.promote(oldest, self._num_tokens + max(_num_to_compute(oldest), 1) / part)
                oldest = waiting.oldest(tier)
                self._credits.pop(tier, None)  # to the end of the row
            self._credits[tier] = credit

    def _follow(self, waiting: WaitingQueue) -> None:
        """Forget who does not wait any more, and take in who does."""
        tiers = set(waiting.tiers)  # clients choose their tiers, so there may be thousands
        if self._credits.keys() != tiers:
            still = {tier: credit for tier, credit in self._credits.items() if tier in tiers}
            self._credits = still | {tier: 0.0 for tier in waiting.tiers if tier not in still}


def _num_to_compute(request: Request) -> int:
    """Tokens between its admission and its next output token, at most: some may be in the prefix tree.

    What a preempted request kept counts too, or it would be back before whoever displaced it has done anything.
    """
    return request.num_tokens
