"""Forms forward passes: decides what each step computes, and takes in what it computed.

Knows nothing of how steps are executed; time comes in as an argument, and all state changes happen in ``add``,
``abort``, ``finish``, ``plan`` and ``commit``.
"""

from collections.abc import Mapping, Sequence

from chairlift.config.resolved import CacheConfig, SchedulerConfig, check_step_budget
from chairlift.core.batching import BATCHING, BatchingMode
from chairlift.core.events import Reconfigured, Scheduled, StepCommitted
from chairlift.core.fitting import limit_output
from chairlift.core.outcome import CommittedStep, RequestUpdate
from chairlift.core.page_keys import DigestKeyer
from chairlift.core.ports import EventSink, PageKeyer
from chairlift.core.reconfiguration import change_config, check_names
from chairlift.core.request import FinishReason, Request
from chairlift.core.state import SchedulerState
from chairlift.core.step_draft import InFlightStep, StepDraft, describe
from chairlift.core.step_intake import take_in
from chairlift.core.step_latency import StepLatencyModel
from chairlift.core.step_pace import StepPace
from chairlift.core.step_plan import StepPlan, StepResult
from chairlift.core.token_budget import TokenBudget
from chairlift.core.views import SchedulerStats
from chairlift.core.wait_prediction import WaitPredictor
from chairlift.errors import ConfigurationError, InvalidRequestError, InvariantError


class Scheduler:
    """Iteration-level scheduler over a paged KV pool.

    Calls come from one thread. Every planned step must be committed, in order; plans may be made while earlier steps
    are in flight.

    Args:
        scheduler: limits and policies.
        cache: the pool.
        events: who is told what happens; nobody if absent.
        keyer: names pages by content; digests of the tokens if absent.

    Raises:
        ConfigurationError: the settings cannot work together.
    """

    def __init__(
        self,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        *,
        events: EventSink | None = None,
        keyer: PageKeyer | None = None,
    ) -> None:
        check_step_budget(scheduler, cache)
        check_names(scheduler)
        if scheduler.batching not in BATCHING:
            raise ConfigurationError(f"--batching {scheduler.batching!r} is unknown; there are: {', '.join(BATCHING)}")
        mode = BATCHING[scheduler.batching]
        self._config = self._built_config = scheduler
        self._cache = cache
        self._events = events
        self._keyer = keyer if keyer is not None else DigestKeyer()
        self._state = SchedulerState(
            scheduler, cache, self._keyer, events, is_caching=cache.enable_prefix_caching and mode.shares_prefixes
        )
        self._batching = mode(self._state)
        self._pace = StepPace(self._state)
        self._expired: list[RequestUpdate] = []
        self._next_step = 0
        self._epoch = 0

    @property
    def state(self) -> SchedulerState:
        """The state, for checks and views; to be read only."""
        return self._state

    @property
    def config(self) -> SchedulerConfig:
        """Limits and policies in force."""
        return self._config

    @property
    def batching(self) -> type[BatchingMode]:
        """How steps are filled."""
        return type(self._batching)

    @property
    def built_config(self) -> SchedulerConfig:
        """Limits that it was built with: some of those in force may be lower."""
        return self._built_config

    @property
    def latency(self) -> StepLatencyModel:
        """What steps take, as learnt from those that ran; to be read only."""
        return self._state.latency

    @property
    def waits(self) -> WaitPredictor:
        """Predicts the time to first token of requests that might arrive."""
        return self._pace.waits

    @property
    def requests(self) -> Mapping[int, Request]:
        """Live requests by id."""
        return self._state.requests

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is alive, or any step in flight."""
        return bool(self._state.requests or self._state.in_flight)

    @property
    def num_running(self) -> int:
        """Requests in the running batch."""
        return len(self._state.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, preempted ones included."""
        return len(self._state.waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of the requests that wait."""
        return self._state.waiting.num_tokens

    @property
    def num_free_slots(self) -> int:
        """Slots that the next step could fill."""
        return max(0, self._config.max_num_seqs - len(self._state.running))

    def add(self, request: Request, now_ns: int) -> None:
        """Take a request in. Its output limit is lowered to what model length and pool can ever hold.

        Raises:
            RequestTooLongError: the prompt can never fit; nothing has changed.
            InvalidRequestError: the prompt is empty, or the id is in use.
        """
        if request.request_id in self._state.requests:
            raise InvalidRequestError(f"request id {request.request_id} is in use")
        limit_output(request, self._config, self._cache)
        self._state.enqueue(request, now_ns)

    def abort(self, request_id: int) -> bool:
        """End a request because nobody wants it any more. Returns False if it was not alive."""
        return self.finish(request_id, FinishReason.ABORT)

    def finish(self, request_id: int, reason: FinishReason, keep_tokens: int | None = None) -> bool:
        """End a request from outside, keeping its first ``keep_tokens`` output tokens (all if absent).

        Its slot is free for the next plan, its pages as soon as no step in flight uses them.
        Returns False if it was not alive.
        """
        request = self._state.requests.get(request_id)
        if request is None:
            return False
        if keep_tokens is not None and request.request_id not in self._state.waiting:
            del request.token_ids[request.num_prompt_tokens + keep_tokens :]
        self._state.finish(request, reason, keeps_row=self._batching.keeps_row(request))
        return True

    @property
    def next_expiry_ns(self) -> int | None:
        """When the scheduler has to be asked for a plan at the latest, since somebody's time runs out then."""
        return self._state.expiry.next_ns

    def expire(self, now_ns: int) -> None:
        """End requests that waited too long or can no longer meet their deadline; every plan does so first."""
        state = self._state
        for request, reason in state.expiry.take_due(now_ns):
            state.finish(request, reason, keeps_row=self._batching.keeps_row(request))
            self._expired.append(
                RequestUpdate(request.request_id, (), reason, None, request.num_cached_tokens or 0, None)
            )

    def take_expired(self) -> list[RequestUpdate]:
        """Return what became of requests whose time ran out, once; no step tells of them."""
        expired, self._expired = self._expired, []
        return expired

    def reconfigure(self, changes: Mapping[str, object], now_ns: int) -> None:
        """Change limits and policies, by field of the configuration; counters and places in the queue stay.

        A lower number of slots or pages displaces nobody: those who run go on, and nobody new starts until it holds.

        Raises:
            ConfigurationError: a value is unknown, fixed or does not work with the others; nothing has changed.
        """
        config = change_config(self._config, self._built_config, self._cache, changes)
        self._config = config
        self._state.reconfigure(config)
        if self._events is not None:
            self._events.emit(Reconfigured(now_ns, dict(changes)))

    def plan(self, now_ns: int) -> StepPlan | None:
        """Decide the next step and reserve what it needs.

        Returns ``None`` if there is nothing to compute, or if a step in flight must be committed first.
        """
        state = self._state
        self.expire(now_ns)
        draft = StepDraft(self._next_step, now_ns, TokenBudget(self._pace.limit_tokens()))
        has_step = self._batching.compose(draft)
        state.expiry.looked_at()
        if not has_step:
            return None
        decodes = state.schedule_decodes(draft)
        if draft.budget.num_tokens == 0:
            self._pace.paused()
            return None
        self._pace.planned(draft)
        state.ledger.end_step(draft, state.waiting)
        left = tuple([request_id for request_id in state.left if request_id not in state.ended])
        copies = state.host.take_copies()
        plan = draft.freeze(self._epoch, len(decodes), ended=tuple(state.ended), left=left, swapped_out=copies)
        state.ended.clear()
        state.left.clear()
        num_copies = len(copies) + len(draft.swapped_in)
        state.in_flight.append(
            InFlightStep(draft.step, decodes, draft.chunks, draft.budget, draft.host_leases, state.due, num_copies)
        )
        self._next_step += 1
        if self._events is not None:
            self._events.emit(Scheduled(draft.step, now_ns, tuple(state.decoding), plan.chunks))
        return plan

    def commit(self, step: int, result: StepResult) -> CommittedStep:
        """Take in a step's result: scheduled tokens are computed now, sampled tokens are known, requests end.

        Raises:
            InvariantError: the step is not the oldest one in flight, or the result does not fit it.
        """
        state = self._state
        if not state.in_flight or state.in_flight[0].step != step or result.step != step:
            raise InvariantError(f"step {step} with the result of step {result.step} is not the oldest in flight")
        record = state.in_flight.popleft()
        sampled = [request for request, chunk in record.chunks if chunk.samples]
        num_rows = len(record.decodes) + len(sampled)
        if num_rows != len(result.token_ids):
            raise InvariantError(f"step {step} has {num_rows} sampling rows and {len(result.token_ids)} tokens came")
        committed = take_in(state, self._batching.keeps_row, record, sampled, result)
        self._pace.committed(record, result)
        if self._events is not None:
            self._events.emit(
                StepCommitted(
                    step,
                    result.duration_ns,
                    committed.num_prefill_tokens,
                    committed.num_decode_tokens,
                    committed.num_padding_tokens,
                    committed.num_wasted_rows,
                )
            )
        return committed

    def jump_steps(self, starts_ns: Sequence[int], durations_ns: Sequence[int]) -> int:
        """Note steps of the standing decodes that nobody planned; :mod:`~.fast_forward` has moved the requests.

        Returns the number of the first of them.
        """
        state, first_step = self._state, self._next_step
        for planned_ns, duration_ns in zip(starts_ns, durations_ns, strict=True):
            draft = StepDraft(self._next_step, planned_ns, TokenBudget(self._config.max_num_batched_tokens))
            draft.budget.num_decode_tokens = len(state.decoding)
            state.num_decode_context_tokens += len(state.decoding)
            self._pace.planned(draft)
            state.ledger.end_step(draft, state.waiting)
            record = InFlightStep(draft.step, [], [], draft.budget, [])
            self._pace.committed(record, StepResult(draft.step, (), duration_ns))
            self._next_step += 1
        return first_step

    def fail_all(self) -> list[int]:
        """The executor broke: end every live request with an error, forget steps in flight and all cached pages.

        Returns the ids of the ended requests. The next plan starts a new epoch.
        """
        ids = list(self._state.requests)
        for request_id in ids:
            self._state.finish(self._state.requests[request_id], FinishReason.ERROR)
        self._state.forget_batch()
        self._batching = BATCHING[self._config.batching](self._state)
        self._epoch += 1
        return ids

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns False, and does nothing, while requests are alive or steps in flight."""
        if self.has_unfinished or self._state.departing:
            return False
        self._state.memory.clear_cache()
        return True

    def snapshot(self) -> StepPlan:
        """Return the executor's whole record as one plan that computes nothing, for another rank to start from.

        Raises:
            InvariantError: a step is in flight, so the record is changing.
        """
        state = self._state
        if state.in_flight:
            raise InvariantError("a snapshot needs every step committed")
        known = [*state.running.values(), *state.departing.values()]
        return StepPlan(
            step=self._next_step,
            epoch=self._epoch,
            num_tokens=0,
            num_decodes=len(state.decoding),
            new=tuple(describe(request) for request in known),
            decodes_joined=tuple(state.decoding),
        )

    def stats(self) -> SchedulerStats:
        """Return the scheduler in numbers."""
        state = self._state
        pool = state.memory.pool
        return SchedulerStats(
            num_running=len(state.running),
            num_waiting=len(state.waiting),
            num_pages=pool.num_pages,
            num_free_pages=pool.num_free,
            num_cached_pages=pool.num_cached,
            num_leased_pages=pool.num_leased,
            preemptions_total=state.num_preemptions,
            prefix_query_tokens_total=state.num_query_tokens,
            prefix_hit_tokens_total=state.num_hit_tokens,
            prompt_tokens_total=state.num_prompt_tokens,
            generation_tokens_total=state.num_generated_tokens,
            recomputed_tokens_total=state.num_recomputed_tokens,
            swapped_out_pages_total=state.host.num_pages_out,
            swapped_in_pages_total=state.host.num_pages_in,
            num_host_pages=state.host.pool.num_pages,
            num_free_host_pages=state.host.num_free,
        )
