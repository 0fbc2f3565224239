"""Who is served how much: the books behind fairness and the guaranteed share, kept per step and not per token.

Knows nothing of decisions. It is told when requests start, begin and cease to decode, and what a step holds; decodes of
a step are charged by the number of rows that each tenant has in the standing set, so that a step costs as much as there
are tenants, however many requests decode.
"""

from bisect import bisect_left, insort

from chairlift.core.fairness import VirtualCounters
from chairlift.core.guaranteed_share import GuaranteedShare
from chairlift.core.request import Request
from chairlift.core.step_draft import StepDraft
from chairlift.core.waiting_queue import WaitingQueue


class ServiceLedger:
    """Virtual counters, the guaranteed share, and how the standing decode set is made up.

    Args:
        counters: charged for what is served.
        share: earns credit from each step.
    """

    def __init__(self, counters: VirtualCounters, share: GuaranteedShare) -> None:
        self.counters = counters
        self.share = share
        self._num_decodes: dict[tuple[int, str], int] = {}
        self._decode_sequences: dict[int, list[int]] = {}

    def start(self, request: Request, num_cached_tokens: int) -> None:
        """A request is admitted for the first time: its prompt is charged. What a preemption repeats is free."""
        if request.num_charged_tokens:
            return
        num_computed = request.num_tokens - num_cached_tokens
        weighted = VirtualCounters.INPUT_WEIGHT * (num_computed + VirtualCounters.CACHED_FACTOR * num_cached_tokens)
        self.counters.charge(request.priority, request.tenant, weighted)
        request.num_charged_tokens = request.num_tokens

    def join_decodes(self, request: Request) -> None:
        """A request decodes in every step from now on."""
        key = (request.priority, request.tenant)
        self._num_decodes[key] = self._num_decodes.get(key, 0) + 1
        insort(self._decode_sequences.setdefault(request.priority, []), request.sequence)

    def leave_decodes(self, request: Request) -> None:
        """It does not any more."""
        key = (request.priority, request.tenant)
        if self._num_decodes[key] == 1:
            del self._num_decodes[key]
        else:
            self._num_decodes[key] -= 1
        sequences = self._decode_sequences[request.priority]
        del sequences[bisect_left(sequences, request.sequence)]
        if not sequences:
            del self._decode_sequences[request.priority]

    def forget_decodes(self) -> None:
        """Nobody decodes any more."""
        self._num_decodes.clear()
        self._decode_sequences.clear()

    def end_step(self, draft: StepDraft, waiting: WaitingQueue) -> None:
        """A step is planned: charge its output tokens, and promote those whose guaranteed turn has come."""
        weight, charge = VirtualCounters.OUTPUT_WEIGHT, self.counters.charge
        for (tier, tenant), count in self._num_decodes.items():
            charge(tier, tenant, weight * count)
        for request, chunk in draft.chunks:
            if chunk.samples:
                charge(request.priority, request.tenant, weight)
        if not self.share.share:
            return
        budget = draft.budget

        def count_older(tier: int, sequence: int) -> int:
            older = bisect_left(self._decode_sequences.get(tier, ()), sequence)
            # What a promoted request computes of its prompt was paid for with the credit.
            return older + sum(
                chunk.length
                for request, chunk in draft.chunks
                if request.priority == tier and request.sequence < sequence and not request.is_promoted
            )

        self.share.settle(budget.num_prefill_tokens + budget.num_decode_tokens, waiting, count_older)
