"""The engine without a process around it: takes requests, runs steps, reports.

Knows nothing of sockets or text. The engine process and the offline ``LLM`` both drive it.
"""

from collections.abc import Sequence

from chairlift.config.sections import QueueSettings
from chairlift.core import invariants
from chairlift.core.outcome import RequestUpdate, StepOutcome
from chairlift.core.request import FinishReason, Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.stepper import Stepper
from chairlift.engine.engine_events import EngineEvents
from chairlift.engine.messages import AddRequest, ModelInfo, StepDone, Update, Verdict
from chairlift.engine.queue_gate import QueueGate
from chairlift.engine.remote_errors import to_verdict
from chairlift.errors import InvalidRequestError, OverloadedError
from chairlift.observability.step_stats import StepStats


class EngineRunner:
    """One engine: a scheduler, a stepper and the executor behind it. Single-threaded."""

    def __init__(
        self, scheduler: Scheduler, stepper: Stepper, events: EngineEvents, queue: QueueSettings, info: ModelInfo
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._stepper = stepper
        self._events = events
        self._gate = QueueGate(queue)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request runs or waits."""
        return self._scheduler.has_unfinished

    def add(self, message: AddRequest, now_ns: int) -> Verdict:
        """Queue all choices of a request, or none of them. The verdict says which, and why."""
        num_prompt_tokens = len(message.prompt_token_ids) * len(message.choices)
        try:
            self._gate.check(self._scheduler, num_prompt_tokens)
        except OverloadedError as error:
            return to_verdict(message.request_id, error)
        added: list[int] = []
        try:
            for choice in message.choices:
                self._scheduler.add(_to_request(message, choice.request_id, choice.seed), now_ns)
                added.append(choice.request_id)
        except InvalidRequestError as error:
            self.abort(added, now_ns)
            return to_verdict(message.request_id, error)
        return Verdict(message.request_id)

    def abort(self, request_ids: Sequence[int], now_ns: int) -> None:
        """End requests that nobody wants any more; unknown ids are fine."""
        for request_id in request_ids:
            if self._scheduler.abort(request_id):
                self._gate.departed(now_ns)

    def finish(self, request_id: int, keep_tokens: int, now_ns: int) -> None:
        """End a request whose text reached a stop string; an unknown id is fine."""
        if self._scheduler.finish(request_id, FinishReason.STOP, keep_tokens):
            self._gate.departed(now_ns)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and nothing done, while any request is alive."""
        return self._scheduler.reset_prefix_cache()

    def step(self, now_ns: int) -> StepOutcome | None:
        """Run one step; ``None`` if there is nothing to run.

        Raises whatever the executor raised; then :meth:`fail_all` is all that may still be called.
        """
        outcome = self._stepper.step(now_ns)
        if outcome is not None:
            for update in outcome.updates:
                if update.finish_reason is not None:
                    self._gate.departed(now_ns)
        return outcome

    def drain(self) -> list[StepOutcome]:
        """Commit the steps in flight without planning more."""
        return self._stepper.drain()

    def settle(self, now_ns: int) -> None:
        """After the last request ended: commit what is in flight, and let the pages of its batch return."""
        self._stepper.drain()
        while self._stepper.step(now_ns) is not None:
            pass

    def fail_all(self) -> list[int]:
        """The executor broke: end every request, and return their ids."""
        self._stepper.reset()
        return self._scheduler.fail_all()

    def stats(self, outcome: StepOutcome | None = None) -> StepStats:
        """Report the scheduler's numbers, and those of the step if one is given."""
        scheduler = self._scheduler.stats()
        queue_times_ns = self._events.take_queue_times_ns()
        if outcome is None:
            return StepStats(scheduler=scheduler, queue_times_ns=queue_times_ns)
        return StepStats(
            scheduler=scheduler,
            num_steps=1,
            duration_ns=outcome.result.duration_ns,
            num_prefill_tokens=outcome.num_prefill_tokens,
            num_decode_tokens=outcome.num_decode_tokens,
            num_padding_tokens=outcome.num_padding_tokens,
            num_wasted_rows=outcome.num_wasted_rows,
            queue_times_ns=queue_times_ns,
        )

    def find_violations(self) -> list[str]:
        """Check the scheduler's state against itself; an empty list is good."""
        return invariants.check(self._scheduler)

    def describe_state(self) -> str:
        """Return the state in words, for the log after a violation."""
        requests = ", ".join(map(repr, self._scheduler.requests.values())) or "none"
        return f"{self._scheduler.stats()}; requests: {requests}"


def to_step_done(outcome: StepOutcome, stats: StepStats) -> StepDone:
    """Turn a step's outcome into the message that carries it."""
    return StepDone(tuple(map(_to_update, outcome.updates)), stats)


def _to_update(update: RequestUpdate) -> Update:
    return Update(
        update.request_id,
        update.token_ids,
        update.finish_reason.value if update.finish_reason is not None else None,
        update.stop_token,
        update.num_cached_tokens,
    )


def _to_request(message: AddRequest, request_id: int, seed: int) -> Request:
    return Request(
        request_id,
        message.prompt_token_ids,
        message.sampling,
        seed=seed,
        stop_token_ids=message.stop_token_ids,
        priority=message.priority,
        tenant=message.tenant,
        cache_salt=message.cache_salt,
        adapter=message.adapter,
    )
