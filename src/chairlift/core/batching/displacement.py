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

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from chairlift.core.batching.candidates import MAX_PUT_ASIDE, PrefixesInTheMaking
from chairlift.core.events import PreemptionCause
from chairlift.core.giving_way import preempt, price_victims
from chairlift.core.kv_memory import Start
from chairlift.core.request import Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft
from chairlift.core.views import PrefillView

_MAX_LOOKED_AT = 16
"""Waiting requests that room is looked for in one step, at most."""
_NS_PER_MS = 1_000_000
_CHECKS_PER_LIMIT = 16
"""How often in the time that an equal has to wait it is looked whether somebody should yield to it."""


Split: TypeAlias = Callable[[int, list[PrefillView]], list[int]]
"""Tokens of the budget that each of these prompts gets."""


class _Move(NamedTuple):
    """Who makes room for one waiting request, and how many pages must be available once it has been made."""

    victims: list[Request]
    cause: PreemptionCause
    num_needed_pages: int


def make_room(state: SchedulerState, wanting: list[Request], draft: StepDraft, split: Split) -> bool:
    """Displace running requests for waiting ones that should come first; these are admitted like any other then.

    Args:
        state: what to change.
        wanting: running requests that need a page in this step; pages for these are left.
        draft: the step.
        split: how prompts will share the step's budget.

    Returns:
        False if somebody should be displaced and a step in flight must be committed first; nothing has changed then.
    """
    if not state.waiting or not _could_displace(state, draft.now_ns):
        return True
    finder = _Finder(state, wanting, draft, split)
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


class _Need(NamedTuple):
    """What a waiting request needs to start in this step."""

    prompt: PrefillView
    start_pages: list[int]
    """Pages that it finds computed."""
    num_first_tokens: int
    num_held_pages: int
    """Pages of its page table, shared ones included."""
    num_pages: int
    """Pages that must be available, for those who run and those placed before it too, and those that stay free."""
    num_pages_with_others: int
    """The same without those that stay free."""
    num_missing_slots: int
    num_missing_pages: int


class _Finder:
    """Plays the coming admissions through on numbers, and picks victims where they would fail."""

    def __init__(self, state: SchedulerState, wanting: list[Request], draft: StepDraft, split: Split) -> None:
        self._state = state
        self._now_ns = draft.now_ns
        self._split = split
        self._limit_tokens = draft.budget.limit_tokens
        self._num_tokens = draft.budget.limit_tokens - len(state.decoding) - len(state.joining)
        self._num_slots = state.config.max_num_seqs - len(state.running)
        # Pages for those who run come first, so the newcomers' are on top of these.
        self._wanted = {request.request_id: 1 for request in wanting} | self._count_wanted_pages()
        self._num_needed_pages = sum(self._wanted.values())
        self._num_freed_pages = 0
        self._freed: set[int] = set()
        self._chosen: dict[int, Request] = {}
        self._placed: list[PrefillView] = []
        self._num_held_pages: dict[str, int] = {}
        """Pages that running requests of a tenant would hold, as far as it was asked."""
        self._held_back: set[str] = set()
        self._is_preemptive = state.config.scheduling_policy == "preemptive"
        self._prefixes = PrefixesInTheMaking(state, list(state.prefilling.values()))

    def find(self) -> list[_Move]:
        """Return who makes room, in order; nobody is named twice."""
        moves: list[_Move] = []
        num_looks, num_put_aside = _MAX_LOOKED_AT, MAX_PUT_ASIDE
        with self._state.waiting.peek() as walk:
            while num_looks and num_put_aside and self._num_tokens > 0 and (request := walk.next()) is not None:
                if not self._concerns(request):
                    break
                start = self._state.memory.find_start(request)
                prefix = self._prefixes.find_awaited(request, start)
                if prefix is not None:  # Room is of no use for it.
                    walk.wait_for_prefix(prefix)
                    num_put_aside -= 1
                elif self._look_at(request, start, moves):
                    num_looks -= 1
                else:
                    break
        if not moves:
            # Nobody has used up a quantum, or nobody has waited long: that changes slowly.
            limit_ns = self._state.config.max_equal_wait_ms * _NS_PER_MS
            self._state.next_quantum_check_ns = self._now_ns + limit_ns // _CHECKS_PER_LIMIT
        return moves

    def _concerns(self, request: Request) -> bool:
        """Whether somebody may give way to the request, or to one behind it."""
        return self._is_preemptive or request.is_promoted or self._is_more_urgent(request)

    def _look_at(self, request: Request, start: Start, moves: list[_Move]) -> bool:
        """Note who makes room for a request; return whether to look further."""
        with_equals = self._is_preemptive and self._has_waited_long(request)
        if not (with_equals or self._is_more_urgent(request)):
            return self._lets_others_pass(request, start)
        move = self._place(request, start, with_equals=with_equals)
        if move is not None and move.victims:
            moves.append(move)
        return move is not None

    def _lets_others_pass(self, request: Request, start: Start) -> bool:
        """Whether somebody behind a request for which nobody gives way could start in this step; it may start itself.

        A promoted request takes a slot that becomes free; only if none does for long, it is overdue. The pages that it
        lacks are kept for it.
        """
        need = self._need(request, start)
        if need is None:
            return True
        if need.num_missing_pages:
            return not request.is_promoted and request.num_passed < self._state.config.max_lookahead
        if need.num_missing_slots:
            return request.is_promoted
        self._take(request, need, [])
        return True

    def _is_more_urgent(self, request: Request) -> bool:
        return self._is_overdue(request) or request.priority < max(self._state.running_tiers)

    def _is_overdue(self, request: Request) -> bool:
        return self._state.ledger.share.is_overdue(self._state.waiting.turn(request))

    def _has_waited_long(self, request: Request) -> bool:
        return self._now_ns - request.waiting_since_ns > self._state.config.max_equal_wait_ms * _NS_PER_MS

    def _place(self, request: Request, start: Start, *, with_equals: bool) -> _Move | None:
        """Return the move that lets the request in, without victims if it fits as it is; ``None`` if there is none."""
        need = self._need(request, start)
        if need is None:
            return _Move([], "slots", self._num_needed_pages)
        victims: list[Request] = []
        cause: PreemptionCause = "urgency" if need.num_missing_pages else "slots"
        if need.num_missing_slots or need.num_missing_pages:
            candidates = self._candidates(request, with_equals=with_equals)
            victims = self._choose(candidates, need)
            if not victims or not self._gets_tokens(need.prompt, victims):
                return None
            if not self._is_overdue(request) and any(victim.priority == request.priority for victim in victims):
                cause = "quantum"
        self._take(request, need, victims)
        return _Move(victims, cause, need.num_pages)

    def _need(self, request: Request, start: Start) -> _Need | None:
        """Return what a waiting request needs to start; ``None`` if it waits for what room is of no use for."""
        state, memory = self._state, self._state.memory
        num_remaining = num_first_tokens = request.num_tokens - start.num_tokens
        if state.config.enable_chunked_prefill:
            num_first_tokens = min(num_first_tokens, self._num_tokens)
        num_tokens = max(state.policies.admission.reserve_tokens(request), start.num_tokens + num_first_tokens)
        if state.has_quotas and self._exceeds_quota(request, memory.pages_for(num_tokens)):
            return None
        num_needed = self._num_needed_pages + memory.num_pages_taken(start.pages, num_tokens)
        if self._freed:
            num_needed += len(self._freed.intersection(start.pages))  # Counted as freed, and taken again.
        num_spare = 0 if request.is_promoted else int(state.config.watermark * memory.pool.num_pages)
        obtainable = memory.num_available + self._num_freed_pages + state.kept.num_reclaimable(request)
        return _Need(
            PrefillView(request, num_remaining, is_running=False),
            start.pages,
            num_first_tokens,
            memory.pages_for(num_tokens),
            num_needed + num_spare,
            num_needed,
            max(0, 1 - self._num_slots),
            max(0, num_needed + num_spare - obtainable),
        )

    def _exceeds_quota(self, request: Request, num_pages: int) -> bool:
        """Whether its tenant would hold too much; then those of its tenant behind it are held back too."""
        tenant = request.tenant
        quota = self._state.config.tenant(tenant).max_kv_pages
        if quota is None:
            return False
        num_held = self._count_held_pages(tenant)
        if num_held > 0 and num_held + num_pages > quota:
            self._held_back.add(tenant)
        return tenant in self._held_back

    def _count_held_pages(self, tenant: str) -> int:
        if tenant not in self._num_held_pages:
            self._num_held_pages[tenant] = self._state.count_held_pages(tenant)
        return self._num_held_pages[tenant]

    def _take(self, request: Request, need: _Need, victims: list[Request]) -> None:
        """The request starts, and these make room for it."""
        self._num_slots += len(victims) - 1
        self._num_tokens -= need.num_first_tokens
        self._num_freed_pages += self._frees(victims, need)
        self._freed.difference_update(need.start_pages)
        for victim in victims:
            self._freed |= self._own_pages(victim).difference(need.start_pages)
        self._num_needed_pages = need.num_pages_with_others
        self._chosen.update((victim.request_id, victim) for victim in victims)
        for victim in victims if self._state.has_quotas else ():
            self._num_held_pages[victim.tenant] = self._count_held_pages(victim.tenant) - len(victim.pages)
        if self._state.has_quotas:
            self._num_held_pages[request.tenant] = self._count_held_pages(request.tenant) + need.num_held_pages
        self._placed.append(need.prompt)
        self._prefixes.add(request, len(need.start_pages))

    def _gets_tokens(self, prompt: PrefillView, victims: list[Request]) -> bool:
        """Whether the step's budget reaches as far as this prompt, once these have made room."""
        state = self._state
        left = {victim.request_id for victim in victims} | self._chosen.keys()
        num_rows = sum(request_id not in left for rows in (state.decoding, state.joining) for request_id in rows)
        prompts = [
            PrefillView(running, running.num_tokens - running.num_scheduled_tokens, is_running=True)
            for running in state.prefilling.values()
            if running.request_id not in left
        ]
        return self._split(self._limit_tokens - num_rows, [*prompts, *self._placed, prompt])[-1] > 0

    def _count_wanted_pages(self) -> dict[int, int]:
        """Pages that running prompts take if they use the budget in order."""
        memory, num_tokens = self._state.memory, self._num_tokens
        wanted: dict[int, int] = {}
        for request in self._state.prefilling.values():
            length = min(request.num_tokens - request.num_scheduled_tokens, max(num_tokens, 0))
            num_tokens -= length
            wanted[request.request_id] = max(
                0, memory.pages_for(request.num_scheduled_tokens + length) - len(request.pages)
            )
        return wanted

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

    def _choose(self, candidates: list[Request], need: _Need) -> list[Request]:
        """Let the policy choose until there is room, then spare those without whom there is; nobody if too little."""
        state = self._state
        chosen: list[Request] = []
        while candidates and not self._suffices(chosen, need):
            num_missing = max(0, need.num_missing_pages - self._frees(chosen, need))
            prices = price_victims(state, self._now_ns, num_missing, 1)
            victim_id = state.policies.preemption.choose(candidates, prices).request_id
            chosen.append(next(candidate for candidate in candidates if candidate.request_id == victim_id))
            candidates = [candidate for candidate in candidates if candidate.request_id != victim_id]
        if not self._suffices(chosen, need):
            return []
        for victim in list(chosen):
            others = [other for other in chosen if other is not victim]
            if self._suffices(others, need):
                chosen = others
        return chosen

    def _suffices(self, victims: list[Request], need: _Need) -> bool:
        return len(victims) >= need.num_missing_slots and self._frees(victims, need) >= need.num_missing_pages

    def _frees(self, victims: Iterable[Request], need: _Need) -> int:
        """Pages that come free with these: their own, and those that they would have taken in this step.

        What the waiting request finds in their pages is no room for it: it takes these again.
        """
        return sum(
            len(self._own_pages(victim).difference(need.start_pages)) + self._wanted.get(victim.request_id, 0)
            for victim in victims
        )

    def _own_pages(self, running: Request) -> set[int]:
        return set(running.pages[self._state.memory.num_shared_pages(running) :])
