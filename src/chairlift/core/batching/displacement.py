"""Room for a waiting request that should run instead of one that does: a slot, pages, or both.

Knows nothing of how the request is admitted afterwards, nor of pages that running requests lack.

Who gives way to whom:

- a request of a less urgent tier to one of a more urgent tier, and anybody to a request whose guaranteed turn it is;
- with ``--scheduling-policy preemptive``, a request that got more than its quantum of output tokens since it was last
  admitted to one of its own tier that has waited longer than the limit. Otherwise equals never displace each other.

Nobody is displaced unless the waiting request then fits, so no work is lost for nothing. Against going back and forth:
a request is displaced ``max_preemptions`` times at most; one that came back is left alone until it has a token that it
did not have before; one whose last token comes with the next step is left alone, since it makes room by itself.
"""

from collections.abc import Iterable
from typing import NamedTuple

from chairlift.core.batching.candidates import PrefixesInTheMaking
from chairlift.core.batching.quotas import exceeds_quota
from chairlift.core.events import PreemptionCause
from chairlift.core.giving_way import preempt, price_victims
from chairlift.core.request import Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft

_MAX_LOOKED_AT = 16
"""Waiting requests that room is looked for in one step, at most."""
_NS_PER_MS = 1_000_000
_CHECKS_PER_LIMIT = 16
"""How often in the time that an equal has to wait it is looked whether somebody should yield to it."""


class _Move(NamedTuple):
    """Who makes room for one waiting request, and how many pages must be available once it has been made."""

    victims: list[Request]
    cause: PreemptionCause
    num_needed_pages: int


def make_room(state: SchedulerState, wanting: list[Request], draft: StepDraft) -> bool:
    """Displace running requests for waiting ones that should come first; these are admitted like any other then.

    Args:
        state: what to change.
        wanting: running requests that need a page in this step; pages for these are left.
        draft: the step.

    Returns:
        False if somebody should be displaced and a step in flight must be committed first; nothing has changed then.
    """
    if not state.waiting or not _could_displace(state, draft.now_ns):
        return True
    finder = _Finder(state, wanting, draft)
    moves = finder.find()
    if not moves:
        return True
    if state.in_flight:
        return False
    for move in moves:
        for victim in move.victims:
            num_missing = max(0, move.num_needed_pages - state.memory.num_available)
            preempt(state, victim, move.cause, draft, price_victims(state, draft.now_ns, num_missing, 1))
    return True


def _could_displace(state: SchedulerState, now_ns: int) -> bool:
    """Whether it is worth a closer look; cheap, since it is asked in every step in which somebody waits."""
    if not state.running:
        return False
    tiers, promoted = state.waiting.tiers, state.waiting.promoted
    if tiers and tiers[0] < max(state.running_tiers):
        return True
    if promoted and state.ledger.share.is_overdue(state.waiting.turn(promoted[0])):
        return True
    return state.config.scheduling_policy == "preemptive" and now_ns >= state.next_quantum_check_ns


class _Finder:
    """Plays the coming admissions through on numbers, and picks victims where they would fail."""

    def __init__(self, state: SchedulerState, wanting: list[Request], draft: StepDraft) -> None:
        self._state = state
        self._now_ns = draft.now_ns
        self._num_tokens = draft.budget.limit_tokens - len(state.decoding) - len(state.joining)
        self._wanting = {request.request_id for request in wanting}
        self._num_slots = state.config.max_num_seqs - len(state.running)
        # Pages for those who run come first, so the newcomers' are on top of these.
        self._num_needed_pages = len(wanting)
        self._num_freed_pages = 0
        self._chosen: dict[int, Request] = {}
        self._prefixes = PrefixesInTheMaking(state, list(state.prefilling.values()))

    def find(self) -> list[_Move]:
        """Return who makes room, in order; nobody is named twice."""
        moves: list[_Move] = []
        is_preemptive = self._state.config.scheduling_policy == "preemptive"
        for request in self._state.waiting.first(_MAX_LOOKED_AT):
            if self._num_tokens <= 0:
                break
            with_equals = is_preemptive and self._has_waited_long(request)
            if not (with_equals or self._is_more_urgent(request)):
                # A promoted request takes a slot that becomes free; only if none does for long, it is overdue.
                if is_preemptive or request.is_promoted:
                    continue
                break
            move = self._place(request, with_equals=with_equals)
            if move is None:
                break
            if move.victims:
                moves.append(move)
        if not moves:
            # Nobody has used up a quantum, or nobody has waited long: that changes slowly.
            limit_ns = self._state.config.max_equal_wait_ms * _NS_PER_MS
            self._state.next_quantum_check_ns = self._now_ns + limit_ns // _CHECKS_PER_LIMIT
        return moves

    def _is_more_urgent(self, request: Request) -> bool:
        return self._is_overdue(request) or request.priority < max(self._state.running_tiers)

    def _is_overdue(self, request: Request) -> bool:
        return self._state.ledger.share.is_overdue(self._state.waiting.turn(request))

    def _has_waited_long(self, request: Request) -> bool:
        return self._now_ns - request.waiting_since_ns > self._state.config.max_equal_wait_ms * _NS_PER_MS

    def _place(self, request: Request, *, with_equals: bool) -> _Move | None:
        """Return the move that lets the request in, without victims if it fits as it is; ``None`` if there is none."""
        state, memory = self._state, self._state.memory
        start = memory.find_start(request)
        nobody = _Move([], "slots", self._num_needed_pages)
        if not request.is_promoted and self._prefixes.has_next(request, len(start.pages)):
            return nobody  # It waits for what somebody else computes, whatever there is room for.
        num_first_tokens = request.num_tokens - start.num_tokens
        if state.config.enable_chunked_prefill:
            num_first_tokens = min(num_first_tokens, self._num_tokens)
        num_tokens = max(state.policies.admission.reserve_tokens(request), start.num_tokens + num_first_tokens)
        if state.has_quotas and exceeds_quota(state, request, num_tokens):
            return nobody  # Room that others make would be of no use to it.
        needed = self._num_needed_pages + memory.num_pages_taken(start.pages, num_tokens)
        num_spare = 0 if request.is_promoted else int(state.config.watermark * memory.pool.num_pages)
        obtainable = memory.num_available + self._num_freed_pages + state.kept.num_reclaimable(request)
        num_missing_slots, num_missing = max(0, 1 - self._num_slots), max(0, needed + num_spare - obtainable)
        victims: list[Request] = []
        cause: PreemptionCause = "urgency" if num_missing else "slots"
        if num_missing_slots or num_missing:
            candidates = self._candidates(request, with_equals=with_equals)
            victims = self._choose(candidates, num_missing_slots, num_missing)
            if not victims:
                return None
            if not self._is_overdue(request) and any(victim.priority == request.priority for victim in victims):
                cause = "quantum"
        self._num_slots += len(victims) - 1
        self._num_tokens -= num_first_tokens
        self._num_needed_pages = needed
        self._num_freed_pages += self._frees(victims)
        self._chosen.update((victim.request_id, victim) for victim in victims)
        return _Move(victims, cause, needed + num_spare)

    def _candidates(self, request: Request, *, with_equals: bool) -> list[Request]:
        """Return who may be displaced for this request, in the order in which they were admitted."""
        state, quantum = self._state, self._state.config.quantum_tokens
        candidates: list[Request] = []
        is_overdue = self._is_overdue(request)
        for running in state.running.values():
            gives_way = is_overdue or running.priority > request.priority
            if with_equals and running.priority == request.priority:
                gives_way |= running.num_tokens - running.num_admitted_tokens > quantum
            if gives_way and self._is_displaceable(running):
                candidates.append(running)
        return candidates

    def _is_displaceable(self, running: Request) -> bool:
        if running.is_promoted or running.num_displacements >= self._state.config.max_preemptions:
            return False
        if running.request_id in self._chosen:
            return False
        if running.num_preemptions and running.num_tokens == running.num_admitted_tokens:
            return False
        return running.num_tokens + 1 < running.num_prompt_tokens + running.max_tokens or not running.is_decoding

    def _choose(self, candidates: list[Request], num_slots: int, num_pages: int) -> list[Request]:
        """Let the policy choose until there is room, then spare those without whom there is; nobody if too little."""
        state = self._state
        chosen: list[Request] = []
        while candidates and not self._suffices(chosen, num_slots, num_pages):
            prices = price_victims(state, self._now_ns, max(0, num_pages - self._frees(chosen)), 1)
            victim_id = state.policies.preemption.choose(candidates, prices).request_id
            chosen.append(next(candidate for candidate in candidates if candidate.request_id == victim_id))
            candidates = [candidate for candidate in candidates if candidate.request_id != victim_id]
        if not self._suffices(chosen, num_slots, num_pages):
            return []
        for victim in list(chosen):
            others = [other for other in chosen if other is not victim]
            if self._suffices(others, num_slots, num_pages):
                chosen = others
        return chosen

    def _suffices(self, victims: list[Request], num_slots: int, num_pages: int) -> bool:
        return len(victims) >= num_slots and self._frees(victims) >= num_pages

    def _frees(self, victims: Iterable[Request]) -> int:
        """Pages that come free with these: their own, and those that they would have taken in this step."""
        memory = self._state.memory
        return sum(
            len(victim.pages) - memory.num_shared_pages(victim) + (victim.request_id in self._wanting)
            for victim in victims
        )
