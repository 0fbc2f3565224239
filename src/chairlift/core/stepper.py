"""One step = plan, execute, commit. The engine and the simulator both drive the scheduler through this.

Knows nothing of clocks: the caller says what time it is.
"""

from collections import deque
from typing import Any

from chairlift.core.outcome import StepOutcome
from chairlift.core.ports import Executor
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import StepPlan
from chairlift.errors import ConfigurationError


class Stepper:
    """Keeps up to ``depth`` steps in flight: at depth 2 the next step is planned and submitted while one runs.

    Raises:
        ConfigurationError: ``depth`` is not 1 or 2.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, depth: int = 1) -> None:
        if depth not in (1, 2):
            raise ConfigurationError(f"--pipeline-depth must be 1 or 2, got {depth}")
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._in_flight: deque[tuple[StepPlan, Any]] = deque()

    @property
    def num_in_flight(self) -> int:
        """Steps submitted and not yet committed."""
        return len(self._in_flight)

    def step(self, now_ns: int) -> StepOutcome | None:
        """Fill the pipeline, wait for the oldest step and commit it.

        Returns ``None`` if there was nothing to compute. Raises what the executor raises; the scheduler then still
        holds the step, and the caller has to :meth:`reset` and to fail or restart everything.
        """
        while len(self._in_flight) < self._depth:
            plan = self._scheduler.plan(now_ns)
            if plan is None:
                break
            self._in_flight.append((plan, self._executor.submit(plan)))
        return self._commit_oldest()

    def drain(self) -> list[StepOutcome]:
        """Commit every step in flight without planning more."""
        outcomes: list[StepOutcome] = []
        while (outcome := self._commit_oldest()) is not None:
            outcomes.append(outcome)
        return outcomes

    def reset(self) -> None:
        """Forget the steps in flight, after the executor failed."""
        self._in_flight.clear()

    def _commit_oldest(self) -> StepOutcome | None:
        if not self._in_flight:
            return None
        plan, handle = self._in_flight[0]
        result = self._executor.wait(handle)
        self._in_flight.popleft()
        committed = self._scheduler.commit(plan.step, result)
        return StepOutcome(
            plan.step,
            committed.updates,
            result,
            committed.num_prefill_tokens,
            committed.num_decode_tokens,
            committed.num_padding_tokens,
            committed.num_wasted_rows,
            committed.num_useful_slots,
        )
