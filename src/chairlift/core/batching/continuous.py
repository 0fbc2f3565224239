"""Continuous batching: a slot that empties is filled in the next step.

Knows nothing of groups. A step is decided in this order: decodes join and leave, their pages are settled (preempting
if need be), and what they leave of the token budget goes to prompts, running and newly admitted.
"""

from typing import ClassVar

from chairlift.core.batching.candidates import Candidate, Found, find_candidates
from chairlift.core.batching.displacement import make_room
from chairlift.core.batching.quotas import count_room, exceeds_quota, would_exceed_quota
from chairlift.core.batching.settle_pages import can_settle, find_stuck, settle_pages
from chairlift.core.budget_shares import BudgetShares
from chairlift.core.request import BlockedOn, Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft
from chairlift.core.views import PrefillView


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
        leaving, wanting = state.split_due()
        joining = [r for r in state.joining.values() if r.num_scheduled_tokens < r.max_computed_tokens]
        wanting += [r for r in joining if r.num_scheduled_tokens == r.num_token_slots]
        if not can_settle(state, wanting) or not make_room(state, wanting, draft, self._split):
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
        if draft.budget.num_left == 0:
            state.waiting.blocked_on = BlockedOn.BUDGET
            return
        running = self._running_prompts(draft)
        # A step that had to preempt admits nobody: the pages it freed are spoken for.
        found = Found()
        if state.waiting and not draft.has_preempted:
            found = find_candidates(state, draft, running, self._count_wanted_pages(running, draft.budget.num_left))
        running = self._with_room(running)
        prompts = [PrefillView(r, r.num_tokens - r.num_scheduled_tokens, is_running=True) for r in running]
        prompts += [PrefillView(c.request, c.num_remaining_tokens, is_running=False) for c in found.candidates]
        parts = self._split(draft.budget.num_left, prompts)
        for request, part in zip(running, parts, strict=False):
            length = self._fit(request, part, draft)
            if length:
                state.schedule_chunk(request, length, draft)
        for candidate, part in zip(found.candidates, parts[len(running) :], strict=True):
            if part == 0:
                candidate.request.blocked_on = BlockedOn.BUDGET
            elif self._start(candidate, part, draft):
                found.note_start(candidate)

    def _running_prompts(self, draft: StepDraft) -> list[Request]:
        """Return the running requests that have prompt left, after seeing to it that somebody can advance.

        Prompts take pages as they go under ``optimistic`` admission.
        """
        prompts = list(self._state.prefilling.values())
        # More than once, since who gives way may keep its pages, and the others be stuck at their quota.
        while stuck := find_stuck(self._state, prompts):
            settle_pages(self._state, stuck, draft)
            prompts = list(self._state.prefilling.values())
        return prompts

    def _with_room(self, prompts: list[Request]) -> list[Request]:
        """Return the prompts that can advance: budget for one that waits for a page would be lost to the others."""
        state = self._state
        has_pages = bool(state.memory.num_available or state.kept.num_reclaimable())
        if has_pages and not state.has_quotas:
            return prompts
        return [
            request
            for request in prompts
            if request.num_scheduled_tokens < request.num_token_slots
            or (has_pages and not would_exceed_quota(state, request.tenant, 1))
        ]

    def _count_wanted_pages(self, running: list[Request], num_tokens: int) -> int:
        """Pages that running prompts will take if they use the budget in order."""
        wanted = 0
        for request in running:
            length = min(request.num_tokens - request.num_scheduled_tokens, num_tokens)
            num_tokens -= length
            wanted += max(0, self._state.memory.pages_for(request.num_scheduled_tokens + length) - len(request.pages))
        return wanted

    def _split(self, budget_tokens: int, prompts: list[PrefillView]) -> list[int]:
        """Give each prompt its part of the budget; whole prompts cannot be split by share."""
        state = self._state
        if not state.config.enable_chunked_prefill:
            return state.policies.chunking.split(budget_tokens, prompts)
        weight_of = state.ledger.counters.weight_of if state.config.tenant_order == "fair" else None
        return BudgetShares(state.policies.chunking, state.ledger.share.part_for, weight_of).split(
            budget_tokens, prompts
        )

    def _fit(self, request: Request, num_tokens: int, draft: StepDraft) -> int:
        """Return how many of its next tokens have pages, after giving the request those that there are."""
        state, memory = self._state, self._state.memory
        missing = memory.pages_for(request.num_scheduled_tokens + num_tokens) - len(request.pages)
        if missing > 0:
            if missing > memory.num_available:
                state.kept.reclaim(missing - memory.num_available)
            state.grow(request, draft, min(missing, count_room(state, request)))
        return min(num_tokens, request.num_token_slots - request.num_scheduled_tokens)

    def _start(self, candidate: Candidate, num_tokens: int, draft: StepDraft) -> bool:
        """Admit a candidate with its first chunk, if its pages are still there."""
        state, request = self._state, candidate.request
        # Looked up again, since an admission before this one may have evicted what was found.
        start = state.memory.find_start(request)
        num_tokens = min(num_tokens, request.num_tokens - start.num_tokens)
        num_reserved = max(state.policies.admission.reserve_tokens(request), start.num_tokens + num_tokens)
        if state.has_quotas and exceeds_quota(state, request, num_reserved):
            request.blocked_on = BlockedOn.QUOTA  # Running prompts of its tenant grew in this step.
            return False
        if not state.make_available(request, start, num_reserved):
            request.blocked_on = BlockedOn.PAGES
            return False
        state.admit(request, start, num_reserved, draft)
        state.schedule_chunk(request, num_tokens, draft)
        return True
