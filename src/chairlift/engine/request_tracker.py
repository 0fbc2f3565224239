"""One request in the API process: its choices towards the engine, and the stream towards the caller.

Knows nothing of processes. All of it lives in one event loop.

::

    engine ──> RequestTracker ──> DeltaBuffer ──> RequestStream ──> caller
                                                  dropped, closed or cancelled: RequestTracker.abort()

The engine's table holds the tracker and not the stream, so that a stream nobody holds any more is noticed.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.messages import AbortRequests, Choice, FinishRequest, Inbound, Update
from chairlift.engine.output_processor import ChoiceProcessor, DeltaBuffer
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.tokenizer import EngineTokenizer
from chairlift.errors import ChairliftError, EngineUnavailableError
from chairlift.observability.recorder import Recorder

_NS_PER_S = 1e9


class TrackerOwner(Protocol):
    """What a tracker needs of the engine that made it."""

    @property
    def tokenizer(self) -> EngineTokenizer:
        """Makes the text."""
        ...

    @property
    def recorder(self) -> Recorder:
        """Is told of tokens and ends."""
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
        prompt_token_ids, sampling: what was asked for.
        owner: the engine.
        arrival_ns: when the request came in.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        owner: TrackerOwner,
        arrival_ns: int,
    ) -> None:
        self._owner = owner
        self._recorder = owner.recorder
        self._arrival_ns = arrival_ns
        self._live = {
            choice.request_id: ChoiceProcessor(index, sampling, owner.tokenizer, prompt_token_ids)
            for index, choice in enumerate(choices)
        }
        self._last_token_ns: dict[int, int] = {}
        self._buffer = DeltaBuffer()
        self._changed = asyncio.Event()
        self._is_accepted = False
        self._error: ChairliftError | None = None

    @property
    def request_ids(self) -> list[int]:
        """Ids of the choices that have not ended."""
        return list(self._live)

    def accepted(self) -> None:
        """The engine took the request in."""
        self._is_accepted = True
        self._changed.set()

    def rejected(self, error: ChairliftError) -> None:
        """The engine, or this side of it, refused the request."""
        self._end_all("rejected", error)

    def fail(self, error: ChairliftError) -> None:
        """The request cannot go on; what was generated so far can still be read before the error."""
        if self._live:
            self._owner.tell(AbortRequests(tuple(self._live)))
        self._end_all("error", error)

    def abort(self) -> None:
        """End every live choice with ``abort``. Fine at any time, any number of times."""
        if not self._live:
            return
        self._owner.tell(AbortRequests(tuple(self._live)))
        for request_id, processor in list(self._live.items()):
            self._buffer.put(processor.process((), finish_reason="abort"))
            self._end(request_id, "abort")
        self._changed.set()

    def apply(self, update: Update, now_ns: int) -> None:
        """Take what a step brought to one of the choices."""
        request_id = update.request_id
        processor = self._live[request_id]
        if update.finish_reason == "error":
            self.fail(EngineUnavailableError("the engine could not go on with this request"))
            return
        delta = processor.process(
            update.token_ids,
            finish_reason=update.finish_reason,
            stop_token=update.stop_token,
            num_cached_tokens=update.num_cached_tokens,
        )
        self._record_tokens(request_id, len(delta.token_ids), now_ns)
        self._buffer.put(delta)
        if processor.ended_here:
            self._owner.tell(FinishRequest(request_id, processor.num_output_tokens))
        if delta.finish_reason is not None:
            self._end(request_id, delta.finish_reason, (now_ns - self._arrival_ns) / _NS_PER_S)
        self._changed.set()

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

    def _record_tokens(self, request_id: int, num_tokens: int, now_ns: int) -> None:
        if not num_tokens:
            return
        last_ns = self._last_token_ns.get(request_id)
        if last_ns is None:
            self._recorder.first_token((now_ns - self._arrival_ns) / _NS_PER_S)
        else:
            self._recorder.next_tokens((now_ns - last_ns) / _NS_PER_S, num_tokens)
        self._last_token_ns[request_id] = now_ns

    def _end_all(self, reason: str, error: ChairliftError) -> None:
        if self._live:
            self._error = error
        for request_id in list(self._live):
            self._end(request_id, reason)
        self._changed.set()

    def _end(self, request_id: int, reason: str, duration_s: float | None = None) -> None:
        del self._live[request_id]
        self._owner.release(request_id)
        self._recorder.finished(reason, duration_s)


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

    def abort(self) -> None:
        """End the request; choices that have not ended yet end with ``abort``, which can still be read."""
        self._tracker.abort()

    async def aclose(self) -> None:
        """Same as :meth:`abort`, under the name that asynchronous generators have for it."""
        self._tracker.abort()
