"""Which of the waiting requests could start in this step, and what the others lack.

Knows nothing of the budget's split. A request that lacks pages may be passed by those behind it ``max_lookahead``
times; then pages are kept for it, and it is passed only by those who hold none of these when it can start. A request
that waits for a prefix stands aside: it holds up nobody, and is looked at again when it need not wait any more.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from chairlift.core.batching.backfill import count_needed_pages, count_spare_pages
from chairlift.core.kv_memory import Start
from chairlift.core.request import BlockedOn, Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import StepDraft
from chairlift.core.waiting_queue import Prefix, QueueWalk

_MAX_LOOKED_AT = 16
"""Waiting requests looked at in one step: bounds the cost of a step whatever the length of the queue."""
_MAX_HELD_BACK = 64
"""Requests that are looked at besides, since they wait for their own tenant's pages."""
MAX_PUT_ASIDE = 8192
"""Requests that are found to wait for a prefix in one step, at most: bounds what a burst adds to one step."""
_MIN_SHARED_TOKENS = 64
"""A request waits for a prefix that another one computes if that saves at least so many tokens."""


class Candidate(NamedTuple):
    """A waiting request that could start now: what is left to compute, what to reserve, and past whom."""

    request: Request
    num_remaining_tokens: int
    num_reserved_tokens: int
    num_passed: int
    """Length of the list of requests without pages that stand before it."""


class Found:
    """Candidates in order, and the requests without pages that some of them would pass."""

    __slots__ = ("candidates", "passed")

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.passed: list[Request] = []

    def note_start(self, candidate: Candidate) -> None:
        """A candidate started before those that it passed."""
        for other in self.passed[: candidate.num_passed]:
            other.num_passed += 1


def find_candidates(state: SchedulerState, draft: StepDraft, running: Sequence[Request], num_kept_pages: int) -> Found:
    """Return the waiting requests that could start now.

    Args:
        state: not changed, but for what waiting requests are blocked on.
        draft: the step so far.
        running: requests whose prompt is being computed.
        num_kept_pages: pages that these need in this step.
    """
    if len(state.running) >= state.config.max_num_seqs:
        state.waiting.blocked_on = BlockedOn.SLOTS
        return Found()
    state.waiting.blocked_on = None
    search = _Search(state, draft, running, num_kept_pages)
    with state.waiting.walk() as walk:
        while search.may_go_on and (request := walk.next()) is not None:
            search.look_at(request, walk)
    return search.found


class _Search:
    """One walk through the queue, with the slots, pages and looks that are left."""

    def __init__(
        self, state: SchedulerState, draft: StepDraft, running: Sequence[Request], num_kept_pages: int
    ) -> None:
        self.found = Found()
        self.may_go_on = True
        self._num_slots = state.config.max_num_seqs - len(state.running)
        self._state = state
        self._preempted = draft.preempted
        self._num_pages = state.memory.num_available - num_kept_pages
        self._num_tokens = draft.budget.num_left
        self._num_looks = _MAX_LOOKED_AT
        self._num_held_back = self._num_put_aside = 0
        self._passes_left = _MAX_LOOKED_AT
        self._num_spare: int | None = None
        """Pages that those behind a request may hold for which pages are kept."""
        self._held_pages: dict[str, int] = {}
        self._prefixes = PrefixesInTheMaking(state, running)

    def look_at(self, request: Request, walk: QueueWalk) -> None:
        """Decide about one request: it could start, or what does it lack?"""
        if request.request_id in self._preempted:
            return  # It has just made room for somebody else.
        if self._stop_before(request):
            return
        start = self._state.memory.find_start(request)
        prefix = self._prefixes.find_awaited(request, start)
        if prefix is not None:
            request.blocked_on = BlockedOn.PREFIX
            walk.wait_for_prefix(prefix)
            self._num_put_aside += 1
            return
        num_reserved = self._num_reserved_tokens(request, start)
        if self._exceeds_quota(request, num_reserved):
            request.blocked_on = BlockedOn.QUOTA
            walk.hold_back()
            self._num_held_back += not request.is_promoted
        else:
            self._num_looks -= 1
            self._place(request, start, num_reserved)

    def _stop_before(self, request: Request) -> bool:
        """End the walk if nobody further back could start, whatever it needs."""
        if len(self.found.candidates) == self._num_slots:
            reason = BlockedOn.SLOTS
        elif self._passes_left <= 0:
            reason = BlockedOn.RESERVED
        elif self._num_looks <= 0 or self._num_held_back >= _MAX_HELD_BACK or self._num_put_aside >= MAX_PUT_ASIDE:
            reason = BlockedOn.BUDGET
        else:
            return False
        request.blocked_on = self._state.waiting.blocked_on = reason
        self.may_go_on = False
        return True

    def _num_reserved_tokens(self, request: Request, start: Start) -> int:
        """Tokens that need pages at once: what the policy reserves, and the first chunk if it gets the whole budget."""
        first_chunk = request.num_tokens - start.num_tokens
        if self._state.config.enable_chunked_prefill:
            first_chunk = min(first_chunk, max(self._num_tokens, 1))
        return max(self._state.policies.admission.reserve_tokens(request), start.num_tokens + first_chunk)

    def _place(self, request: Request, start: Start, num_reserved: int) -> None:
        """Take pages for the request off, if they are there."""
        state = self._state
        needed = state.memory.num_pages_taken(start.pages, num_reserved)
        room = self._num_pages - self._num_watermark_pages(request)
        if needed <= room or needed <= room + state.kept.num_reclaimable(request):
            if self._exceeds_spare(request):
                request.blocked_on = state.waiting.blocked_on = BlockedOn.RESERVED
                return
            self._num_pages -= needed
            remaining = request.num_tokens - start.num_tokens
            self._num_tokens -= min(remaining, self._num_tokens)
            self._passes_left -= len(self.found.passed) > 0
            self.found.candidates.append(Candidate(request, remaining, num_reserved, len(self.found.passed)))
            self._prefixes.add(request, len(start.pages))
            if request.tenant in self._held_pages:
                self._held_pages[request.tenant] += state.memory.pages_for(num_reserved)
            return
        request.blocked_on = BlockedOn.PAGES if request.host_lease is None else BlockedOn.SWAP_IN
        self.found.passed.append(request)
        passes = 0 if request.is_promoted else max(0, state.config.max_lookahead - request.num_passed)
        if passes == 0 and not request.is_promoted:
            if self._num_spare is None:
                self._num_spare = count_spare_pages(state, needed - room - state.kept.num_reclaimable(request))
            if self._num_spare:
                return
        self._passes_left = min(self._passes_left, passes)

    def _exceeds_spare(self, request: Request) -> bool:
        """Whether the request would hold pages that are kept for one before it; if not, its own are taken off."""
        if self._num_spare is None or request.is_promoted:
            return False
        num_needed = count_needed_pages(self._state, request)
        if num_needed > self._num_spare:
            return True
        self._num_spare -= num_needed
        return False

    def _num_watermark_pages(self, request: Request) -> int:
        """Pages that stay free while others run; whose guaranteed turn it is may have them."""
        config = self._state.config
        if not config.watermark or request.is_promoted or not (self._state.running or self.found.candidates):
            return 0
        return int(config.watermark * self._state.memory.pool.num_pages)

    def _exceeds_quota(self, request: Request, num_reserved: int) -> bool:
        """Whether the tenant's running requests would hold more pages than they may. One alone may always run."""
        state, tenant = self._state, request.tenant
        quota = state.config.tenant(tenant).max_kv_pages
        if quota is None:
            return False
        if tenant not in self._held_pages:
            self._held_pages[tenant] = state.count_held_pages(tenant)
        num_others = self._held_pages[tenant]
        return num_others > 0 and num_others + state.memory.pages_for(num_reserved) > quota


class PrefixesInTheMaking:
    """Pages that running prompts (and candidates) are about to compute, by key.

    Choices of one prompt, or a burst of requests with one system prompt, would all compute it if they started
    together. Instead the others wait until the first one's pages can be shared. Whoever waits so, waits for a prompt of
    its own tier or a more urgent one that advances, and no longer than its guaranteed share allows: once promoted, a
    request waits for nobody's prefix.

    Pages of one that computes and one that waits, as half-open intervals::

        [0, cached)                  in the tree: both begin with these
        [cached, cached + 64 tokens) if these differ, there is nothing to wait for
        [cached, common)             what waiting saves, once it is computed
    """

    def __init__(self, state: SchedulerState, running: Iterable[Request]) -> None:
        self._memory = state.memory
        self._waiting = state.waiting
        self._num_ahead = max(_MIN_SHARED_TOKENS // state.memory.page_size, 1) - 1
        self._most_urgent: dict[tuple[int, Hashable], Request] = {}
        self._added = [(request, request.num_published_pages) for request in running]
        """Of these no keys were made yet; nobody may ask."""
        for record in state.in_flight:
            for request, _ in record.chunks:
                if request.request_id not in state.prefilling and request.finish_reason is None:
                    self._added.append((request, request.num_published_pages))
        if self._waiting.has_sleepers:
            self._wake_waiting()

    def add(self, request: Request, num_pages: int) -> None:
        """The request computes what follows its first ``num_pages`` pages."""
        self._added.append((request, num_pages))

    def find_awaited(self, request: Request, start: Start) -> Prefix | None:
        """Return what a waiting request should wait for, since somebody is just computing it."""
        if request.is_promoted or request.host_lease is not None:
            return None
        if request.needs_every_row or request.sampling.prompt_logprobs is not None:
            return None
        num_pages = len(start.pages)
        computer = self._find_computer(request, num_pages)
        if computer is None:
            return None
        num_known = num_pages + self._num_ahead + 1
        num_in_cohort = self._waiting.num_cohort_pages(request)
        # Who waits on, was it for less before, or not known to be for so much.
        waits_on = 0 < num_in_cohort < num_known
        num_common = self._memory.count_common_pages(request, computer, num_known, makes_keys=waits_on)
        if num_in_cohort >= num_known:
            num_common = min(num_common, num_in_cohort)
        # Who kept pages may find more than those who begin alike, so it stands aside alone.
        name = request.page_keys[num_common - 1] if request.lease is None else request.request_id
        return Prefix(computer.request_id, num_common, (num_common, request.lease is None, name))

    def _wake_waiting(self) -> None:
        """Those whose prefix was computed, or is not in the making any more, are looked at again.

        As long as the next page of whoever computes is not in the tree, all that wait for it find the same pages there
        as it has published: it holds these, and theirs are equal.
        """
        computing = {request.request_id: (request, num_pages) for request, num_pages in self._added}

        def count_useless(computer_id: int) -> int | None:
            request, num_pages = computing.get(computer_id, (None, 0))
            if request is None or not self._computes_anew(request, num_pages):
                return None
            return num_pages + self._num_ahead

        self._waiting.wake(count_useless)

    def _find_computer(self, request: Request, num_pages: int) -> Request | None:
        """Return who, at least as urgent, computes enough of what follows the request's first ``num_pages``."""
        for other, num_other_pages in self._added:
            self._note(other, num_other_pages)
        self._added.clear()
        if not self._most_urgent:
            return None
        index = num_pages + self._num_ahead
        # Keys are chained, so an equal key means that all pages before it are equal too.
        computer = self._most_urgent.get((index, self._memory.page_key(request, index)))
        return computer if computer is not None and computer.priority <= request.priority else None

    def _note(self, request: Request, num_pages: int) -> None:
        index = num_pages + self._num_ahead
        page_key = self._memory.page_key(request, index)
        if page_key is not None and self._computes_anew(request, num_pages):
            known = self._most_urgent.setdefault((index, page_key), request)
            if request.priority < known.priority:
                self._most_urgent[index, page_key] = request

    def _computes_anew(self, request: Request, num_pages: int) -> bool:
        """Whether the page that follows a request's first ``num_pages`` is full one day and not in the tree yet."""
        memory = self._memory
        return memory.page_key(request, num_pages) is not None and not memory.is_cached(request, num_pages)
