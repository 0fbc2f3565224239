"""What is counted of one request, from its arrival to the end of its last choice.

Knows nothing of its content, and reads no clock: callers bring the time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from chairlift.observability.accounts import GOOD_ENDS, Account, Objectives
from chairlift.observability.cells import HistogramCell
from chairlift.observability.metrics import Metrics

_NS_PER_S = 1e9


class RequestSeries:
    """The series that every request counts in, whoever it is from."""

    def __init__(self, metrics: Metrics) -> None:
        self.received = metrics.counter("requests_received_total").labels()
        self.finished = metrics.counter("requests_finished_total")
        self.embeddings = metrics.counter("embeddings_total").labels()
        self.first_token: HistogramCell = metrics.histogram("time_to_first_token_seconds").labels()
        self.inter_token: HistogramCell = metrics.histogram("inter_token_latency_seconds").labels()
        self.e2e: HistogramCell = metrics.histogram("e2e_request_latency_seconds").labels()
        self.prefill: HistogramCell = metrics.histogram("request_prefill_time_seconds").labels()
        self.decode: HistogramCell = metrics.histogram("request_decode_time_seconds").labels()
        self.inference: HistogramCell = metrics.histogram("request_inference_time_seconds").labels()
        self.tpot: HistogramCell = metrics.histogram("request_time_per_output_token_seconds").labels()
        self.prompt_tokens: HistogramCell = metrics.histogram("request_prompt_tokens").labels()
        self.computed_tokens: HistogramCell = metrics.histogram("request_computed_prompt_tokens").labels()
        self.output_tokens: HistogramCell = metrics.histogram("request_generation_tokens").labels()
        self.max_tokens: HistogramCell = metrics.histogram("request_max_tokens").labels()
        self.choices: HistogramCell = metrics.histogram("request_choices").labels()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """A request that has ended: times in seconds, ``None`` where it did not get so far; reasons in the order in which
    its choices ended.
    """

    tenant: str
    tier: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_choices: int
    queue_s: float | None
    ttft_s: float | None
    duration_s: float
    reasons: tuple[str, ...]
    arrival_ns: int


class RequestRecord:
    """Follows the choices of one request; counts each end once.

    Args:
        series: those of all requests.
        account: those of its tier and tenant.
        objectives: what it must keep to count as good.
        num_prompt_tokens: of each choice.
        num_choices: how many there are.
        arrival_ns: when it came.
    """

    __slots__ = (
        *("_account", "_arrival_ns", "_choices", "_num_cached_tokens", "_num_open", "_num_output_tokens"),
        *("_num_prompt_tokens", "_objectives", "_queue_ns", "_reasons", "_series", "_ttft_s", "_when_ended"),
        "num_choices",
    )

    def __init__(
        self,
        series: RequestSeries,
        account: Account,
        objectives: Objectives,
        *,
        num_prompt_tokens: int,
        num_choices: int,
        arrival_ns: int,
    ) -> None:
        self.num_choices = self._num_open = num_choices
        self._series = series
        self._account = account
        self._objectives = objectives
        self._num_prompt_tokens = num_prompt_tokens
        self._arrival_ns = arrival_ns
        self._choices: dict[int, _Choice] = {}
        self._queue_ns: dict[int, int] = {}
        self._num_cached_tokens = self._num_output_tokens = 0
        self._ttft_s: float | None = None
        self._reasons: list[str] = []
        self._when_ended: Callable[[RequestReport], None] | None = None
        series.received.inc(num_choices)
        series.choices.observe(num_choices)
        account.begin(num_choices)

    def tell_end(self, when_ended: Callable[[RequestReport], None]) -> None:
        """Have the end of the last choice reported."""
        self._when_ended = when_ended

    def asked_for(self, max_tokens: int | None) -> None:
        """Take note of how long its answer may be."""
        if max_tokens is not None:
            self._series.max_tokens.observe(max_tokens)

    def refused(self, *, is_missed: bool, now_ns: int | None = None) -> None:
        """It was not accepted: for overload, which misses its objectives, or because it is wrong, which does not."""
        self._end("rejected", self.num_choices)
        if is_missed:
            for _ in range(self.num_choices):
                self._judge("rejected", is_met=False, num_tokens=0)
        self._close("rejected", self.num_choices, self._arrival_ns if now_ns is None else now_ns)

    def admitted(self, choice: int, queue_ns: int) -> None:
        """A choice got its first slot after so long."""
        self._queue_ns[choice] = queue_ns

    def tokens(self, choice: int, num_tokens: int, now_ns: int, num_cached_tokens: int = 0) -> None:
        """A choice got tokens, all at once. With its first ones it is known how much of its prompt was cached."""
        self._num_output_tokens += num_tokens
        followed = self._choices.get(choice)
        if followed is None:
            ttft_s = (now_ns - self._arrival_ns) / _NS_PER_S
            self._choices[choice] = _Choice(ttft_s, now_ns, num_tokens, num_cached_tokens)
            self._num_cached_tokens = max(self._num_cached_tokens, num_cached_tokens)
            if self._ttft_s is None:
                self._ttft_s = ttft_s
            self._series.first_token.observe(ttft_s)
            self._account.first_tokens(ttft_s, self._num_prompt_tokens, num_tokens)
            return
        pause_s = (now_ns - followed.last_ns) / _NS_PER_S
        followed.last_ns = now_ns
        followed.num_tokens += num_tokens
        self._series.inter_token.observe(pause_s / num_tokens, num_tokens)
        self._account.next_tokens(pause_s, num_tokens)

    def embedded(self, choice: int, now_ns: int, num_cached_tokens: int) -> None:
        """A pooled request got its vector, which is its first and last token as far as times are concerned."""
        self.tokens(choice, 0, now_ns, num_cached_tokens)
        self._series.embeddings.inc()

    def ended(self, choice: int, reason: str, now_ns: int) -> None:
        """A choice ended, in whatever way."""
        followed = self._choices.pop(choice, None)
        duration_s = (now_ns - self._arrival_ns) / _NS_PER_S
        if reason in GOOD_ENDS:
            self._series.e2e.observe(duration_s)
            if followed is not None:
                self._observe_parts(followed, self._queue_ns.get(choice))
        self._end(reason, 1)
        is_met = self._objectives.are_met(followed.ttft_s if followed is not None else None, duration_s)
        self._judge(reason, is_met=is_met, num_tokens=followed.num_tokens if followed is not None else 0)
        self._close(reason, 1, now_ns)

    def _observe_parts(self, choice: "_Choice", queue_ns: int | None) -> None:
        """How its time and its tokens were spent."""
        series = self._series
        last_s = (choice.last_ns - self._arrival_ns) / _NS_PER_S
        decode_s = last_s - choice.ttft_s
        series.decode.observe(decode_s)
        if choice.num_tokens > 1:
            series.tpot.observe(decode_s / (choice.num_tokens - 1))
        if queue_ns is not None:
            queue_s = queue_ns / _NS_PER_S
            series.prefill.observe(max(0.0, choice.ttft_s - queue_s))
            series.inference.observe(max(0.0, last_s - queue_s))
        series.prompt_tokens.observe(self._num_prompt_tokens)
        series.computed_tokens.observe(self._num_prompt_tokens - choice.num_cached_tokens)
        series.output_tokens.observe(choice.num_tokens)

    def _end(self, reason: str, num_choices: int) -> None:
        self._series.finished.labels(reason).inc(num_choices)
        self._account.end(reason, num_choices)

    def _close(self, reason: str, num_choices: int, now_ns: int) -> None:
        if self._when_ended is None:
            return
        self._reasons.append(reason)
        self._num_open -= num_choices
        if self._num_open:
            return
        self._when_ended(
            RequestReport(
                tenant=self._account.tenant,
                tier=self._account.tier,
                num_prompt_tokens=self._num_prompt_tokens,
                num_cached_tokens=self._num_cached_tokens,
                num_output_tokens=self._num_output_tokens,
                num_choices=self.num_choices,
                queue_s=min(self._queue_ns.values()) / _NS_PER_S if self._queue_ns else None,
                ttft_s=self._ttft_s,
                duration_s=(now_ns - self._arrival_ns) / _NS_PER_S,
                reasons=tuple(self._reasons),
                arrival_ns=self._arrival_ns,
            )
        )

    def _judge(self, reason: str, *, is_met: bool, num_tokens: int) -> None:
        self._account.judge(reason, is_met=is_met, has_objectives=self._objectives.exist, num_tokens=num_tokens)


class _Choice:
    """One choice that has its first token."""

    __slots__ = ("last_ns", "num_cached_tokens", "num_tokens", "ttft_s")

    def __init__(self, ttft_s: float, last_ns: int, num_tokens: int, num_cached_tokens: int) -> None:
        self.ttft_s, self.last_ns, self.num_tokens = ttft_s, last_ns, num_tokens
        self.num_cached_tokens = num_cached_tokens
