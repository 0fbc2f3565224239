"""The engine as the server sees it: submit a prompt, read a stream, be told the truth about its health.

Knows nothing of HTTP. Runs in one event loop, with the engine in a process of its own.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry

from chairlift.config.resolved import TenantTable
from chairlift.config.settings import Settings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.bad_words import with_bad_tokens
from chairlift.engine.build import locate_model, pin_model
from chairlift.engine.end_reports import EndReports
from chairlift.engine.end_tokens import end_tokens
from chairlift.engine.messages import (
    AddRequest,
    CacheReset,
    Choice,
    Configured,
    Explained,
    Inbound,
    Listed,
    ModelInfo,
    Outbound,
    RequestStatus,
    StepDone,
    Verdict,
    Verdicts,
)
from chairlift.engine.questions import Questions
from chairlift.engine.queue_watch import QueueWatch
from chairlift.engine.readiness import log_ready
from chairlift.engine.remote_errors import to_error
from chairlift.engine.request_tracker import RequestStream, RequestTracker
from chairlift.engine.seeds import SeedSource
from chairlift.engine.step_notes import pass_on_admissions
from chairlift.engine.supervisor import Supervisor
from chairlift.engine.terms import Terms
from chairlift.engine.tokenizer import EngineTokenizer, build_tokenizer
from chairlift.engine.validation import check_request
from chairlift.errors import ChairliftError, DrainingError, EngineUnavailableError, InvalidRequestError, OverloadedError
from chairlift.observability.accounts import Objectives
from chairlift.observability.activity_log import ActivityLog
from chairlift.observability.metrics import Metrics
from chairlift.observability.recorder import Recorder
from chairlift.observability.request_record import RequestRecord
from chairlift.observability.vllm_names import VllmMetrics

_logger = logging.getLogger(__name__)


class AsyncEngine:
    """Serves one model; create it, ``await start()``, submit, ``await stop()``.

    Args:
        settings: what the user chose.
        tenants: what each tenant may have; nobody differs from the others if absent.
    """

    def __init__(self, settings: Settings, tenants: TenantTable | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.recorder = Recorder(self.metrics, tenants)
        self._configured = tenants or TenantTable()
        self._activity = ActivityLog()
        self._reports = EndReports(settings.observability, lambda ids: self.tokenizer.decode(ids))
        self._tokenizer: EngineTokenizer | None = None
        self._info: ModelInfo | None = None
        self._supervisor: Supervisor | None = None
        self._is_draining = False
        self._trackers: dict[int, RequestTracker] = {}
        self._all_done = asyncio.Event()
        self._request_ids = itertools.count()
        self._seeds = SeedSource(settings.model.seed)
        self._queue_watch = QueueWatch()
        self._questions = Questions(self._send, self.recorder, self._configured.by_name, settings.queue)
        if settings.observability.metrics_compat == "vllm":
            self.metrics.registry.register(VllmMetrics(self.metrics, lambda: self._info))

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of this engine's metrics."""
        return self.metrics.registry

    @property
    def is_healthy(self) -> bool:
        """Whether the engine process serves."""
        return self._supervisor is not None and self._supervisor.is_ready

    @property
    def is_draining(self) -> bool:
        """Whether :meth:`stop` was called: no new requests."""
        return self._is_draining

    @property
    def num_unfinished(self) -> int:
        """Choices that have not ended."""
        return len(self._trackers)

    @property
    def engine_process_id(self) -> int | None:
        """Process id of the engine; ``None`` while it is down."""
        return self._supervisor.process_id if self._supervisor is not None else None

    @property
    def tokenizer(self) -> EngineTokenizer:
        """The model's tokenizer; after :meth:`start`."""
        if self._tokenizer is None:
            raise EngineUnavailableError("the engine has not been started")
        return self._tokenizer

    @property
    def tenants(self) -> TenantTable:
        """What each tenant may have now."""
        return self.recorder.tenants

    @property
    def model_info(self) -> ModelInfo:
        """What is served, and what fits; after :meth:`start`."""
        if self._info is None:
            raise EngineUnavailableError("the engine has not been started")
        return self._info

    async def start(self) -> None:
        """Load the tokenizer, start the engine process and wait until it is ready.

        Raises:
            ModelLoadError, ConfigurationError: the model cannot be served like this.
            EngineUnavailableError: the process died while starting.
        """
        source = await asyncio.to_thread(locate_model, self.settings)
        if source is not None:
            _logger.info("loading %s", source.name)
        self._tokenizer = await asyncio.to_thread(
            build_tokenizer, source, self.settings.model.chat_template, self.settings.limits
        )
        self._supervisor = Supervisor(pin_model(self.settings, source), self, self._configured)
        await self._supervisor.start()
        self._reports.start(self.model_info.name)

    async def stop(self, drain_timeout_s: float = 0.0, *, in_hurry: bool = False) -> None:
        """Take no new requests, give running ones so long to end, abort the rest, end the process (in a hurry: now)."""
        self._is_draining = True
        if self._trackers and self.is_healthy and drain_timeout_s > 0:
            self._all_done.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_done.wait(), drain_timeout_s)
        if self._trackers:
            _logger.warning("%d requests had not ended in time and are aborted", len(self._trackers))
        for tracker in self._unfinished_trackers():
            tracker.abort()
        if self._supervisor is not None:
            await self._supervisor.stop(in_hurry=in_hurry)
        self.recorder.engine_down()
        await self._reports.stop()

    async def submit(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, terms: Terms | None = None
    ) -> RequestStream:
        """Hand a prompt to the engine, and return the stream of its choices once it was accepted.

        Cancelling the call aborts the request.

        Raises:
            InvalidRequestError: the request can never be served.
            OverloadedError: the queue is full, or the request would wait too long.
            DrainingError: the engine is shutting down.
            EngineDownError, EngineDiedError: the engine process is down, or died before it accepted.
        """
        terms = terms or Terms()
        if terms.arrival_ns is None:
            terms = replace(terms, arrival_ns=self.now_ns())
        record = self._record(prompt_token_ids, sampling.n, terms)
        record.asked_for(sampling.max_tokens)
        try:
            if self._is_draining:
                raise DrainingError("the server is shutting down and takes no new requests")
            if sampling.bad_words:
                sampling = await asyncio.to_thread(with_bad_tokens, sampling, self.tokenizer.encode)
            check_request(prompt_token_ids, sampling, self.model_info)
            self._queue_watch.check(terms.priority, terms.tenant, self.now_ns())
            message = self._message(prompt_token_ids, sampling, terms)
            tracker = RequestTracker(message.choices, prompt_token_ids, sampling, terms, record, self)
            self._send(message)
            self._queue_watch.sent(terms.tenant, sampling.n)
        except ChairliftError as error:
            record.refused(is_missed=not isinstance(error, InvalidRequestError), now_ns=self.now_ns())
            raise
        self._trackers.update((choice.request_id, tracker) for choice in message.choices)
        try:
            await tracker.wait_accepted()
        except asyncio.CancelledError:
            tracker.abort()
            raise
        return RequestStream(tracker, terms.label)

    @property
    def may_turn_away(self) -> bool:
        """Whether :meth:`turn_away` would refuse anybody now."""
        return not self._is_draining and self._queue_watch.may_refuse(self.now_ns())

    def turn_away(self, terms: Terms, num_choices: int) -> OverloadedError | None:
        """What the engine would say to a newcomer that it refuses whatever the prompt; counts it then.

        ``None`` if that depends on the prompt or on what has happened meanwhile: :meth:`submit` finds out.
        """
        now_ns = self.now_ns()
        error = self._queue_watch.find_refusal(terms.priority, terms.tenant, now_ns)
        if error is not None:
            self._record((), num_choices, terms).refused(is_missed=True, now_ns=now_ns)
        return error

    async def explain(self, request_ids: Sequence[int]) -> Sequence[RequestStatus | None]:
        """See :meth:`Questions.explain`."""
        return await self._questions.explain(request_ids)

    async def list_requests(self, limit: int) -> Listed:
        """See :meth:`Questions.list_requests`."""
        return await self._questions.list_requests(limit)

    async def configure(self, changes: Mapping[str, object]) -> Mapping[str, object]:
        """See :meth:`Questions.configure`."""
        return await self._questions.configure(changes)

    async def reset_prefix_cache(self) -> bool:
        """See :meth:`Questions.reset_prefix_cache`."""
        return await self._questions.reset_prefix_cache()

    # What trackers ask for.

    def now_ns(self) -> int:
        """The time, on the clock of arrivals."""
        return time.monotonic_ns()

    def tell(self, message: Inbound) -> None:
        """Send a message, if there is an engine to read it."""
        with contextlib.suppress(EngineUnavailableError):
            self._send(message)

    def release(self, request_id: int) -> None:
        """Forget a choice that has ended."""
        self._trackers.pop(request_id, None)
        if not self._trackers:
            self._all_done.set()

    # What the supervisor reports.

    def engine_ready(self, info: ModelInfo, *, is_restart: bool) -> None:
        """An engine process serves."""
        self._info = info
        self._queue_watch = QueueWatch()
        log_ready(info)
        self.recorder.engine_ready(is_restart=is_restart)
        self._questions.engine_ready()

    def engine_said(self, message: Outbound) -> None:
        """A message came."""
        match message:
            case StepDone():
                self._take_step(message)
            case Verdicts():
                for verdict in message.verdicts:
                    self._take_verdict(verdict)
            case Explained() | Listed() | Configured() | CacheReset():
                self._questions.answered(message)
            case _:
                _logger.error("unexpected message from the engine: %s", type(message).__name__)

    def engine_lost(self, error: ChairliftError) -> None:
        """The engine process died: every stream ends with the error."""
        self.recorder.engine_down()
        self._queue_watch = QueueWatch()
        for tracker in self._unfinished_trackers():
            tracker.fail(type(error)(error.message))
        self._questions.engine_lost(error.message)

    # Inside.

    def _record(self, prompt_token_ids: Sequence[int], num_choices: int, terms: Terms) -> RequestRecord:
        ttft_ms = terms.ttft_deadline_ms
        if ttft_ms is None:
            ttft_ms = self._questions.queue.max_ttft_ms
        record = self.recorder.request(
            terms.priority,
            terms.tenant,
            Objectives.in_ms(ttft_ms, terms.deadline_ms),
            num_prompt_tokens=len(prompt_token_ids),
            num_choices=num_choices,
            arrival_ns=terms.arrival_ns or self.now_ns(),
        )
        self._reports.follow(record, prompt_token_ids, terms)
        return record

    def _message(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, terms: Terms) -> AddRequest:
        seeds = self._seeds.choice_seeds(sampling.seed, sampling.n)
        return AddRequest(
            choices=tuple(Choice(next(self._request_ids), seed) for seed in seeds),
            prompt_token_ids=tuple(prompt_token_ids),
            sampling=sampling,
            stop_token_ids=end_tokens(sampling, self.model_info.eos_token_ids),
            priority=terms.priority,
            tenant=terms.tenant,
            cache_salt=terms.cache_salt,
            ttft_deadline_ms=terms.ttft_deadline_ms,
            deadline_ms=terms.deadline_ms,
            arrival_ns=terms.arrival_ns,
        )

    def _send(self, message: Inbound) -> None:
        if self._supervisor is None:
            raise EngineUnavailableError("the engine has not been started")
        self._supervisor.send(message)

    def _unfinished_trackers(self) -> list[RequestTracker]:
        return list({id(tracker): tracker for tracker in self._trackers.values()}.values())

    def _take_verdict(self, verdict: Verdict) -> None:
        tracker = self._trackers.get(verdict.request_id)
        if tracker is None:
            return
        if verdict.error is None:
            tracker.accepted()
        else:
            tracker.rejected(to_error(verdict))

    def _take_step(self, message: StepDone) -> None:
        now_ns = time.monotonic_ns()
        self._queue_watch.reported(message.stats, now_ns)
        pass_on_admissions(message.stats, self._trackers)
        for update in message.updates:
            tracker = self._trackers.get(update.request_id)
            if tracker is None:
                continue  # ended on this side meanwhile
            try:
                tracker.apply(update, now_ns)
            except Exception:  # a fault in one request's text must not end the others
                _logger.exception("the output of a request could not be processed")
                tracker.fail(EngineUnavailableError("the output of this request could not be processed"))
        self.recorder.step(message.stats, now_ns)
        self.recorder.compare_service(now_ns)
        self._activity.step(message.stats, now_ns)
