"""The scheduler's state and the few moves that change it; each move exists once.

Knows nothing of when a move is right: the batching modes decide that.
"""

from collections import deque
from typing import Literal

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.events import Admitted, Event, Finished, Preempted, Queued
from chairlift.core.kv_memory import KVMemory
from chairlift.core.policies import Policies, build_policies
from chairlift.core.ports import EventSink, PageKeyer
from chairlift.core.request import BlockedOn, FinishReason, Phase, Request
from chairlift.core.step_draft import InFlightStep, StepDraft
from chairlift.core.step_plan import Chunk, PageGrowth
from chairlift.core.waiting_queue import WaitingQueue


class SchedulerState:
    """Who waits, who runs, who decodes, which steps are in flight.

    ``running`` is in the order of admission. ``decoding`` mirrors the executor's standing decode set, in its row
    order; in static batching it also holds finished members, whose rows go on. ``joining`` are requests whose last
    prefill chunk was planned and who decode from the next step on. ``departing`` are finished requests whose pages a
    step in flight (or a static group) still uses.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        keyer: PageKeyer,
        events: EventSink | None = None,
        *,
        is_caching: bool,
    ) -> None:
        self.config = config
        self.policies: Policies = build_policies(config)
        self.memory = KVMemory(cache, keyer, events, is_caching=is_caching)
        self.waiting = WaitingQueue(self.policies.ordering)
        self.requests: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        self.decoding: dict[int, Request] = {}
        self.joining: dict[int, Request] = {}
        self.num_decode_context_tokens = 0
        """Sum of ``num_scheduled_tokens`` over the standing decode set: what its rows read in the step last planned."""
        self.departing: dict[int, Request] = {}
        self.in_flight: deque[InFlightStep] = deque()
        self.ended: list[int] = []
        """Requests that the executor knows and that the next plan tells it to drop."""
        self.left: list[int] = []
        """Requests that the next plan takes out of the standing decode set."""
        self.num_preemptions = 0
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_departures = 0
        """Running requests that ended, for whatever reason."""
        self._events = events
        self._num_arrivals = 0

    def emit(self, event: Event) -> None:
        """Pass an event on, if anybody listens."""
        if self._events is not None:
            self._events.emit(event)

    def enqueue(self, request: Request, now_ns: int) -> None:
        """A new request arrives."""
        request.arrival_ns = now_ns
        request.sequence = self._num_arrivals
        self._num_arrivals += 1
        self.requests[request.request_id] = request
        self.waiting.push(request)
        if self._events is not None:
            self.emit(Queued(request.request_id, now_ns, request.num_prompt_tokens))

    def admit(self, request: Request, shared: list[int], num_tokens: int, draft: StepDraft) -> None:
        """A waiting request starts or resumes: it gets a slot, the shared prefix and pages up to ``num_tokens``."""
        self.memory.admit(request, shared, num_tokens)
        self.waiting.remove(request)
        request.num_token_slots = len(request.pages) * self.memory.page_size
        is_resume = request.phase is Phase.PREEMPTED
        request.move_to(Phase.RUNNING)
        request.blocked_on = None
        request.num_computed_tokens = request.num_scheduled_tokens = len(shared) * self.memory.page_size
        if not is_resume:
            # A preempted request that finds its own pages again is not a hit.
            request.first_scheduled_ns = draft.now_ns
            request.num_cached_tokens = request.num_computed_tokens
            self.num_query_tokens += request.num_prompt_tokens
            self.num_hit_tokens += request.num_cached_tokens
            self.num_prompt_tokens += request.num_prompt_tokens
        self.running[request.request_id] = request
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
                )
            )

    def grow(self, request: Request, draft: StepDraft) -> None:
        """Give a running request one more page."""
        draft.grown.append(PageGrowth(request.request_id, tuple(self.memory.grow(request, 1))))
        request.num_token_slots += self.memory.page_size

    def schedule_chunk(self, request: Request, length: int, draft: StepDraft, *, padding: int = 0) -> None:
        """Put the request's next ``length`` tokens into the step, and ``padding`` rows after them."""
        start = request.num_scheduled_tokens
        samples = start + length == request.num_tokens
        chunk = Chunk(request.request_id, start, length, samples, padding)
        request.num_scheduled_tokens = start + length
        request.num_in_flight += 1
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
        for request in decodes:
            request.num_scheduled_tokens += 1
            request.num_pending_tokens += 1
            request.num_in_flight += 1
        self.num_decode_context_tokens += len(decodes)
        draft.budget.num_decode_tokens = len(decodes)
        return decodes

    def join_decodes(self, request: Request, draft: StepDraft) -> None:
        """The request decodes in this step and in every one that follows, until it leaves."""
        del self.joining[request.request_id]
        self.decoding[request.request_id] = request
        self.num_decode_context_tokens += request.num_scheduled_tokens
        draft.joined.append(request.request_id)

    def leave_decodes(self, request: Request) -> None:
        """The request has all the decodes it needs planned; it stays known until its last token is committed."""
        del self.decoding[request.request_id]
        self.num_decode_context_tokens -= request.num_scheduled_tokens
        self.left.append(request.request_id)

    def preempt(self, request: Request, cause: Literal["pages"], draft: StepDraft) -> None:
        """A running request with nothing in flight loses its pages and goes back to the head of its tier."""
        num_lost_tokens = request.num_computed_tokens
        num_freed_pages = self.memory.release(request)
        self._drop_from_batch(request)
        self.ended.append(request.request_id)
        request.move_to(Phase.PREEMPTED)
        request.num_computed_tokens = request.num_scheduled_tokens = request.num_pending_tokens = 0
        request.num_token_slots = 0
        request.is_decoding = False
        request.num_preemptions += 1
        request.blocked_on = BlockedOn.PAGES
        self.num_preemptions += 1
        self.waiting.push(request)
        draft.has_preempted = True
        self.emit(Preempted(request.request_id, draft.now_ns, draft.step, cause, num_lost_tokens, num_freed_pages))

    def finish(self, request: Request, reason: FinishReason, *, keeps_row: bool = False) -> None:
        """A live request ends. ``keeps_row``: its row goes on executing (static batching) and so do its pages."""
        if request.request_id in self.waiting:
            self.waiting.remove(request)
        request.blocked_on = None
        request.finish_reason = reason
        was_running = request.phase is Phase.RUNNING
        request.move_to(Phase.FINISHED)
        del self.requests[request.request_id]
        if was_running:
            self.num_departures += 1
            self.running.pop(request.request_id)
            self.departing[request.request_id] = request
            if not keeps_row:
                self.dismiss(request)
        self.emit(Finished(request.request_id, reason.value, request.num_output_tokens))

    def dismiss(self, request: Request) -> None:
        """The row of a finished request ends: the executor forgets it, and its pages return once nothing uses them."""
        self._drop_from_batch(request)
        self.ended.append(request.request_id)
        self.release_if_idle(request)

    def release_if_idle(self, request: Request) -> None:
        """Return the pages of a finished request whose row has ended, unless a step in flight still uses them."""
        request_id = request.request_id
        if request.num_in_flight or request_id in self.decoding or request_id in self.joining:
            return
        del self.departing[request_id]
        self.memory.release(request)

    def forget_batch(self) -> None:
        """The executor lost everything: no step is in flight any more, no page holds anything. All have finished."""
        self.in_flight.clear()
        self.decoding.clear()
        self.num_decode_context_tokens = 0
        self.joining.clear()
        self.ended.clear()
        self.left.clear()
        for request in list(self.departing.values()):
            request.num_in_flight = 0
            self.release_if_idle(request)
        self.memory.clear_cache()

    def _drop_from_batch(self, request: Request) -> None:
        self.running.pop(request.request_id, None)
        if self.decoding.pop(request.request_id, None) is not None:
            self.num_decode_context_tokens -= request.num_scheduled_tokens
        self.joining.pop(request.request_id, None)
