"""An executor that computes nothing: it asks a latency model how long each plan would take.

Knows nothing of tokens: every sampled one is 0.
"""

from typing import NamedTuple, Protocol

from chairlift.core.step_plan import StepPlan, StepResult
from chairlift.simulator.clock import Clock
from chairlift.simulator.latency.model import LatencyModel, StepShape
from chairlift.simulator.shapes import ShapeTracker


class PlanObserver(Protocol):
    """Is shown every plan before it runs."""

    def planned(self, plan: StepPlan) -> None:
        """Take note of a plan; plans come in step order."""
        ...


class _Handle(NamedTuple):
    result: StepResult
    ends_ns: int


class SimulatedExecutor:
    """Implements :class:`~chairlift.core.ports.Executor`; waiting for a step moves the clock to its end."""

    def __init__(self, latency: LatencyModel, page_size: int, clock: Clock, observer: PlanObserver) -> None:
        self._latency = latency
        self._page_size = page_size
        self._clock = clock
        self._observer = observer
        self._shapes = ShapeTracker()
        self._free_ns = 0
        self._tokens: list[tuple[int, ...]] = [()]

    def submit(self, plan: StepPlan) -> _Handle:
        """Start the step as soon as the one before it has ended."""
        self._observer.planned(plan)
        shape = self._shapes.take(plan)
        taken = self._latency.time(shape, self._page_size)
        self._free_ns = max(self._free_ns, self._clock.now_ns) + taken.duration_ns
        tokens = self._sampled(shape.num_sampled)
        return _Handle(StepResult(plan.step, tokens, taken.duration_ns, swap_duration_ns=taken.copy_ns), self._free_ns)

    def wait(self, handle: _Handle) -> StepResult:
        """Let the time pass until the step has ended."""
        self._clock.advance_to(handle.ends_ns)
        return handle.result

    def close(self) -> None:
        """Nothing is held."""

    def standing_durations_ns(self) -> "StandingDurations":
        """Say how long the next steps take if nothing but the standing decodes runs in them."""
        shapes = self._shapes
        return StandingDurations(self._latency, self._page_size, shapes.num_decodes, shapes.num_context_tokens)

    def skip(self, num_steps: int, duration_ns: int) -> None:
        """So many steps of the standing decodes have run, without plans."""
        self._shapes.skip(num_steps)
        self._free_ns = max(self._free_ns, self._clock.now_ns) + duration_ns

    def num_computed_tokens(self, request_id: int) -> int:
        """Tokens of a known request that were computed so far."""
        return self._shapes.num_computed_tokens(request_id)

    def _sampled(self, count: int) -> tuple[int, ...]:
        while len(self._tokens) <= count:
            self._tokens.append((0,) * len(self._tokens))
        return self._tokens[count]


class StandingDurations:
    """Durations of steps in which the same decodes run, each step one token further."""

    def __init__(self, latency: LatencyModel, page_size: int, num_decodes: int, num_context_tokens: int) -> None:
        self._latency, self._page_size = latency, page_size
        self._num_decodes, self._num_context_tokens = num_decodes, num_context_tokens

    def next_ns(self) -> int:
        """Return the duration of the next step."""
        self._num_context_tokens += self._num_decodes
        shape = StepShape(
            num_decodes=self._num_decodes,
            num_decode_context_tokens=self._num_context_tokens,
            num_sampled=self._num_decodes,
        )
        return self._latency.time(shape, self._page_size).duration_ns
