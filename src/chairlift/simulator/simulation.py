"""Runs a workload through the scheduler on simulated time.

Knows nothing of policies or latencies: the stepper is the engine's own, and the executor says how long steps take.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from chairlift.core.fast_forward import count_standing_steps, fast_forward
from chairlift.core.ports import PageKeyer
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import StepPlan
from chairlift.core.stepper import Stepper
from chairlift.errors import InvalidRequestError, InvariantError
from chairlift.simulator.clock import Clock
from chairlift.simulator.content_keys import ContentKeyer
from chairlift.simulator.executor import PlanObserver, SimulatedExecutor
from chairlift.simulator.recorder import Recorder
from chairlift.simulator.setup import SimulatedEngine
from chairlift.workload.items import WorkRequest, compact_prompt
from chairlift.workload.streams import Stream, Workload

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_MOST_JUMPED = 1 << 16
"""Steps of one jump: what is noted of each would not fit into memory if answers had milliards of tokens."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A simulation that has run to its end."""

    recorder: Recorder
    scheduler: Scheduler
    end_ns: int
    num_jumped_steps: int


class Simulation:
    """One run. Requests exist from their arrival to their end only, so a workload's length costs no memory.

    Requests are queued between steps, as in the engine: what arrives during a step is seen when it has ended.

    Args:
        engine: what is simulated.
        workload: what it is to serve.
        jumps: whether stretches in which nothing but standing decodes runs may be jumped; plans are the same.
        observer: is shown every plan as well.
        keyer: names pages of prompts, by their content ids if absent.
    """

    def __init__(
        self,
        engine: SimulatedEngine,
        workload: Workload,
        *,
        jumps: bool = True,
        observer: PlanObserver | None = None,
        keyer: PageKeyer | None = None,
    ) -> None:
        facts = engine.latency.facts
        self._step_overhead_ns, self._row_overhead_ns = facts.step_overhead_ns, facts.row_overhead_ns
        self._request_overhead_ns = facts.request_overhead_ns
        self._clock = Clock()
        self._recorder = Recorder(len(workload.streams))
        self._scheduler = Scheduler(engine.scheduler, engine.cache, keyer=keyer or ContentKeyer())
        watcher = self._recorder if observer is None else _Both(self._recorder, observer)
        self._executor = SimulatedExecutor(engine.latency, engine.cache.page_size, self._clock, watcher)
        self._recorder.watch(self._executor.num_computed_tokens)
        self._stepper = Stepper(self._scheduler, self._executor, engine.pipeline_depth)
        self._jumps = jumps and engine.pipeline_depth == 1
        self._num_jumped = 0
        self._streams = workload.streams
        self._has_tiers = workload.has_tiers
        self._open = workload.arrivals()
        self._next_open = next(self._open, None)
        self._closed = workload.closed_loops()
        self._later: list[tuple[int, int, WorkRequest]] = []
        self._numbers = count()
        self._ids = count()
        self._sampling: dict[int, SamplingParams] = {}

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that is simulated; to be read only."""
        return self._scheduler

    @property
    def now_ns(self) -> int:
        """Simulated time."""
        return self._clock.now_ns

    def run(self) -> Finished:
        """Run until every request has ended.

        Raises:
            InvariantError: requests are alive, and nothing runs or will come.
        """
        for stream, requests in self._closed.items():
            for work in islice(requests, self._streams[stream].concurrency):
                self._schedule(work, 0)
        while True:
            self._queue_arrivals()
            if not self._step() and not self._wait():
                break
        return Finished(self._recorder, self._scheduler, self._clock.now_ns, self._num_jumped)

    # ------------------------------------------------------------------------------------------- arrivals

    def _queue_arrivals(self) -> None:
        """Queue everything that has arrived by now."""
        now_ns = self._clock.now_ns - self._request_overhead_ns
        while True:
            coming, later = self._next_open, self._later
            if later and later[0][0] <= now_ns and (coming is None or later[0][0] < coming.arrival_ns):
                arrival_ns, _, work = heapq.heappop(later)
                self._queue(work, arrival_ns)
            elif coming is not None and coming.arrival_ns <= now_ns:
                self._queue(coming, coming.arrival_ns)
                self._next_open = next(self._open, None)
            else:
                return

    def _queue(self, work: WorkRequest, arrival_ns: int) -> None:
        try:
            request = self._add(work, arrival_ns)
        except InvalidRequestError as error:
            self._recorder.refused(work, error.message)
            self._succeed(work)
            return
        if request.max_tokens != work.num_output_tokens:
            work = work._replace(num_output_tokens=request.max_tokens)
        self._recorder.arrived(request.request_id, work, arrival_ns)

    def _add(self, work: WorkRequest, arrival_ns: int) -> Request:
        """Give the request to the scheduler, which may refuse it."""
        num_tokens, limit = work.num_prompt_tokens, self._scheduler.config.max_model_len
        if num_tokens >= limit:  # So says the scheduler; but a length that was mistyped may not even fit into memory.
            raise InvalidRequestError(
                f"the prompt has {num_tokens} tokens and at least 1 output token is needed, but a request may have "
                f"{limit} in all (--max-model-len)"
            )
        request = self._make_request(work, self._streams[work.stream], arrival_ns)
        self._scheduler.add(request, self._clock.now_ns)
        return request

    def _make_request(self, work: WorkRequest, stream: Stream, arrival_ns: int) -> Request:
        sampling = self._sampling.get(work.num_output_tokens)
        if sampling is None:
            sampling = SamplingParams(temperature=0.0, max_tokens=work.num_output_tokens, ignore_eos=True)
            self._sampling[work.num_output_tokens] = sampling
        ttft_ms, deadline_ms = stream.ttft_deadline_ms, stream.deadline_ms
        return Request(
            next(self._ids),
            compact_prompt(work),
            sampling,
            priority=stream.tier if work.tier is None or not self._has_tiers else work.tier,
            tenant=stream.tenant if work.tenant is None else work.tenant,
            # Each trace numbers its contents for itself.
            cache_salt=None if stream.trace is None else str(stream.trace),
            ttft_deadline_ns=None if ttft_ms is None else arrival_ns + int(ttft_ms * _NS_PER_MS),
            deadline_ns=None if deadline_ms is None else arrival_ns + int(deadline_ms * _NS_PER_MS),
        )

    def _succeed(self, work: WorkRequest) -> None:
        """A request has ended: the next call of its conversation comes, or the next one of a closed loop."""
        stream = self._streams[work.stream]
        due_ns = self._clock.now_ns + int(stream.think_s * _NS_PER_S)
        if work.follow_up is not None:
            self._schedule(work.follow_up._replace(stream=work.stream), due_ns)
        elif work.stream in self._closed:
            self._replace(self._closed[work.stream], due_ns)

    def _replace(self, requests: Iterator[WorkRequest], due_ns: int) -> None:
        work = next(requests, None)
        if work is not None:
            self._schedule(work, due_ns)

    def _schedule(self, work: WorkRequest, due_ns: int) -> None:
        heapq.heappush(self._later, (due_ns, next(self._numbers), work))

    def _next_event_ns(self) -> int | None:
        """When the next request is seen or somebody's time runs out, as far as is known now."""
        moments = [] if self._next_open is None else [self._next_open.arrival_ns + self._request_overhead_ns]
        if self._later:
            moments.append(self._later[0][0] + self._request_overhead_ns)
        expiry_ns = self._scheduler.next_expiry_ns
        if expiry_ns is not None:
            moments.append(expiry_ns)
        return min(moments, default=None)

    # ---------------------------------------------------------------------------------------------- steps

    def _step(self) -> bool:
        """Run a step, and jump the ones after it that would be like it. False if there was none to run."""
        clock, started_ns = self._clock, self._clock.now_ns
        outcome = self._stepper.step(started_ns)
        for update in self._scheduler.take_expired():
            self._succeed(self._recorder.expired(update, started_ns))
        if outcome is None:
            return False
        clock.now_ns += self._step_overhead_ns + self._row_overhead_ns * len(outcome.updates)
        for work in self._recorder.committed(outcome, clock.now_ns, self._num_leased_pages):
            self._succeed(work)
        if self._jumps:
            self._jump()
        return True

    def _jump(self) -> None:
        """Run the steps until the next event at once, if all that happens in them is that standing decodes go on."""
        event_ns, now_ns = self._next_event_ns(), self._clock.now_ns
        if event_ns is not None and event_ns <= now_ns:
            return
        limit = min(count_standing_steps(self._scheduler), _MOST_JUMPED)
        if limit == 0:
            return
        standing = self._executor.standing_durations_ns()
        overhead_ns = self._step_overhead_ns + self._row_overhead_ns * self._scheduler.num_running
        starts_ns: list[int] = []
        durations_ns: list[int] = []
        ends_ns: list[int] = []
        for _ in range(limit):
            if event_ns is not None and now_ns >= event_ns:
                break
            starts_ns.append(now_ns)
            durations_ns.append(standing.next_ns())
            now_ns += durations_ns[-1] + overhead_ns
            ends_ns.append(now_ns)
        fast_forward(self._scheduler, starts_ns, durations_ns)
        self._executor.skip(len(starts_ns), now_ns - self._clock.now_ns)
        self._clock.now_ns = now_ns
        self._recorder.skipped(ends_ns, durations_ns, self._num_leased_pages)
        self._num_jumped += len(starts_ns)

    def _wait(self) -> bool:
        """Nothing can run: let the time pass until something comes. False if nothing will."""
        event_ns = self._next_event_ns()
        if event_ns is None:
            if self._scheduler.has_unfinished:
                raise InvariantError(f"the scheduler stands still with {self._scheduler.num_waiting} requests waiting")
            return False
        self._clock.advance_to(event_ns)
        self._recorder.idled(event_ns, self._num_leased_pages)
        return True

    @property
    def _num_leased_pages(self) -> int:
        return self._scheduler.state.memory.pool.num_leased


class _Both:
    """Shows plans to two observers."""

    def __init__(self, first: PlanObserver, second: PlanObserver) -> None:
        self._first, self._second = first, second

    def planned(self, plan: StepPlan) -> None:
        """Show it to both."""
        self._first.planned(plan)
        self._second.planned(plan)
