"""A scheduler that says what it was told and what it decided, so that it can be replayed.

Knows nothing of where that goes.
"""

from collections.abc import Callable, Mapping

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.decision_log import (
    Entry,
    RecordingKeyer,
    add_entry,
    commit_entry,
    plan_entry,
    reconfigure_entry,
    start_entry,
)
from chairlift.core.outcome import CommittedStep
from chairlift.core.page_keys import DigestKeyer
from chairlift.core.ports import EventSink, PageKeyer
from chairlift.core.request import FinishReason, Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import StepPlan, StepResult

FIT_EVERY = 16
"""Steps between two entries that hold the fitted values."""


class LoggedScheduler(Scheduler):
    """Hands an entry to ``write`` for every call that may change its state, after the call.

    Args:
        scheduler, cache, events, keyer: as for the scheduler.
        write: takes entries, in order, within the call; must not raise.
        secret: makes the logged page keys worthless to who guesses prompts; random bytes, 64 at most.
    """

    def __init__(
        self,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        *,
        write: Callable[[Entry], None],
        secret: bytes = b"",
        events: EventSink | None = None,
        keyer: PageKeyer | None = None,
    ) -> None:
        self._recorder = RecordingKeyer(keyer if keyer is not None else DigestKeyer(), secret)
        super().__init__(scheduler, cache, events=events, keyer=self._recorder)
        self._write_entry = write
        self._is_planning = False
        self._write(start_entry(scheduler, cache))

    def add(self, request: Request, now_ns: int) -> None:
        """Take a request in; one that is refused changes nothing and is not logged."""
        super().add(request, now_ns)
        self._write(add_entry(request, now_ns))

    def finish(self, request_id: int, reason: FinishReason, keep_tokens: int | None = None) -> bool:
        """End a request from outside."""
        was_alive = super().finish(request_id, reason, keep_tokens)
        if was_alive:
            self._write({"kind": "end", "id": request_id, "reason": reason.value, "keep": keep_tokens})
        return was_alive

    def expire(self, now_ns: int) -> None:
        """End requests whose time ran out; as a part of planning it is no entry of its own."""
        super().expire(now_ns)
        if not self._is_planning:
            self._write({"kind": "expire", "t": now_ns})

    def plan(self, now_ns: int) -> StepPlan | None:
        """Decide the next step. If that raises, the log says so, and a replay raises too."""
        self._is_planning = True
        try:
            plan = super().plan(now_ns)
        except Exception as error:
            self._write({"kind": "plan", "t": now_ns, "error": repr(error)})
            raise
        finally:
            self._is_planning = False
        self._write(plan_entry(now_ns, plan, self.num_waiting, self.num_running))
        return plan

    def commit(self, step: int, result: StepResult) -> CommittedStep:
        """Take in a step's result."""
        committed = super().commit(step, result)
        stopped = [update.request_id for update in committed.updates if update.finish_reason is FinishReason.STOP]
        entry = commit_entry(result, stopped)
        if step % FIT_EVERY == 0:
            entry["fit"] = fitted_values(self)
        self._write(entry)
        return committed

    def reconfigure(self, changes: Mapping[str, object], now_ns: int) -> None:
        """Change settings; a change that is refused is not logged."""
        super().reconfigure(changes, now_ns)
        self._write(reconfigure_entry(changes, now_ns))

    def fail_all(self) -> list[int]:
        """End everything after the executor broke."""
        ids = super().fail_all()
        self._write({"kind": "fail_all"})
        return ids

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        done = super().reset_prefix_cache()
        if done:
            self._write({"kind": "reset"})
        return done

    def _write(self, entry: Entry) -> None:
        keys = self._recorder.take()
        if keys:
            entry["keys"] = keys
        self._write_entry(entry)


def fitted_values(scheduler: Scheduler) -> list[float]:
    """What the latency model has learnt: nanoseconds per step, per token and per token of context, and its error."""
    return [*scheduler.latency.coefficients_ns, scheduler.latency.relative_error]
