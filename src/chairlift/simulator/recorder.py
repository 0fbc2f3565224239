"""Takes down what a simulation does: per request its latencies, per step its size, over time what is running.

Knows nothing of how it is reported. A step costs what changed in it: gaps between tokens are counted per stream and
step, since everybody who decodes in a step has waited as long as the step took.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from chairlift.core.outcome import RequestUpdate, StepOutcome
from chairlift.core.request import FinishReason
from chairlift.core.step_plan import StepPlan
from chairlift.simulator.series import TimeSeries
from chairlift.workload.items import WorkRequest

_GOOD_ENDS = (FinishReason.LENGTH, FinishReason.STOP)
_MOST_REASONS = 3


class _Life:
    """One live request."""

    __slots__ = (
        "arrival_ns", "first_token_ns", "is_decoding", "is_running", "last_token_ns", "num_computed_tokens",
        "num_tokens", "started_ns", "work",
    )  # fmt: skip

    def __init__(self, work: WorkRequest, arrival_ns: int) -> None:
        self.work = work
        self.arrival_ns = arrival_ns
        self.started_ns: int | None = None
        self.first_token_ns: int | None = None
        self.last_token_ns = 0
        self.num_tokens = 0
        self.is_running = False
        self.is_decoding = False
        self.num_computed_tokens = 0
        """At the last preemption."""


class StreamRecord:
    """What became of one stream's requests; times in ns, one entry per request that finished."""

    def __init__(self) -> None:
        self.ttft_ns: array[int] = array("q")
        self.queue_ns: array[int] = array("q")
        self.e2e_ns: array[int] = array("q")
        self.tpot_ns: array[float] = array("d")
        """Mean gap of a request; -1 if it has a single token."""
        self.gap_ns: array[int] = array("q")
        self.gap_counts: array[int] = array("q")
        """How many gaps were as long as the entry of the same place in ``gap_ns``."""
        self.num_arrived = 0
        self.num_finished = 0
        self.num_refused = 0
        self.first_refusals: list[str] = []
        """Why the first ones were, each reason once."""
        self.ends: dict[str, int] = {}
        """Requests that ended otherwise than by their length, by reason."""
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_contended_tokens = 0
        """Tokens computed in steps while every stream had requests waiting: what fairness is measured by."""


class _Rows(NamedTuple):
    """What was known when a step was planned."""

    plan: StepPlan
    num_decoding: list[int]
    late: list[_Life]
    """Decodes whose last token is older than the last step."""


class Recorder:
    """Implements :class:`~.executor.PlanObserver`, and is told of arrivals, commits and refusals."""

    def __init__(self, num_streams: int) -> None:
        self.streams = [StreamRecord() for _ in range(num_streams)]
        self.num_steps = 0
        self.num_useful_slots = 0
        self.num_prefill_tokens = 0
        self.num_decode_tokens = 0
        self.num_padding_tokens = 0
        self.num_swapped_pages = 0
        self.busy_ns = 0
        self.series = TimeSeries(3 + 2 * num_streams)
        self._lives: dict[int, _Life] = {}
        self._num_decoding = [0] * num_streams
        self._num_waiting = [0] * num_streams
        self._num_running = [0] * num_streams
        self._planned: deque[_Rows] = deque()
        self._last_commit_ns = 0
        self._computed_of = _nothing_computed

    def watch(self, computed_of: "ComputedOf") -> None:
        """Say who knows how many tokens of a request were computed when it is preempted."""
        self._computed_of = computed_of

    # ------------------------------------------------------------------------------------------- requests

    def arrived(self, request_id: int, work: WorkRequest, arrival_ns: int) -> None:
        """A request was queued; ``arrival_ns`` is when its client sent it."""
        self._lives[request_id] = _Life(work, arrival_ns)
        self.streams[work.stream].num_arrived += 1
        self._num_waiting[work.stream] += 1

    def refused(self, work: WorkRequest, reason: str) -> None:
        """A request was never queued."""
        record = self.streams[work.stream]
        record.num_arrived += 1
        record.num_refused += 1
        if len(record.first_refusals) < _MOST_REASONS and reason not in record.first_refusals:
            record.first_refusals.append(reason)

    # ---------------------------------------------------------------------------------------------- steps

    def planned(self, plan: StepPlan) -> None:
        """Note what a plan changes, and count its decodes by stream."""
        lives = self._lives
        for request_id in plan.ended:
            life = lives.get(request_id)
            if life is not None:
                self._preempt(life, self._computed_of(request_id))
        for request_id in plan.decodes_left:
            if request_id in lives:
                self._stop_decoding(lives[request_id])
        for new in plan.new:
            self._start(lives[new.request_id], new.num_computed_tokens)
        late: list[_Life] = []
        for request_id in plan.decodes_joined:
            life = lives.get(request_id)
            if life is None:  # static batching: a member that has ended keeps its row
                continue
            life.is_decoding = True
            self._num_decoding[life.work.stream] += 1
            if life.last_token_ns != self._last_commit_ns and life.num_tokens:
                late.append(life)
        self.num_swapped_pages += len(plan.swapped_in) + len(plan.swapped_out)
        self._planned.append(_Rows(plan, self._num_decoding.copy(), late))

    def committed(self, outcome: StepOutcome, now_ns: int, num_leased_pages: int) -> list[WorkRequest]:
        """Note what a step brought; ``now_ns`` is when clients see it. Returns the requests that ended.

        ``num_leased_pages``: pages in use behind the step.
        """
        rows = self._planned.popleft()
        self._count_gaps(rows, now_ns)
        if len(self._num_waiting) > 1 and all(self._num_waiting):
            self._count_contended(rows)
        for chunk in rows.plan.chunks:
            if chunk.samples:
                life = self._lives.get(chunk.request_id)
                if life is not None:
                    self._sampled(life, now_ns)
        self.num_steps += 1
        self.num_useful_slots += outcome.num_useful_slots
        self.num_prefill_tokens += outcome.num_prefill_tokens
        self.num_decode_tokens += outcome.num_decode_tokens
        self.num_padding_tokens += outcome.num_padding_tokens
        self.busy_ns += outcome.result.duration_ns
        self._sample_series(
            self._last_commit_ns, now_ns, len(rows.plan.chunks) + rows.plan.num_decodes, num_leased_pages
        )
        self._last_commit_ns = now_ns
        ended = [update for update in outcome.updates if update[2] is not None]
        return [self._end(update, now_ns) for update in ended]

    def skipped(self, ends_ns: Sequence[int], durations_ns: Sequence[int], num_leased_pages: int) -> None:
        """Steps in which only the standing decodes ran, by when clients saw each and how long it took."""
        num_decodes = sum(self._num_decoding)
        before_ns = self._last_commit_ns
        for end_ns in ends_ns:
            for record, count in zip(self.streams, self._num_decoding, strict=True):
                if count:
                    record.gap_ns.append(end_ns - before_ns)
                    record.gap_counts.append(count)
            before_ns = end_ns
        self.num_steps += len(ends_ns)
        self.num_useful_slots += num_decodes * len(ends_ns)
        self.num_decode_tokens += num_decodes * len(ends_ns)
        self.busy_ns += sum(durations_ns)
        self._sample_series(self._last_commit_ns, before_ns, num_decodes, num_leased_pages)
        self._last_commit_ns = before_ns

    def idled(self, until_ns: int, num_leased_pages: int) -> None:
        """Nothing ran until this moment."""
        if until_ns > self._last_commit_ns:
            self._sample_series(self._last_commit_ns, until_ns, 0, num_leased_pages)
            self._last_commit_ns = until_ns

    def expired(self, update: RequestUpdate, now_ns: int) -> WorkRequest:
        """A request ended without a step, because its time ran out."""
        return self._end(update, now_ns)

    # --------------------------------------------------------------------------------------------- inside

    def _count_gaps(self, rows: _Rows, now_ns: int) -> None:
        usual_ns = now_ns - self._last_commit_ns
        counts = rows.num_decoding
        for life in rows.late:
            counts[life.work.stream] -= 1
            self._add_gap(life.work.stream, now_ns - life.last_token_ns, 1)
        for stream, count in enumerate(counts):
            if count > 0:
                self._add_gap(stream, usual_ns, count)

    def _add_gap(self, stream: int, gap_ns: int, count: int) -> None:
        record = self.streams[stream]
        record.gap_ns.append(gap_ns)
        record.gap_counts.append(count)

    def _count_contended(self, rows: _Rows) -> None:
        for record, count in zip(self.streams, rows.num_decoding, strict=True):
            record.num_contended_tokens += count
        for chunk in rows.plan.chunks:
            life = self._lives.get(chunk.request_id)
            if life is not None:
                self.streams[life.work.stream].num_contended_tokens += chunk.length

    def _sampled(self, life: _Life, now_ns: int) -> None:
        if life.first_token_ns is None:
            life.first_token_ns = now_ns
        else:
            self._add_gap(life.work.stream, now_ns - life.last_token_ns, 1)
        life.num_tokens = 1
        life.last_token_ns = now_ns

    def _start(self, life: _Life, num_computed_tokens: int) -> None:
        stream = life.work.stream
        record = self.streams[stream]
        life.is_running = True
        self._num_waiting[stream] -= 1
        self._num_running[stream] += 1
        if life.started_ns is None:
            life.started_ns = self._last_commit_ns
            record.num_prompt_tokens += life.work.num_prompt_tokens
            record.num_cached_tokens += num_computed_tokens
        else:
            record.num_recomputed_tokens += max(0, life.num_computed_tokens - num_computed_tokens)

    def _preempt(self, life: _Life, num_computed_tokens: int) -> None:
        stream = life.work.stream
        if life.is_decoding:
            # Its last token came with the last step, since only requests with nothing in flight are preempted.
            life.last_token_ns = self._last_commit_ns
            self._stop_decoding(life)
        life.is_running = False
        life.num_computed_tokens = num_computed_tokens
        self._num_running[stream] -= 1
        self._num_waiting[stream] += 1
        self.streams[stream].num_preemptions += 1

    def _stop_decoding(self, life: _Life) -> None:
        if life.is_decoding:
            life.is_decoding = False
            self._num_decoding[life.work.stream] -= 1

    def _end(self, update: RequestUpdate, now_ns: int) -> WorkRequest:
        life = self._lives.pop(update.request_id)
        stream = life.work.stream
        record = self.streams[stream]
        self._stop_decoding(life)
        counts = self._num_running if life.is_running else self._num_waiting
        counts[stream] -= 1
        reason = update.finish_reason
        if reason not in _GOOD_ENDS or life.first_token_ns is None or life.started_ns is None:
            name = "error" if reason is None else reason.value
            record.ends[name] = record.ends.get(name, 0) + 1
            return life.work
        num_output = life.work.num_output_tokens
        record.num_finished += 1
        record.num_output_tokens += num_output
        record.ttft_ns.append(life.first_token_ns - life.arrival_ns)
        record.queue_ns.append(max(0, life.started_ns - life.arrival_ns))
        record.e2e_ns.append(now_ns - life.arrival_ns)
        record.tpot_ns.append((now_ns - life.first_token_ns) / (num_output - 1) if num_output > 1 else -1.0)
        return life.work

    def _sample_series(self, start_ns: int, end_ns: int, num_rows: int, num_leased_pages: int) -> None:
        values = [num_rows, num_leased_pages, sum(self._num_waiting), *self._num_running, *self._num_waiting]
        self.series.add(start_ns, end_ns, values)


class ComputedOf(Protocol):
    """Says how many tokens of a request were computed."""

    def __call__(self, request_id: int) -> int:
        """Return the number; the request is known."""
        ...


def _nothing_computed(request_id: int) -> int:
    del request_id
    return 0
