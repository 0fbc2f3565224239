"""How late the tool itself was: a benchmark that cannot keep up measures itself instead of the server.

Knows nothing of requests but how late each was sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.benchmark.clock import Clock
from chairlift.report.statistics import Distribution, describe

PERIOD_NS = 10_000_000
"""How often the event loop is asked to wake up, to see how late it does."""

_MS_PER_NS = 1e-6
_LATE_MS = 10.0
_LATE_PART = 0.1
_LAG_MS = 10.0
_LAG_PART = 0.25
_BUSY = 0.9


class LoopWatch:
    """Wakes up at regular moments and takes down how late: whatever came meanwhile was seen so late too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ns = clock.now_ns()
        self._start_cpu_ns = clock.cpu_ns()
        self.lags_ns: list[int] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            due_ns = self._clock.now_ns() + PERIOD_NS
            await self._clock.sleep_until(due_ns)
            self.lags_ns.append(self._clock.now_ns() - due_ns)

    def busy(self) -> float:
        """Return how much of one core this process has used since the start."""
        passed_ns = self._clock.now_ns() - self._start_ns
        return (self._clock.cpu_ns() - self._start_cpu_ns) / passed_ns if passed_ns > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDelay:
    """The tool's own part in the times it measured."""

    lateness_ms: Distribution | None
    """From when a request could be sent until it was."""
    loop_lag_ms: Distribution | None
    """How late the event loop woke up: arrivals of chunks are seen so late."""
    cpu_busy: float
    """CPU time of the process per second; one Python process cannot use much more than 1."""

    def to_json(self) -> dict[str, object]:
        """Return the numbers by name."""
        return {
            "lateness_ms": None if self.lateness_ms is None else self.lateness_ms.to_json(),
            "loop_lag_ms": None if self.loop_lag_ms is None else self.loop_lag_ms.to_json(),
            "cpu_busy": round(self.cpu_busy, 4),
        }

    def warnings(self, ttft_ms: Distribution | None, itl_ms: Distribution | None) -> list[str]:
        """Say where the tool was the bottleneck, against what it measured."""
        found: list[str] = []
        late = 0.0 if self.lateness_ms is None else self.lateness_ms.at(99.0)
        if late > max(_LATE_MS, _LATE_PART * _median(ttft_ms)):
            found.append(
                f"requests were sent late, by {late:.0f} ms at the 99th percentile: the load was not as asked for"
            )
        lag = 0.0 if self.loop_lag_ms is None else self.loop_lag_ms.at(99.0)
        if lag > max(_LAG_MS, _LAG_PART * _median(itl_ms)):
            found.append(f"chunks were seen late, by up to {lag:.0f} ms at the 99th percentile: latencies are too high")
        if self.cpu_busy > _BUSY:
            found.append(f"this tool used {self.cpu_busy:.0%} of a core: the server may be faster than it can measure")
        return found


def own_delay(lateness_ns: Sequence[int], watch: LoopWatch) -> OwnDelay:
    """Put together what was taken down."""
    return OwnDelay(
        lateness_ms=describe(lateness_ns, _MS_PER_NS),
        loop_lag_ms=describe(watch.lags_ns, _MS_PER_NS),
        cpu_busy=watch.busy(),
    )


def _median(distribution: Distribution | None) -> float:
    return 0.0 if distribution is None else distribution.at(50.0)
