"""What is counted of one request, from its arrival to the end of its last choice.

Knows nothing of its content, and reads no clock: callers bring the time.
"""

from chairlift.observability.accounts import GOOD_ENDS, Account, Objectives
from chairlift.observability.cells import HistogramCell
from chairlift.observability.metrics import Metrics

_NS_PER_S = 1e9


class RequestSeries:
    """The series that every request counts in, whoever it is from."""

    def __init__(self, metrics: Metrics) -> None:
        self.received = metrics.counter("requests_received_total").labels()
        self.finished = metrics.counter("requests_finished_total")
        self.first_token: HistogramCell = metrics.histogram("time_to_first_token_seconds").labels()
        self.inter_token: HistogramCell = metrics.histogram("inter_token_latency_seconds").labels()
        self.e2e: HistogramCell = metrics.histogram("e2e_request_latency_seconds").labels()


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

    __slots__ = ("_account", "_arrival_ns", "_choices", "_num_prompt_tokens", "_objectives", "_series", "num_choices")

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
        self.num_choices = num_choices
        self._series = series
        self._account = account
        self._objectives = objectives
        self._num_prompt_tokens = num_prompt_tokens
        self._arrival_ns = arrival_ns
        self._choices: dict[int, _Choice] = {}
        series.received.inc(num_choices)
        account.begin(num_choices)

    @property
    def account(self) -> Account:
        """The account of its tier and tenant."""
        return self._account

    def refused(self, *, is_missed: bool) -> None:
        """It was not accepted: for overload, which misses its objectives, or because it is wrong, which does not."""
        self._end("rejected", self.num_choices)
        if is_missed:
            for _ in range(self.num_choices):
                self._judge("rejected", is_met=False, num_tokens=0)

    def tokens(self, choice: int, num_tokens: int, now_ns: int) -> None:
        """A choice got tokens, all at once."""
        followed = self._choices.get(choice)
        if followed is None:
            ttft_s = (now_ns - self._arrival_ns) / _NS_PER_S
            self._choices[choice] = _Choice(ttft_s, now_ns, num_tokens)
            self._series.first_token.observe(ttft_s)
            self._account.first_tokens(ttft_s, self._num_prompt_tokens, num_tokens)
            return
        pause_s = (now_ns - followed.last_ns) / _NS_PER_S
        followed.last_ns = now_ns
        followed.num_tokens += num_tokens
        self._series.inter_token.observe(pause_s / num_tokens, num_tokens)
        self._account.next_tokens(pause_s, num_tokens)

    def ended(self, choice: int, reason: str, now_ns: int) -> None:
        """A choice ended, in whatever way."""
        followed = self._choices.pop(choice, None)
        duration_s = (now_ns - self._arrival_ns) / _NS_PER_S
        if reason in GOOD_ENDS:
            self._series.e2e.observe(duration_s)
        self._end(reason, 1)
        is_met = self._objectives.are_met(followed.ttft_s if followed is not None else None, duration_s)
        self._judge(reason, is_met=is_met, num_tokens=followed.num_tokens if followed is not None else 0)

    def _end(self, reason: str, num_choices: int) -> None:
        self._series.finished.labels(reason).inc(num_choices)
        self._account.end(reason, num_choices)

    def _judge(self, reason: str, *, is_met: bool, num_tokens: int) -> None:
        self._account.judge(reason, is_met=is_met, has_objectives=self._objectives.exist, num_tokens=num_tokens)


class _Choice:
    """One choice that has its first token."""

    __slots__ = ("last_ns", "num_tokens", "ttft_s")

    def __init__(self, ttft_s: float, last_ns: int, num_tokens: int) -> None:
        self.ttft_s, self.last_ns, self.num_tokens = ttft_s, last_ns, num_tokens
