"""One request in the API process: its choices towards the engine, and the stream towards the caller.

Knows nothing of processes. All of it lives in one event loop.

::

    engine ──> RequestTracker ──> DeltaBuffer ──> RequestStream ──> caller
                                                  dropped, closed or cancelled: RequestTracker.abort()

The engine's table holds the tracker and not the stream, so that a stream nobody holds any more is noticed.
"""

import asyncio
import math
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import NOT_NUMBERS
from chairlift.engine.messages import AbortRequests, Choice, FinishRequest, Inbound, Update
from chairlift.engine.output_processor import ChoiceProcessor, DeltaBuffer, PromptLogprobsGate
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.terms import Terms
from chairlift.engine.tokenizer import EngineTokenizer
from chairlift.errors import (
    ChairliftError,
    DeadlineExceededError,
    EngineUnavailableError,
    InvalidRequestError,
    QueueTimeoutError,
)
from chairlift.observability.request_record import RequestRecord

_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_MAX_RETRY_AFTER_S = 60


_LATE = frozenset({"deadline", "timeout"})
"""Finish reasons of the engine that are errors where nothing was generated."""


class TrackerOwner(Protocol):
    """What a tracker needs of the engine that made it."""

    @property
    def tokenizer(self) -> EngineTokenizer:
        """Makes the text."""
        ...

    def now_ns(self) -> int:
        """The time, on the clock of arrivals."""
        ...

    def tell(self, message: Inbound) -> None:
        """Send a message; if the engine is down it is dropped, because then there is nothing left to end."""
        ...

    def release(self, request_id: int) -> None:
        """Forget a choice that has ended."""
        ...


class RequestTracker:
    """Follows all choices of one request until each has ended; counts each end exactly once.

    Args:
        choices: ids of the engine's requests, in the order of choice indices.
        prompt_token_ids, sampling, terms: what was asked for.
        record: is told of tokens and ends.
        owner: the engine.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        terms: Terms,
        record: RequestRecord,
        owner: TrackerOwner,
    ) -> None:
        self._owner = owner
        self._terms = terms
        self._record = record
        self._arrival_ns = owner.now_ns() if terms.arrival_ns is None else terms.arrival_ns
        self._live = {
            choice.request_id: ChoiceProcessor(index, sampling, owner.tokenizer, prompt_token_ids)
            for index, choice in enumerate(choices)
        }
        self._buffer = DeltaBuffer()
        self._gate = PromptLogprobsGate() if sampling.prompt_logprobs is not None else None
        self._rules_out = sampling.has_edits or sampling.min_tokens > 0
        """Whether it may be the request itself that leaves nothing to draw."""
        self._grammar = sampling.grammar
        self._changed = asyncio.Event()
        self._is_accepted = False
        self._error: ChairliftError | None = None

    @property
    def request_ids(self) -> list[int]:
        """Ids of the choices that have not ended."""
        return list(self._live)

    @property
    def live_choices(self) -> list[tuple[int, int]]:
        """Index and engine id of the choices that have not ended."""
        return [(processor.index, request_id) for request_id, processor in self._live.items()]

    def admitted(self, request_id: int, queue_ns: int) -> None:
        """A choice got its first slot after so long."""
        self._record.admitted(request_id, queue_ns)

    def accepted(self) -> None:
        """The engine took the request in."""
        self._is_accepted = True
        self._changed.set()

    def rejected(self, error: ChairliftError) -> None:
        """The engine, or this side of it, refused the request."""
        self._error = error
        self._record.refused(is_missed=not isinstance(error, InvalidRequestError), now_ns=self._owner.now_ns())
        for request_id in list(self._live):
            del self._live[request_id]
            self._owner.release(request_id)
        self._changed.set()

    def fail(self, error: ChairliftError) -> None:
        """The request cannot go on; what was generated so far can still be read before the error."""
        if self._live:
            self._owner.tell(AbortRequests(tuple(self._live)))
        self._end_all("error", error, self._owner.now_ns())

    def abort(self) -> None:
        """End every live choice with ``abort``. Fine at any time, any number of times."""
        if not self._live:
            return
        self._owner.tell(AbortRequests(tuple(self._live)))
        now_ns = self._owner.now_ns()
        for request_id, processor in list(self._live.items()):
            self._put(processor.process((), finish_reason="abort"))
            self._end(request_id, "abort", now_ns)
        self._changed.set()

    def apply(self, update: Update, now_ns: int) -> None:
        """Take what a step brought to one of the choices."""
        request_id = update.request_id
        processor = self._live[request_id]
        if update.finish_reason == "error":
            self.fail(self._failure(update.failure))
            return
        if update.finish_reason in _LATE and not processor.num_output_tokens:
            self._give_up(request_id, update.finish_reason, now_ns)
            return
        if update.prompt_logprobs is not None:
            processor.note_prompt(update.prompt_logprobs)
            if not update.token_ids and update.finish_reason is None:
                return
        if update.embedding is not None:
            processor.note_embedding(update.embedding)
            self._record.embedded(request_id, now_ns, update.num_cached_tokens)
        delta = processor.process(
            update.token_ids,
            finish_reason=update.finish_reason,
            stop_token=update.stop_token,
            num_cached_tokens=update.num_cached_tokens,
            logprobs=update.logprobs,
        )
        if delta.token_ids:
            self._record.tokens(request_id, len(delta.token_ids), now_ns, update.num_cached_tokens)
        self._put(delta)
        if processor.ended_here:
            self._owner.tell(FinishRequest(request_id, processor.num_output_tokens))
        if delta.finish_reason is not None:
            self._end(request_id, delta.finish_reason, now_ns)
        self._changed.set()

    def _failure(self, known: str | None) -> ChairliftError:
        """Why no token could be drawn: the request permits none, or, if it permits all, the engine is at fault."""
        if known == NOT_NUMBERS:
            return EngineUnavailableError(f"the engine could not go on with this request: {NOT_NUMBERS}")
        if self._grammar is not None:
            why = known or "and other fields of the request permit no token that could come next"
            param = self._grammar.param
            return InvalidRequestError(f"the answer could not go on: {param} {why}", param=param)
        if self._rules_out:
            return InvalidRequestError(
                "no token that could come next is permitted: allowed_token_ids, bad_words or min_tokens rule out all "
                "of them"
            )
        return EngineUnavailableError("the engine could not go on with this request")

    def _put(self, delta: ChoiceDelta) -> None:
        if self._gate is None:
            self._buffer.put(delta)
            return
        for one in self._gate.let_through(delta):
            self._buffer.put(one)

    async def wait_accepted(self) -> None:
        """Return when the engine has taken the request in.

        Raises:
            ChairliftError: it was refused, or the engine died.
        """
        while not self._is_accepted and self._error is None:
            await self._wait()
        if not self._is_accepted and self._error is not None:
            raise self._error

    async def next_delta(self) -> ChoiceDelta | None:
        """Return what is new, waiting for it; ``None`` at the end.

        Raises:
            ChairliftError: the request failed.
        """
        while True:
            if self._buffer:
                return self._buffer.take()
            if self._error is not None:
                raise self._error
            if not self._live:
                return None
            await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _give_up(self, request_id: int, reason: str, now_ns: int) -> None:
        """A choice that has no token yet came too late, and with it the whole request."""
        others = tuple(other for other in self._live if other != request_id)
        if others:
            self._owner.tell(AbortRequests(others))
        self._end_all(reason, _lateness(reason, self._terms, now_ns - self._arrival_ns), now_ns)

    def _end_all(self, reason: str, error: ChairliftError, now_ns: int) -> None:
        if self._live:
            self._error = error
        for request_id in list(self._live):
            self._end(request_id, reason, now_ns)
        self._changed.set()

    def _end(self, request_id: int, reason: str, now_ns: int) -> None:
        del self._live[request_id]
        self._owner.release(request_id)
        self._record.ended(request_id, reason, now_ns)


class RequestStream:
    """The deltas of a request's choices, as they come: an asynchronous iterator, and a context manager around it.

    Leaving before the end aborts the request: by :meth:`aclose`, by the end of ``async with``, by cancelling a task
    that waits in it, or by dropping the last reference. A slow reader gets fewer and larger deltas.
    """

    def __init__(self, tracker: RequestTracker, label: str | None = None) -> None:
        self.label = label
        self._tracker = tracker
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> ChoiceDelta:
        try:
            delta = await self._tracker.next_delta()
        except asyncio.CancelledError:
            self._tracker.abort()
            raise
        if delta is None:
            raise StopAsyncIteration
        return delta

    async def __aenter__(self) -> "RequestStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()

    def __del__(self) -> None:
        if self._tracker.request_ids and not self._loop.is_closed():
            # The garbage collector may run in any thread.
            self._loop.call_soon_threadsafe(self._tracker.abort)

    @property
    def live_choices(self) -> list[tuple[int, int]]:
        """Index of each choice that has not ended, and the id under which the engine explains it."""
        return self._tracker.live_choices

    def abort(self) -> None:
        """End the request; choices that have not ended yet end with ``abort``, which can still be read."""
        self._tracker.abort()

    async def aclose(self) -> None:
        """Same as :meth:`abort`, under the name that asynchronous generators have for it."""
        self._tracker.abort()


def _lateness(reason: str, terms: Terms, waited_ns: int) -> ChairliftError:
    """The error of a request that came too late, with what it was allowed and what it took."""
    if reason == "timeout":
        waited_s = waited_ns / _NS_PER_S
        return QueueTimeoutError(
            f"the request waited {_shown(waited_s)} s for its first slot, and --queue-timeout ends the wait; try again",
            retry_after_s=min(max(math.ceil(waited_s), 1), _MAX_RETRY_AFTER_S),
        )
    allowed = {"ttft_deadline_ms": terms.ttft_deadline_ms, "deadline_ms": terms.deadline_ms}
    shown = " and ".join(f"{name} is {limit_ms:.15g}" for name, limit_ms in allowed.items() if limit_ms is not None)
    return DeadlineExceededError(
        f"the request was given up after {_shown(waited_ns / _NS_PER_MS)} ms without a first token: {shown}, which "
        "passed or could not be met any more"
    )


def _shown(number: float) -> str:
    """Three digits, or all of a whole number: never an exponent."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
