"""The engine without a process around it: takes requests, runs steps, reports.

Knows nothing of sockets or text. The engine process and the offline ``LLM`` both drive it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from chairlift.config.changes import check_changes
from chairlift.config.sections import QueueSettings
from chairlift.core import invariants
from chairlift.core.outcome import RequestUpdate, StepOutcome
from chairlift.core.request import BlockedOn, FinishReason, Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.stepper import Stepper
from chairlift.core.wait_prediction import Newcomer
from chairlift.engine.engine_events import EngineEvents
from chairlift.engine.full_queues import FullQueueFinder
from chairlift.engine.grammar_gate import GrammarGate
from chairlift.engine.messages import (
    AddRequest,
    Choice,
    Configure,
    Configured,
    Explain,
    Explained,
    Listed,
    ListRequests,
    ModelInfo,
    StepDone,
    Update,
    Verdict,
)
from chairlift.engine.queue_gate import QueueGate, ms_until_deadline
from chairlift.engine.remote_errors import to_verdict
from chairlift.engine.request_status import RequestStatuses, count_by_reason, running_and_waiting
from chairlift.engine.terms import deadline_ns
from chairlift.errors import ConfigurationError, InvalidRequestError, OverloadedError
from chairlift.observability.step_stats import StepStats

_REASONS_INTERVAL_NS = 250_000_000
"""Time between two counts of the waiting by reason; a step does not wait for one."""


class EngineRunner:
    """One engine: a scheduler, a stepper and the executor behind it. Single-threaded."""

    def __init__(
        self,
        scheduler: Scheduler,
        stepper: Stepper,
        events: EngineEvents,
        queue: QueueSettings,
        info: ModelInfo,
        grammars: GrammarGate | None = None,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._stepper = stepper
        self._events = events
        self._queue = queue
        self._gate = QueueGate(queue)
        self._full_queues = FullQueueFinder(queue)
        self._num_received = 0
        self._grammars = GrammarGate(None) if grammars is None else grammars
        self._statuses = RequestStatuses(scheduler)
        self._reasons_due_ns = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request runs or waits."""
        return self._scheduler.has_unfinished

    @property
    def next_expiry_ns(self) -> int | None:
        """When the next request ends by itself because it waited too long or its deadline passes."""
        return self._scheduler.next_expiry_ns

    @property
    def has_held(self) -> bool:
        """Whether any request waits for its grammar."""
        return len(self._grammars) > 0

    def add(self, message: AddRequest, now_ns: int) -> Verdict | None:
        """Queue all choices of a request, or none of them. The verdict says which, and why.

        ``None`` if its grammar has to be compiled first: the verdict is then among those of :meth:`take_verdicts`.
        """
        self._num_received += len(message.choices)
        try:
            if self._grammars.holds(message, now_ns):
                return None
        except InvalidRequestError as error:
            return to_verdict(message.request_id, error)
        return self._admit(message, now_ns)

    def take_verdicts(self, now_ns: int) -> list[Verdict]:
        """Queue or refuse the requests whose grammar is ready, or will not be."""
        return [
            self._admit(message, now_ns) if error is None else to_verdict(message.request_id, error)
            for message, error in self._grammars.take_settled(now_ns)
        ]

    def _admit(self, message: AddRequest, now_ns: int) -> Verdict:
        requests = [_to_request(message, choice, now_ns) for choice in message.choices]
        newcomer = Newcomer(len(message.prompt_token_ids), len(requests), message.priority, message.tenant)
        try:
            requests[0].expected_wait = self._gate.check(
                self._scheduler, newcomer, deadline_ms=ms_until_deadline(requests[0], now_ns)
            )
        except OverloadedError as error:
            return to_verdict(message.request_id, error)
        added: list[int] = []
        try:
            for request in requests:
                self._scheduler.add(request, now_ns)
                added.append(request.request_id)
                self._events.introduce(request.request_id, request.priority, request.tenant)
        except InvalidRequestError as error:
            self.abort(added, now_ns)
            return to_verdict(message.request_id, error)
        return Verdict(message.request_id)

    def abort(self, request_ids: Sequence[int], now_ns: int) -> None:
        """End requests that nobody wants any more; unknown ids are fine."""
        if len(self._grammars):
            self._grammars.drop(request_ids)
        for request_id in request_ids:
            self._scheduler.abort(request_id)

    def finish(self, request_id: int, keep_tokens: int, now_ns: int) -> None:
        """End a request whose text reached a stop string; an unknown id is fine."""
        self._scheduler.finish(request_id, FinishReason.STOP, keep_tokens)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and nothing done, while any request is alive."""
        return self._scheduler.reset_prefix_cache()

    def take_expired(self) -> list[RequestUpdate]:
        """Remove and return the ends of requests that waited too long or missed their deadline."""
        return self._scheduler.take_expired()

    def explain(self, question: Explain, now_ns: int) -> Explained:
        """Say what requests wait for; nothing changes."""
        statuses = self._statuses.find(question.request_ids, now_ns)
        if len(self._grammars):
            held = {status.request_id: status for status in self._grammars.statuses(now_ns, question.request_ids)}
            pairs = zip(question.request_ids, statuses, strict=True)
            statuses = tuple(status or held.get(request_id) for request_id, status in pairs)
        return Explained(question.question, statuses)

    def list_requests(self, question: ListRequests, now_ns: int) -> Listed:
        """Say who runs and who is first in the queue; nothing changes."""
        running, waiting = running_and_waiting(self._scheduler, question.limit, now_ns)
        scheduler = self._scheduler
        held = self._grammars.statuses(now_ns)
        waiting = (*waiting, *held)[: question.limit]
        return Listed(question.question, running, waiting, scheduler.num_running, scheduler.num_waiting + len(held))

    def configure(self, message: Configure, now_ns: int) -> Configured:
        """Change settings, all of them or none, and say what is in force."""
        error = None
        if message.changes:
            try:
                changes = check_changes(message.changes, self._scheduler.config, self._queue)
                if changes.scheduler:
                    self._scheduler.reconfigure(changes.scheduler, now_ns)
                self._queue = changes.queue
                self._gate = QueueGate(changes.queue)
                self._full_queues = FullQueueFinder(changes.queue)
            except ConfigurationError as refusal:
                error = refusal.message
        return Configured(message.question, self._scheduler.config, self._queue, error)

    def step(self, now_ns: int) -> StepOutcome | None:
        """Run one step; ``None`` if there is nothing to run.

        Raises whatever the executor raised; then :meth:`fail_all` is all that may still be called.
        """
        return self._stepper.step(now_ns)

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

    def stats(self, now_ns: int = 0, outcome: StepOutcome | None = None) -> StepStats:
        """Report the scheduler's numbers, and those of the step if one is given."""
        events = self._events
        queue_times_ns = events.take_queue_times_ns()
        report = StepStats(
            scheduler=self._scheduler.stats(),
            queue_times_ns=tuple(queue_times_ns.values()),
            queued_request_ids=tuple(queue_times_ns),
            preemptions=events.take_preemptions(),
            resumes=events.take_resumes(),
            waiting_by_reason=self._waiting_by_reason(now_ns, is_due=outcome is None),
            num_received=self._num_received,
            full_queues=self._full_queues.find(self._scheduler, now_ns),
        )
        if outcome is None:
            return report
        return replace(
            report,
            num_steps=1,
            duration_ns=outcome.result.duration_ns,
            num_prefill_tokens=outcome.num_prefill_tokens,
            num_decode_tokens=outcome.num_decode_tokens,
            num_padding_tokens=outcome.num_padding_tokens,
            num_wasted_rows=outcome.num_wasted_rows,
        )

    def _waiting_by_reason(self, now_ns: int, *, is_due: bool) -> dict[str, int] | None:
        if not is_due and now_ns < self._reasons_due_ns:
            return None
        self._reasons_due_ns = now_ns + _REASONS_INTERVAL_NS
        counts = count_by_reason(self._scheduler)
        if len(self._grammars):
            counts[BlockedOn.GRAMMAR.value] = len(self._grammars)
        return counts

    def find_violations(self) -> list[str]:
        """Check the scheduler's state against itself; an empty list is good."""
        return invariants.check(self._scheduler)

    def describe_state(self) -> str:
        """Return the state in words, for the log after a violation."""
        requests = ", ".join(map(repr, self._scheduler.requests.values())) or "none"
        return f"{self._scheduler.stats()}; requests: {requests}"


def to_step_done(
    updates: Iterable[RequestUpdate], stats: StepStats, failures: Mapping[int, str] | None = None
) -> StepDone:
    """Make the message that carries what a step brought, and what ended beside it; ``failures`` say why, by id."""
    told = tuple(map(_to_update, updates))
    if failures:
        told = tuple(msgspec.structs.replace(one, failure=failures.get(one.request_id)) for one in told)
    return StepDone(told, stats)


def _to_update(update: RequestUpdate) -> Update:
    return Update(
        update.request_id,
        update.token_ids,
        update.finish_reason.value if update.finish_reason is not None else None,
        update.stop_token,
        update.num_cached_tokens,
        () if update.logprobs is None else (update.logprobs,),
        update.prompt_logprobs,
        update.embedding,
    )


def _to_request(message: AddRequest, choice: Choice, now_ns: int) -> Request:
    # What passed since the arrival, in the other process and on the way, is gone from its deadlines.
    arrival_ns = now_ns if message.arrival_ns is None else message.arrival_ns
    sampling = message.sampling
    if sampling.prompt_logprobs is not None and choice is not message.choices[0]:
        # They are the same for all choices, so the first one computes them and the others share its pages.
        sampling = replace(sampling, prompt_logprobs=None)
    return Request(
        choice.request_id,
        message.prompt_token_ids,
        sampling,
        seed=choice.seed,
        stop_token_ids=message.stop_token_ids,
        priority=message.priority,
        tenant=message.tenant,
        cache_salt=message.cache_salt,
        adapter=message.adapter,
        ttft_deadline_ns=deadline_ns(arrival_ns, message.ttft_deadline_ms),
        deadline_ns=deadline_ns(arrival_ns, message.deadline_ms),
    )
