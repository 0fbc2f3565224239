"""An executor that computes nothing: it keeps just enough of every plan to ask a latency model how long it takes.

Knows nothing of tokens: every sampled one is 0. A step costs what changed in its plan, not what runs.
"""

from typing import NamedTuple, Protocol

from chairlift.core.step_plan import StepPlan, StepResult
from chairlift.simulator.clock import Clock
from chairlift.simulator.latency.model import LatencyModel, StepShape


class PlanObserver(Protocol):
    """Is shown every plan before it runs."""

    def planned(self, plan: StepPlan) -> None:
        """Take note of a plan; plans come in step order."""
        ...


class _Handle(NamedTuple):
    result: StepResult
    ends_ns: int


class SimulatedExecutor:
    """Implements :class:`~chairlift.core.ports.Executor`; waiting for a step moves the clock to its end.

    Context of the standing decodes grows by one each per step, so their sum is kept by what joins and leaves. A
    decode's own share is kept against the number of steps so far, and needs no visit either::

        context of a decode now = _decodes[id] + _num_steps
    """

    def __init__(self, latency: LatencyModel, page_size: int, clock: Clock, observer: PlanObserver) -> None:
        self._latency = latency
        self._page_size = page_size
        self._clock = clock
        self._observer = observer
        self._computed: dict[int, int] = {}
        self._decodes: dict[int, int] = {}
        self._num_context_tokens = 0
        self._num_steps = 0
        self._free_ns = 0
        self._tokens: list[tuple[int, ...]] = [()]

    def submit(self, plan: StepPlan) -> _Handle:
        """Start the step as soon as the one before it has ended."""
        self._observer.planned(plan)
        self._apply(plan)
        num_sampled = plan.num_decodes
        rows = pairs = context = 0
        for chunk in plan.chunks:
            length = chunk.length + chunk.padding
            rows += length
            pairs += length * chunk.start + length * (length + 1) // 2
            context += chunk.start + length
            num_sampled += chunk.samples
            self._computed[chunk.request_id] = chunk.start + chunk.length
        shape = StepShape(
            plan.num_decodes,
            self._num_context_tokens + plan.num_decodes,
            len(plan.chunks),
            rows,
            pairs,
            context,
            num_sampled,
            len(plan.swapped_out),
            len(plan.swapped_in),
        )
        taken = self._latency.time(shape, self._page_size)
        self._num_context_tokens += plan.num_decodes
        self._num_steps += 1
        self._free_ns = max(self._free_ns, self._clock.now_ns) + taken.duration_ns
        return _Handle(
            StepResult(plan.step, self._sampled(num_sampled), taken.duration_ns, swap_duration_ns=taken.copy_ns),
            self._free_ns,
        )

    def wait(self, handle: _Handle) -> StepResult:
        """Let the time pass until the step has ended."""
        self._clock.advance_to(handle.ends_ns)
        return handle.result

    def close(self) -> None:
        """Nothing is held."""

    def standing_durations_ns(self) -> "StandingDurations":
        """Say how long the next steps take if nothing but the standing decodes runs in them."""
        return StandingDurations(self._latency, self._page_size, len(self._decodes), self._num_context_tokens)

    def skip(self, num_steps: int, duration_ns: int) -> None:
        """So many steps of the standing decodes have run, without plans."""
        self._num_context_tokens += num_steps * len(self._decodes)
        self._num_steps += num_steps
        self._free_ns = max(self._free_ns, self._clock.now_ns) + duration_ns

    def num_computed_tokens(self, request_id: int) -> int:
        """Tokens of a known request that were computed so far."""
        since = self._decodes.get(request_id)
        return self._computed.get(request_id, 0) if since is None else since + self._num_steps

    def _apply(self, plan: StepPlan) -> None:
        for request_id in plan.ended:
            self._leave(request_id)
            self._computed.pop(request_id, None)
        for request_id in plan.decodes_left:
            self._leave(request_id)
        for new in plan.new:
            self._computed[new.request_id] = new.num_computed_tokens
        for request_id in plan.decodes_joined:
            computed = self._computed[request_id]
            self._decodes[request_id] = computed - self._num_steps
            self._num_context_tokens += computed

    def _leave(self, request_id: int) -> None:
        since = self._decodes.pop(request_id, None)
        if since is not None:
            computed = since + self._num_steps
            self._num_context_tokens -= computed
            self._computed[request_id] = computed

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
