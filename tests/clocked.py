"""Drives the scheduler by a clock of its own: steps last as long as a formula says. Knows nothing of pytest."""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core import invariants
from chairlift.core.outcome import StepOutcome
from chairlift.core.request import FinishReason, Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import PlanState, StepPlan, StepResult
from chairlift.core.stepper import Stepper

MS = 1_000_000
S = 1_000_000_000

StepTime = Callable[[int, int], float]
"""(tokens, tokens of context that they read) -> nanoseconds."""


def step_time(c_ms: float, a_ms: float, b_ns: float = 0.0, *, noise: float = 0.0, seed: int = 0) -> StepTime:
    """Steps that cost ``c`` each, ``a`` per token and ``b`` per token of context, give or take the noise."""
    random = Random(seed)

    def duration_ns(num_tokens: int, num_context_tokens: int) -> float:
        exact_ns = (c_ms + a_ms * num_tokens) * MS + b_ns * num_context_tokens
        return exact_ns * max(0.2, 1 + random.gauss(0, noise))

    return duration_ns


class Step(NamedTuple):
    """A step that ran."""

    start_ns: int
    duration_ns: int
    num_decodes: int
    num_prefill_tokens: int


class ClockedExecutor:
    """Gives token 0 to everybody, and durations by formula. ``now_ns`` is when the last step ended."""

    def __init__(self, duration_ns: StepTime) -> None:
        self._duration_ns = duration_ns
        self._state = PlanState()
        self._submitted: deque[StepPlan] = deque()
        self.now_ns = 0
        self.steps: list[Step] = []

    def submit(self, plan: StepPlan) -> StepPlan:
        self._submitted.append(plan)
        return plan

    def wait(self, handle: StepPlan) -> StepResult:
        plan = self._submitted.popleft()
        assert plan is handle
        self._state.apply(plan)
        context = sum(self._state.requests[request_id].num_computed_tokens + 1 for request_id in self._state.decodes)
        context += sum(c.length * c.start + c.length * (c.length + 1) // 2 for c in plan.chunks)
        duration_ns = round(self._duration_ns(plan.num_tokens, context))
        tokens = [0] * len(self._state.sampling_rows(plan))
        self._state.advance(plan, tokens)
        num_prefill_tokens = sum(chunk.length for chunk in plan.chunks)
        self.steps.append(Step(self.now_ns, duration_ns, plan.num_decodes, num_prefill_tokens))
        self.now_ns += duration_ns
        return StepResult(plan.step, tuple(tokens), duration_ns)

    def close(self) -> None:
        self._submitted.clear()


class ClockedRig:
    """A scheduler on a clock: requests arrive when their time has come, and first tokens are noted."""

    def __init__(
        self,
        duration_ns: StepTime,
        *,
        num_pages: int = 4096,
        page_size: int = 16,
        depth: int = 1,
        make: Callable[..., Scheduler] = Scheduler,
        **scheduler: object,
    ) -> None:
        settings: dict = {"max_num_seqs": 32, "max_num_batched_tokens": 256, "max_model_len": 16384, **scheduler}
        self.executor = ClockedExecutor(duration_ns)
        self.scheduler = make(SchedulerConfig(**settings), CacheConfig(num_pages=num_pages, page_size=page_size))
        self.stepper = Stepper(self.scheduler, self.executor, depth)
        self.first_token_ns: dict[int, int] = {}
        self.finished: dict[int, FinishReason] = {}
        self._next_id = 0

    @property
    def now_ns(self) -> int:
        return self.executor.now_ns

    def make_request(self, num_prompt_tokens: int, max_tokens: int, *, priority: int = 0, tenant: str = "") -> Request:
        """A request whose prompt no other shares."""
        request_id = self._next_id
        self._next_id += 1
        return Request(
            request_id,
            [1 + request_id, *([0] * (num_prompt_tokens - 1))],
            SamplingParams(max_tokens=max_tokens),
            priority=priority,
            tenant=tenant,
        )

    def add(self, num_prompt_tokens: int, max_tokens: int, *, priority: int = 0, tenant: str = "") -> Request:
        request = self.make_request(num_prompt_tokens, max_tokens, priority=priority, tenant=tenant)
        self.scheduler.add(request, self.now_ns)
        return request

    def step(self) -> StepOutcome | None:
        outcome = self.stepper.step(self.now_ns)
        if outcome is not None:
            for update in outcome.updates:
                if update.token_ids:
                    self.first_token_ns.setdefault(update.request_id, self.now_ns)
                if update.finish_reason is not None:
                    self.finished[update.request_id] = update.finish_reason
        return outcome

    def run(self, arrivals: Sequence[tuple[int, Callable[[], object]]] = (), until_ns: int | None = None) -> None:
        """Run until everything is done (or that late), doing each arrival's call when its time has come."""
        pending = deque(sorted(arrivals, key=lambda arrival: arrival[0]))
        while until_ns is None or self.now_ns < until_ns:
            while pending and pending[0][0] <= self.now_ns:
                pending.popleft()[1]()
            if self.step() is not None:
                continue
            if not pending:
                break
            self.executor.now_ns = pending[0][0]
        invariants.require(self.scheduler)
