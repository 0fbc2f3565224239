"""The scheduler's state and the few moves that change it; each move exists once.

Knows nothing of when a move is right: the batching modes decide that.
"""

from collections import deque

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.events import Admitted, Event, Finished, Queued
from chairlift.core.expiry import Expiry
from chairlift.core.fairness import VirtualCounters
from chairlift.core.guaranteed_share import GuaranteedShare
from chairlift.core.host_tier import HostTier
from chairlift.core.kept_pages import KeptPages
from chairlift.core.kv_memory import KVMemory, Start
from chairlift.core.length_predictor import LengthPredictor
from chairlift.core.policies import Policies, build_policies
from chairlift.core.ports import EventSink, PageKeyer
from chairlift.core.preemption_cost import PreemptionCosts
from chairlift.core.request import FinishReason, Phase, Request
from chairlift.core.service_ledger import ServiceLedger
from chairlift.core.step_draft import InFlightStep, StepDraft
from chairlift.core.step_latency import StepLatencyModel
from chairlift.core.step_plan import Chunk, PageGrowth
from chairlift.core.waiting_queue import WaitingQueue
from chairlift.core.work_estimate import WorkEstimate


class SchedulerState:
    """Who waits, who runs, who decodes, which steps are in flight.

    ``running`` is in the order of admission. ``decoding`` mirrors the executor's standing decode set, in its row
    order; in static batching it also holds finished members, whose rows go on. ``joining`` are requests whose last
    prefill chunk was planned and who decode from the next step on. ``departing`` are finished requests whose pages a
    step in flight (or a static group) still uses.
    """

    def __init__(  # noqa: PLR0915 - one flat record of all that changes
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        keyer: PageKeyer,
        events: EventSink | None = None,
        *,
        is_caching: bool,
    ) -> None:
        self.config = config
        self.memory = KVMemory(cache, keyer, events, is_caching=is_caching)
        self.host = HostTier(cache.num_host_pages, cache.page_size)
        self.latency = StepLatencyModel()
        self.lengths = LengthPredictor()
        self.estimate = WorkEstimate(self.lengths, self.latency)
        self.policies: Policies = build_policies(config, self.estimate)
        self.costs = PreemptionCosts(self.latency, cache.page_size, cache.page_bytes, cache.host_bytes_per_s)
        counters = VirtualCounters(lambda tenant: self.config.tenant(tenant).weight)
        self.ledger = ServiceLedger(counters, GuaranteedShare(config.guaranteed_share))
        self.waiting = WaitingQueue(
            self.policies.ordering,
            counters,
            is_fair=config.tenant_order == "fair",
            has_own_lane=self.has_quota,
            count_cached=lambda request: len(self.memory.find_prefix(request)) * cache.page_size,
            peek_cached=lambda request: len(self.memory.peek_prefix(request)) * cache.page_size,
        )
        self.has_quotas = config.has_quotas
        """Whether any tenant's running requests may hold only so many pages."""
        self.expiry = Expiry(config.queue_timeout_s, self.time_to_token_ns)
        self.requests: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        self.running_tiers: dict[int, int] = {}
        """How many requests of each tier run; tiers without any are absent."""
        self.kept = KeptPages(self.memory, self.running)
        self.decoding: dict[int, Request] = {}
        self.joining: dict[int, Request] = {}
        self.prefilling: dict[int, Request] = {}
        """Running requests whose last prefill chunk was not planned yet, in the order of admission."""
        self.due: list[Request] = []
        """Decodes that filled a page or ended with the step last planned, in row order."""
        self.num_decode_context_tokens = 0
        """Sum of ``num_scheduled_tokens`` over the standing decode set: what its rows read in the step last planned."""
        self.next_quantum_check_ns = 0
        """Before this nobody can have used up a quantum while an equal waited too long."""
        self.departing: dict[int, Request] = {}
        self.in_flight: deque[InFlightStep] = deque()
        self.ended: list[int] = []
        """Requests that the executor knows and that the next plan tells it to drop."""
        self.left: list[int] = []
        """Requests that the next plan takes out of the standing decode set."""
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        """Tokens planned a second time, since a preemption had dropped what the first time computed."""
        self.num_query_tokens = self.num_hit_tokens = 0
        self.num_prompt_tokens = self.num_generated_tokens = 0
        self.num_departures = 0
        """Running requests that ended, for whatever reason."""
        self._events = events
        self._num_arrivals = 0

    @property
    def has_listener(self) -> bool:
        """Whether anybody wants events."""
        return self._events is not None

    def emit(self, event: Event) -> None:
        """Pass an event on, if anybody listens."""
        if self._events is not None:
            self._events.emit(event)

    def has_quota(self, tenant: str) -> bool:
        """Whether the tenant's running requests may hold only so many pages."""
        return self.has_quotas and self.config.tenant(tenant).max_kv_pages is not None

    def time_to_token_ns(self, request: Request) -> int:
        """Return the least time that a waiting request needs to its next token, with what is cached now."""
        num_cached_tokens = max(
            len(self.memory.find_prefix(request)) * self.memory.page_size, request.num_computed_tokens
        )
        return self.estimate.prefill_ns(request.num_tokens, num_cached_tokens)

    def reconfigure(self, config: SchedulerConfig) -> None:
        """Other limits and policies hold from now on. Who runs, runs on; who waits keeps its arrival and counters."""
        self.config = config
        self.has_quotas = config.has_quotas
        self.policies = build_policies(config, self.estimate)
        self.waiting.rebuild(self.policies.ordering, is_fair=config.tenant_order == "fair", has_own_lane=self.has_quota)
        self.ledger.share.share = config.guaranteed_share
        self.expiry.reconfigure(config.queue_timeout_s, self.requests.values())

    def enqueue(self, request: Request, now_ns: int) -> None:
        """A new request arrives."""
        request.arrival_ns = request.waiting_since_ns = now_ns
        request.sequence = self._num_arrivals
        self._num_arrivals += 1
        self.requests[request.request_id] = request
        self.waiting.push(request)
        self.expiry.add(request)
        if self._events is not None:
            self.emit(Queued(request.request_id, now_ns, request.num_prompt_tokens))

    def make_available(self, request: Request, start: Start, num_tokens: int) -> bool:
        """See to it that :meth:`admit` finds the pages it needs, taking those that requests behind it kept."""
        while (missing := self.memory.num_pages_taken(start.pages, num_tokens) - self.memory.num_available) > 0:
            if self.kept.reclaim(missing, request) == 0:
                return False
        return True

    def admit(self, request: Request, start: Start, num_tokens: int, draft: StepDraft) -> None:
        """A waiting request starts or resumes: it gets a slot, what ``start`` found and pages up to ``num_tokens``."""
        self.memory.admit(request, start, num_tokens)
        self.waiting.remove(request)
        self.kept.remove(request)
        if request.host_lease is not None:
            copies, lease = self.host.move_in(request, start)
            draft.swapped_in.extend(copies)
            if lease is not None:
                draft.host_leases.append(lease)
        request.num_token_slots = len(request.pages) * self.memory.page_size
        is_resume = request.phase is Phase.PREEMPTED
        request.move_to(Phase.RUNNING)
        request.blocked_on = None
        request.num_computed_tokens = request.num_scheduled_tokens = start.num_tokens
        request.num_admitted_tokens = request.num_tokens
        self.ledger.start(request, start.num_tokens)
        if not is_resume:
            # A preempted request that finds its own pages again is not a hit.
            request.first_scheduled_ns = draft.now_ns
            request.num_cached_tokens = request.num_computed_tokens
            self.num_query_tokens += request.num_prompt_tokens
            self.num_hit_tokens += request.num_cached_tokens
            self.num_prompt_tokens += request.num_prompt_tokens
        self.running[request.request_id] = self.prefilling[request.request_id] = request
        self.running_tiers[request.priority] = self.running_tiers.get(request.priority, 0) + 1
        draft.introduce(request)
        if self._events is not None:
            self.emit(
                Admitted(
                    request.request_id,
                    draft.now_ns,
                    draft.step,
                    num_cached_tokens=request.num_computed_tokens,
                    num_queried_tokens=request.num_tokens,
                    is_resume=is_resume,
                    num_recomputed_tokens=max(0, request.num_peak_tokens - start.num_tokens),
                    num_swapped_pages=start.num_host_pages,
                )
            )

    def grow(self, request: Request, draft: StepDraft, num_pages: int = 1) -> None:
        """Give a running request more pages."""
        if num_pages:
            draft.grown.append(PageGrowth(request.request_id, tuple(self.memory.grow(request, num_pages))))
            request.num_token_slots += self.memory.page_size * num_pages

    def count_held_pages(self, tenant: str) -> int:
        """Pages in the page tables of the tenant's running requests; one that two of them share counts twice.

        What requests that wait have kept does not count: it is taken from them when it is needed.
        """
        return sum(len(request.pages) for request in self.running.values() if request.tenant == tenant)

    def schedule_chunk(self, request: Request, length: int, draft: StepDraft, *, padding: int = 0) -> None:
        """Put the request's next ``length`` tokens into the step, and ``padding`` rows after them."""
        start = request.num_scheduled_tokens
        if start < request.num_peak_tokens:
            self.num_recomputed_tokens += min(request.num_peak_tokens, start + length) - start
        is_last = start + length == request.num_tokens
        samples = is_last and not request.is_pooled
        chunk = Chunk(request.request_id, start, length, samples, padding)
        request.num_scheduled_tokens = start + length
        request.num_in_flight += 1
        if is_last:
            del self.prefilling[request.request_id]
        if samples:
            request.num_pending_tokens += 1
            request.is_decoding = True
            self.joining[request.request_id] = request
        draft.chunks.append((request, chunk))
        draft.budget.num_prefill_tokens += length
        draft.budget.num_padding_tokens += padding

    def schedule_decodes(self, draft: StepDraft) -> list[Request]:
        """Put one token of every request in the standing set into the step, and return them in row order."""
        decodes = list(self.decoding.values())
        due: list[Request] = []
        for request in decodes:
            num_scheduled = request.num_scheduled_tokens + 1
            request.num_scheduled_tokens = num_scheduled
            request.num_pending_tokens += 1
            request.num_in_flight += 1
            if num_scheduled >= request.next_turn_tokens:
                due.append(request)
        self.due = due
        self.num_decode_context_tokens += len(decodes)
        draft.budget.num_decode_tokens = len(decodes)
        return decodes

    def split_due(self) -> tuple[list[Request], list[Request]]:
        """Return which decodes leave before the next step, and which need a page for it."""
        leaving: list[Request] = []
        wanting: list[Request] = []
        for request in self.due:
            if request.request_id not in self.decoding:
                continue
            if request.num_scheduled_tokens >= request.max_computed_tokens:
                leaving.append(request)
                continue
            self.set_next_turn(request)
            if request.num_scheduled_tokens == request.num_token_slots:
                wanting.append(request)
        return leaving, wanting

    def set_next_turn(self, request: Request) -> None:
        """Note when a decode fills its page, or has computed all it ever will."""
        page_size = self.memory.page_size
        next_page = (request.num_scheduled_tokens // page_size + 1) * page_size
        request.next_turn_tokens = min(next_page, request.max_computed_tokens)

    def join_decodes(self, request: Request, draft: StepDraft) -> None:
        """The request decodes in this step and in every one that follows, until it leaves."""
        del self.joining[request.request_id]
        self.decoding[request.request_id] = request
        self.set_next_turn(request)
        self.ledger.join_decodes(request)
        self.num_decode_context_tokens += request.num_scheduled_tokens
        draft.joined.append(request.request_id)

    def leave_decodes(self, request: Request) -> None:
        """The request has all the decodes it needs planned; it stays known until its last token is committed."""
        del self.decoding[request.request_id]
        self.ledger.leave_decodes(request)
        self.num_decode_context_tokens -= request.num_scheduled_tokens
        self.left.append(request.request_id)

    def finish(self, request: Request, reason: FinishReason, *, keeps_row: bool = False) -> None:
        """A live request ends. ``keeps_row``: its row goes on executing (static batching) and so do its pages."""
        if request.request_id in self.waiting:
            self.waiting.remove(request)
            self.kept.cut(request, 0)
            self.host.discard(request)
        self.expiry.remove(request)
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and not request.is_pooled:
            self.lengths.observe(request.tenant, request.num_output_tokens)
        request.blocked_on = None
        request.finish_reason = reason
        was_running = request.phase is Phase.RUNNING
        request.move_to(Phase.FINISHED)
        del self.requests[request.request_id]
        if was_running:
            self.num_departures += 1
            self._leave_running(request)
            self.departing[request.request_id] = request
            if not keeps_row:
                self.dismiss(request)
        self.emit(Finished(request.request_id, reason.value, request.num_output_tokens))

    def dismiss(self, request: Request) -> None:
        """The row of a finished request ends: the executor forgets it, and its pages return once nothing uses them."""
        self.take_out(request)
        self.release_if_idle(request)

    def take_out(self, request: Request) -> None:
        """The request has no slot and no row any more, and the executor forgets it; its pages stay with it."""
        self._leave_running(request)
        if self.decoding.pop(request.request_id, None) is not None:
            self.ledger.leave_decodes(request)
            self.num_decode_context_tokens -= request.num_scheduled_tokens
        self.joining.pop(request.request_id, None)
        self.prefilling.pop(request.request_id, None)
        self.ended.append(request.request_id)

    def release_if_idle(self, request: Request) -> None:
        """Return the pages of a finished request whose row has ended, unless a step in flight still uses them."""
        request_id = request.request_id
        if request.num_in_flight or request_id in self.decoding or request_id in self.joining:
            return
        del self.departing[request_id]
        self.memory.release(request)

    def forget_batch(self) -> None:
        """The executor lost everything: no step is in flight any more, no page holds anything. All have finished."""
        for record in self.in_flight:
            self.host.release(record.host_leases)
        self.in_flight.clear()
        self.host.forget_copies()
        self.decoding.clear()
        self.ledger.forget_decodes()
        self.num_decode_context_tokens = 0
        self.joining.clear()
        self.prefilling.clear()
        self.due.clear()
        self.ended.clear()
        self.left.clear()
        for request in list(self.departing.values()):
            request.num_in_flight = 0
            self.release_if_idle(request)
        self.memory.clear_cache()

    def _leave_running(self, request: Request) -> None:
        if self.running.pop(request.request_id, None) is None:
            return
        left = self.running_tiers[request.priority] - 1
        if left:
            self.running_tiers[request.priority] = left
        else:
            del self.running_tiers[request.priority]
