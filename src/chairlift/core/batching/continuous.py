"""Continuous batching: a slot that empties is filled in the next step.

Knows nothing of groups. A step is decided in this order: decodes join and leave, their pages are settled (preempting
if need be), and what they leave of the token budget goes to prompts, running and newly admitted.
"""

from typing import ClassVar, NamedTuple

from chairlift.core.batching.displacement import make_room
from chairlift.core.batching.settle_pages import can_settle, settle_pages
from chairlift.core.request import BlockedOn, Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft
from chairlift.core.views import PrefillView

_MAX_LOOKED_AT = 16
"""Waiting requests looked at in one step: bounds the cost of a step whatever the length of the queue."""


class _Candidate(NamedTuple):
    """A waiting request that could start now: what is left to compute, what to reserve, and past whom."""

    request: Request
    num_remaining_tokens: int
    num_reserved_tokens: int
    passes: int
    """Length of the list of requests without pages that stand before it."""


class ContinuousBatching:
    """Iteration-level scheduling with mixed, chunked prefill.

    Sources: Yu et al., "Orca" (OSDI 2022); Agrawal et al., "Sarathi-Serve" (OSDI 2024).
    """

    shares_prefixes: ClassVar[bool] = True

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def compose(self, draft: StepDraft) -> bool:
        """Fill the draft; see the module."""
        state = self._state
        leaving: list[Request] = []
        wanting: list[Request] = []
        for request in state.decoding.values():
            if request.num_scheduled_tokens >= request.max_computed_tokens:
                leaving.append(request)
            elif request.num_scheduled_tokens == request.num_token_slots:
                wanting.append(request)
        joining = [r for r in state.joining.values() if r.num_scheduled_tokens < r.max_computed_tokens]
        wanting.extend(r for r in joining if r.num_scheduled_tokens == r.num_token_slots)
        if not can_settle(state, wanting) or not make_room(state, wanting, draft):
            # Somebody has to give way, and requests of a step in flight cannot; what they need may also come with it.
            return False
        for request in leaving:
            state.leave_decodes(request)
        settle_pages(state, wanting, draft)
        for request in joining:
            if request.request_id in state.joining:
                state.join_decodes(request, draft)
        state.joining.clear()
        draft.budget.num_decode_tokens = len(state.decoding)
        self._fill_with_prompts(draft)
        return True

    def end(self, request: Request) -> None:
        """Nobody waits for the others: the row ends."""
        self._state.dismiss(request)

    def keeps_row(self, request: Request) -> bool:
        """A finished request leaves at once."""
        del request
        return False

    def _fill_with_prompts(self, draft: StepDraft) -> None:
        """Split the rest of the budget between running prompts and the waiting ones that could start."""
        state = self._state
        budget_tokens = draft.budget.num_left
        if budget_tokens == 0:
            return
        running = [r for r in state.running.values() if r.num_scheduled_tokens < r.num_tokens and not r.is_decoding]
        # A step that had to preempt admits nobody: the pages it freed are spoken for.
        passed: list[Request] = []
        candidates = [] if draft.has_preempted else self._find_candidates(passed, draft)
        prompts = [PrefillView(r, r.num_tokens - r.num_scheduled_tokens, is_running=True) for r in running]
        prompts.extend(PrefillView(c.request, c.num_remaining_tokens, is_running=False) for c in candidates)
        parts = state.policies.chunking.split(budget_tokens, prompts)
        for request, part in zip(running, parts, strict=False):
            if part:
                state.schedule_chunk(request, part, draft)
        for candidate, part in zip(candidates, parts[len(running) :], strict=True):
            if part == 0:
                candidate.request.blocked_on = BlockedOn.BUDGET
                continue
            # Looked up again, since an admission before this one may have evicted what was found.
            start = state.memory.find_start(candidate.request)
            if not state.make_available(candidate.request, start, candidate.num_reserved_tokens):
                candidate.request.blocked_on = BlockedOn.PAGES
                continue
            state.admit(candidate.request, start, candidate.num_reserved_tokens, draft)
            state.schedule_chunk(candidate.request, part, draft)
            for other in passed[: candidate.passes]:
                other.num_passed += 1

    def _find_candidates(self, passed: list[Request], draft: StepDraft) -> list[_Candidate]:
        """Return the waiting requests that could start now, in order, and append to ``passed`` those without pages.

        A request that lacks pages may be passed ``max_lookahead`` times; then pages are kept for it, and since every
        request needs pages, those behind it wait.
        """
        state = self._state
        memory = state.memory
        num_slots = state.config.max_num_seqs - len(state.running)
        num_pages = memory.num_available
        candidates: list[_Candidate] = []
        passes_left = _MAX_LOOKED_AT
        if num_slots <= 0 or not state.waiting:
            return candidates
        for request in state.waiting.first(_MAX_LOOKED_AT):
            if request.request_id in draft.preempted:
                # It has just made room for somebody else.
                continue
            if len(candidates) == num_slots:
                request.blocked_on = BlockedOn.SLOTS
                break
            start = memory.find_start(request)
            num_tokens = max(state.policies.admission.reserve_tokens(request), request.num_tokens)
            needed = memory.num_pages_taken(start.pages, num_tokens)
            if needed <= num_pages or needed <= num_pages + state.num_reclaimable(request):
                num_pages -= needed
                passes_left -= len(passed) > 0
                remaining = request.num_tokens - start.num_tokens
                candidates.append(_Candidate(request, remaining, num_tokens, len(passed)))
            else:
                request.blocked_on = BlockedOn.PAGES if request.host_lease is None else BlockedOn.SWAP_IN
                passes_left = min(passes_left, state.config.max_lookahead - request.num_passed)
                passed.append(request)
            if passes_left <= 0:
                break
        return candidates
