"""Why a request is not further: in words, with the numbers behind them and the setting that would change it.

Knows nothing of who asks. Everything is found out when somebody asks, and asking changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chairlift.core.backlog import Amount
from chairlift.core.request import BlockedOn, Phase, Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.state import SchedulerState
from chairlift.core.wait_prediction import Newcomer, find_standing

MAX_POSITION = 256
"""Places in the queue that are counted out; further back, a place is not known."""
_NUM_LOOKED_AT = 80
"""Waiting requests that the scheduler looks at in one step at most, besides those that wait for a prefix; all others
lack what the last of these lacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExplanation:
    """One live request; a place in the queue counts from 0.

    ``waited_ns`` is how long it has waited since it came or was last preempted, and for one that runs, how long it
    waited for its first slot. ``predicted_wait_ns`` is the time from now until its next token.

    ``position``, ``num_tokens_ahead`` and ``predicted_wait_ns`` are ``None`` for one that runs, and where they are not
    known: beyond :data:`MAX_POSITION`, or before anything was learnt.
    """

    request_id: int
    phase: Phase
    blocked_on: BlockedOn | None
    reason: str
    tier: int
    tenant: str
    waited_ns: int
    position: int | None
    num_tokens_ahead: int | None
    predicted_wait_ns: int | None
    num_preemptions: int
    num_kv_pages: int
    num_computed_tokens: int
    num_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int


def explain(
    scheduler: Scheduler, request_id: int, now_ns: int, places: Mapping[int, Amount] | None = None
) -> RequestExplanation | None:
    """Describe a live request; ``None`` if there is none of this id.

    ``places`` are those of :func:`find_places`, for whoever asks about many; they cost most of the time.
    """
    request = scheduler.requests.get(request_id)
    if request is None:
        return None
    if request.phase is Phase.RUNNING:
        return _explain(scheduler, request, None, now_ns)
    places = find_places(scheduler.state) if places is None else places
    return _explain(scheduler, request, places.get(request_id), now_ns)


def explain_first(
    scheduler: Scheduler, limit: int, now_ns: int
) -> tuple[list[RequestExplanation], list[RequestExplanation]]:
    """Describe those who run, as they were admitted, and those who wait, in their order, at most so many of each."""
    state = scheduler.state
    running = [_explain(scheduler, request, None, now_ns) for request in list(state.running.values())[:limit]]
    places = list(find_places(state).items())[:limit]
    return running, [_explain(scheduler, state.requests[request_id], ahead, now_ns) for request_id, ahead in places]


def _explain(scheduler: Scheduler, request: Request, ahead: Amount | None, now_ns: int) -> RequestExplanation:
    state = scheduler.state
    is_running = request.phase is Phase.RUNNING
    blocked_on = None if is_running else _find_reason(state, request)
    return RequestExplanation(
        request_id=request.request_id,
        phase=request.phase,
        blocked_on=blocked_on,
        reason=_describe_running(request) if is_running else _describe_waiting(state, request, blocked_on),
        tier=request.priority,
        tenant=request.tenant,
        waited_ns=_count_waited_ns(request, now_ns),
        position=None if ahead is None else ahead.num_requests,
        num_tokens_ahead=None if ahead is None else ahead.num_tokens,
        predicted_wait_ns=None if is_running else _predict_wait_ns(scheduler, request, ahead),
        num_preemptions=request.num_preemptions,
        num_kv_pages=len(request.pages),
        num_computed_tokens=request.num_computed_tokens,
        num_tokens=request.num_tokens,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        max_tokens=request.max_tokens,
    )


def find_places(state: SchedulerState) -> dict[int, Amount]:
    """Find what stands before each of the first waiting requests: how many, and the tokens they have to compute."""
    places: dict[int, Amount] = {}
    num_tokens = 0
    for position, request in enumerate(state.waiting.list_first(MAX_POSITION)):
        places[request.request_id] = Amount(position, num_tokens)
        num_tokens += request.num_tokens - request.num_computed_tokens
    return places


def count_waiting_by_reason(scheduler: Scheduler) -> dict[BlockedOn, int]:
    """Count waiting requests by what they lack. Those that nobody looked at lack what the scheduler stopped at.

    Looks at a bounded number of requests. Nobody is counted before the first step that looked.
    """
    state = scheduler.state
    num_left = len(state.waiting)
    counts: dict[BlockedOn, int] = {}
    shared = _shared_reason(state)
    if shared is None or shared is not BlockedOn.SLOTS:
        if num_for_prefix := state.waiting.num_waiting_for_prefix:
            counts[BlockedOn.PREFIX] = num_for_prefix
            num_left -= num_for_prefix
        for request in state.waiting.first(_NUM_LOOKED_AT):
            reason = _find_reason(state, request)
            num_left -= 1
            if reason is not None:
                counts[reason] = counts.get(reason, 0) + 1
                shared = shared or reason
    if num_left and shared is not None:
        counts[shared] = counts.get(shared, 0) + num_left
    return counts


def _find_reason(state: SchedulerState, request: Request) -> BlockedOn | None:
    """What a waiting request lacks; ``None`` if it came after the last step was planned and nothing is short."""
    shared = _shared_reason(state)
    if shared is BlockedOn.SLOTS or shared is BlockedOn.GROUP:
        return shared
    if state.waiting.waits_for_prefix(request):
        return BlockedOn.PREFIX
    # It may have waited for a prefix that is there by now.
    return shared if request.blocked_on in (None, BlockedOn.PREFIX) else request.blocked_on


def _shared_reason(state: SchedulerState) -> BlockedOn | None:
    """What everybody lacks whom the scheduler did not look at."""
    if not state.waiting:
        return None
    if state.config.batching == "static":
        return BlockedOn.GROUP if state.running else None
    if len(state.running) >= state.config.max_num_seqs:
        return BlockedOn.SLOTS
    return state.waiting.blocked_on


def _count_waited_ns(request: Request, now_ns: int) -> int:
    """How long it waits already, or how long it waited for its first slot if it runs."""
    if request.phase is Phase.RUNNING and request.first_scheduled_ns is not None:
        return request.first_scheduled_ns - request.arrival_ns
    return now_ns - request.waiting_since_ns


def _predict_wait_ns(scheduler: Scheduler, request: Request, ahead: Amount | None) -> int | None:
    """Time until its next token, as for a newcomer that stands where it stands."""
    if ahead is None:
        return None
    newcomer = Newcomer(request.num_tokens, tier=request.priority, tenant=request.tenant)
    standing = find_standing(scheduler.state, newcomer, ahead)
    prediction = scheduler.waits.predict(scheduler.state, newcomer, standing)
    return None if prediction is None else prediction.ttft_ns


def _describe_running(request: Request) -> str:
    if request.is_pooled:
        return f"runs: {request.num_computed_tokens} of {request.num_tokens} tokens are computed before its vector"
    if request.is_decoding:
        return f"runs: has {request.num_output_tokens} of at most {request.max_tokens} output tokens"
    return f"runs: {request.num_computed_tokens} of {request.num_tokens} tokens are computed before its next one"


def _describe_waiting(state: SchedulerState, request: Request, blocked_on: BlockedOn | None) -> str:
    if blocked_on is None:
        return "has just come: the next step looks at it"
    words = _WORDS[blocked_on](state, request)
    if request.is_promoted:
        words += "; its guaranteed turn has come, so it is the next to get it"
    if request.num_preemptions:
        times = "once" if request.num_preemptions == 1 else f"{request.num_preemptions} times"
        words += f" (preempted {times}, {request.num_computed_tokens} tokens kept)"
    return words


def _in_slots(state: SchedulerState, request: Request) -> str:
    del request
    num_slots, num_waiting = state.config.max_num_seqs, len(state.waiting)
    taken = "the only one is taken" if num_slots == 1 else f"all {num_slots} are taken"
    waiting = "1 request waits" if num_waiting == 1 else f"{num_waiting} requests wait"
    return f"waits for a slot: {taken} and {waiting}; raise --max-num-seqs"


def _in_pages(state: SchedulerState, request: Request) -> str:
    memory = state.memory
    needed = _count_needed_pages(state, request)
    words = f"waits for {needed} KV pages; {memory.num_available} are available"
    kept = round(state.config.watermark * memory.pool.num_pages)
    if kept:
        words += f" and {kept} of these stay free (--watermark)"
    return f"{words}; raise --kv-cache-memory or lower --max-num-seqs"


def _in_host_memory(state: SchedulerState, request: Request) -> str:
    return f"its KV of {request.num_swapped_tokens} tokens lies in host memory: {_in_pages(state, request)}"


def _in_budget(state: SchedulerState, request: Request) -> str:
    del request
    config = state.config
    num_running = sum(not other.is_decoding for other in state.running.values())
    words = (
        f"waits for its part of a step's {config.max_num_batched_tokens} tokens: {len(state.decoding)} go to decodes, "
        f"and {num_running} running prompts want the rest; raise --max-num-batched-tokens"
    )
    return words if config.target_tpot_ms is None else f"{words} or --target-tpot-ms ({config.target_tpot_ms:g})"


def _in_quota(state: SchedulerState, request: Request) -> str:
    held = state.count_held_pages(request.tenant)
    return (
        f"waits for {_count_needed_pages(state, request)} KV pages of its tenant's: its running requests hold {held} "
        f"of {state.config.tenant(request.tenant).max_kv_pages}; raise max_kv_pages in --tenants"
    )


def _in_reserve(state: SchedulerState, request: Request) -> str:
    del request
    return (
        f"waits because a request before it was passed {state.config.max_lookahead} times for want of KV pages, which "
        "are kept for that one now; raise --kv-cache-memory or --max-lookahead"
    )


def _in_prefix(state: SchedulerState, request: Request) -> str:
    del state, request
    return "waits for a prompt that begins as its own and is just being computed: it will share those pages"


def _in_group(state: SchedulerState, request: Request) -> str:
    del request
    return f"waits until all {len(state.running)} members of the running group have ended (--batching static)"


def _in_grammar(state: SchedulerState, request: Request) -> str:
    del state, request
    return "waits until its grammar is compiled"


_WORDS: Mapping[BlockedOn, Callable[[SchedulerState, Request], str]] = {
    BlockedOn.SLOTS: _in_slots,
    BlockedOn.PAGES: _in_pages,
    BlockedOn.SWAP_IN: _in_host_memory,
    BlockedOn.BUDGET: _in_budget,
    BlockedOn.QUOTA: _in_quota,
    BlockedOn.RESERVED: _in_reserve,
    BlockedOn.PREFIX: _in_prefix,
    BlockedOn.GROUP: _in_group,
    BlockedOn.GRAMMAR: _in_grammar,
}


def _count_needed_pages(state: SchedulerState, request: Request) -> int:
    """Pages that must be available for it to start, less those it can share as far as is known."""
    memory = state.memory
    shared = memory.peek_prefix(request)
    kept = max(len(shared), len(request.pages))
    reserved = max(state.policies.admission.reserve_tokens(request), min(request.num_tokens, memory.page_size))
    idle = sum(1 for page in shared if memory.pool.references(page) == 0)
    return max(memory.pages_for(reserved) - kept + idle, 0)
