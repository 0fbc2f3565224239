"""The one move by which a running request gives way, whatever the cause, and what it would cost.

Knows nothing of who should give way: that is decided in ``batching``.
"""

from chairlift.core.events import Preempted, PreemptionCause
from chairlift.core.preemption_cost import Situation
from chairlift.core.request import BlockedOn, Phase, Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft
from chairlift.core.victim_pricing import VictimPricing


def price_victims(
    state: SchedulerState, now_ns: int, num_needed_pages: int, num_waiting_before: int = 0
) -> VictimPricing:
    """Return prices for one choice of a victim that is to free so many pages.

    ``num_waiting_before``: how many of those who wait are admitted before the victim comes back.
    """
    situation = Situation(
        num_pool_pages=state.memory.pool.num_pages,
        num_free_host_pages=state.host.num_free,
        num_running=len(state.running),
        num_context_tokens=state.num_decode_context_tokens,
        num_waiting_before=num_waiting_before,
        is_pool_wanted=len(state.waiting) > num_waiting_before,
    )
    return VictimPricing(
        state.memory,
        state.costs,
        situation,
        mode=state.config.preemption_mode,
        now_ns=now_ns,
        num_needed_pages=num_needed_pages,
    )


def preempt(
    state: SchedulerState, request: Request, cause: PreemptionCause, draft: StepDraft, prices: VictimPricing
) -> None:
    """A running request with nothing in flight gives its pages up, as ``prices`` say, and waits again."""
    num_computed = request.num_computed_tokens
    mode, num_kept_pages, _ = prices.way(request)
    num_swapped_pages = state.host.move_out(request) if mode == "swap" else 0
    num_freed_pages = state.kept.cut(request, num_kept_pages)
    num_saved_tokens = max(request.num_computed_tokens, request.num_swapped_tokens)
    state.take_out(request)
    request.move_to(Phase.PREEMPTED)
    request.num_scheduled_tokens = request.num_computed_tokens
    request.num_pending_tokens = request.num_token_slots = 0
    request.num_peak_tokens = max(request.num_peak_tokens, num_computed)
    request.is_decoding = False
    request.num_preemptions += 1
    request.num_displacements += cause in ("slots", "urgency", "quantum")
    request.has_yielded = cause == "quantum"
    request.waiting_since_ns = draft.now_ns
    request.blocked_on = BlockedOn.SLOTS if cause == "slots" else BlockedOn.PAGES
    state.kept.add(request)
    state.num_preemptions += 1
    state.waiting.push(request)
    draft.preempted[request.request_id] = request
    draft.has_preempted |= cause == "pages"
    state.emit(
        Preempted(
            request.request_id,
            draft.now_ns,
            draft.step,
            cause,
            num_computed - num_saved_tokens,
            num_freed_pages,
            mode,
            num_swapped_pages,
        )
    )
