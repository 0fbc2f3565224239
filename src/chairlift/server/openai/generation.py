"""All prompts of one HTTP request as one flow of deltas. Knows nothing of how deltas are written."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.terms import Terms
from chairlift.errors import DrainingError, EngineUnavailableError, RequestCancelledError
from chairlift.server.engine_port import Engine, TokenStream
from chairlift.server.openai.prompts import PreparedPrompt
from chairlift.server.slices import NUM_PER_TURN, end_tasks, for_each
from chairlift.server.tools.reasoning import Opening


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate: ``n`` choices for each prompt; choice ``c`` of prompt ``p`` has index ``p * n + c``."""

    prompts: Sequence[PreparedPrompt]
    sampling: SamplingParams
    terms: Terms
    opening: Opening | None = None
    """Where the answers begin, if their reasoning is counted apart."""


class Generation:
    """The accepted streams of a job, merged."""

    def __init__(self, streams: Sequence[TokenStream], choices_per_prompt: int) -> None:
        self._streams = streams
        self._choices_per_prompt = choices_per_prompt
        self._is_cancelled = False
        self._cancelling: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, engine: Engine, job: Job) -> "Generation":
        """Hand in every prompt and wait until all are accepted; if one is refused, none goes on.

        Raises:
            ChairliftError: the first refusal, in the order of the prompts.
        """
        if job.sampling.max_tokens == 0 and job.sampling.prompt_logprobs is None:
            return cls([_NothingToGenerate(job.sampling.n) for _ in job.prompts], job.sampling.n)
        tasks: list[asyncio.Task[TokenStream]] = []
        try:
            for prompt in job.prompts:
                tasks.append(asyncio.ensure_future(_submit(engine, prompt, job)))
                await asyncio.sleep(0)  # one prompt at a time, so that others have their turn between them
            return cls([await task for task in tasks], job.sampling.n)
        except BaseException:
            try:
                await end_tasks(tasks)
            finally:
                await for_each(tasks, _abort_if_accepted)
            raise

    @property
    def live_choices(self) -> list[tuple[int, int]]:
        """Index of each choice that has not ended, and the id under which the engine explains it."""
        return [
            (position * self._choices_per_prompt + index, request_id)
            for position, stream in enumerate(self._streams)
            for index, request_id in stream.live_choices
        ]

    def abort(self) -> None:
        """End everything that still runs."""
        for stream in self._streams:
            stream.abort()

    def cancel(self) -> None:
        """End everything that still runs, and tell whoever reads that somebody wanted it so."""
        self._is_cancelled = True
        if len(self._streams) <= NUM_PER_TURN:
            self.abort()
        else:
            self._cancelling = asyncio.ensure_future(for_each(self._streams, _abort))

    async def batches(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Deltas as they come, those that are there together in one list.

        A choice whose deadline passes after its first token ends with ``length``, which every client knows, and
        ``stop_reason`` ``deadline``.

        Raises:
            EngineUnavailableError: the engine died, or failed at one of the choices.
            RequestCancelledError: it was cancelled.
            DrainingError: the server stopped before the request had ended.
            DeadlineExceededError, QueueTimeoutError: a choice came too late for its first token.
        """
        source = _single(self._streams[0]) if len(self._streams) == 1 else self._merged()
        async with aclosing(source):
            async for deltas in source:
                if self._is_cancelled and any(delta.finish_reason == "abort" for delta in deltas):
                    raise RequestCancelledError("the request was cancelled")
                yield [_checked(delta) for delta in deltas]

    async def _merged(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        arrived: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue()
        pumps: list[asyncio.Task[None]] = []
        num_open = len(self._streams)
        try:
            for position, stream in enumerate(self._streams):
                pumps.append(asyncio.ensure_future(self._pump(position, stream, arrived)))
                if len(pumps) % NUM_PER_TURN == 0:
                    await asyncio.sleep(0)
            while num_open:
                items = [await arrived.get()]
                while not arrived.empty():
                    items.append(arrived.get_nowait())
                num_open -= items.count(None)
                yield [_delta_or_raise(item) for item in items if item is not None]
        finally:
            await end_tasks(pumps)
            if num_open:
                await for_each(self._streams, _abort)  # those too that no pump has begun with

    async def _pump(
        self, position: int, stream: TokenStream, arrived: "asyncio.Queue[ChoiceDelta | Exception | None]"
    ) -> None:
        first_index = position * self._choices_per_prompt
        try:
            async for delta in stream:
                arrived.put_nowait(replace(delta, index=first_index + delta.index))
        except Exception as error:  # noqa: BLE001 (it is raised again where the deltas are read)
            arrived.put_nowait(error)
        else:
            arrived.put_nowait(None)


class _NothingToGenerate:
    """The stream of a prompt with ``max_tokens`` 0: every choice ends at once."""

    def __init__(self, num_choices: int) -> None:
        self._num_choices = num_choices
        self.live_choices: list[tuple[int, int]] = []

    async def __aiter__(self) -> AsyncIterator[ChoiceDelta]:
        for index in range(self._num_choices):
            yield ChoiceDelta(index, "", (), 0, num_cached_tokens=0, finish_reason="length")

    def abort(self) -> None:
        pass


class _HiddenOutput:
    """The stream of a prompt with ``max_tokens`` 0 whose log-probabilities are wanted.

    They come with the first token after it, which is nobody's: it is neither shown nor counted.
    """

    def __init__(self, stream: TokenStream, num_choices: int) -> None:
        self._stream = stream
        self._num_choices = num_choices

    @property
    def live_choices(self) -> list[tuple[int, int]]:
        return self._stream.live_choices

    async def __aiter__(self) -> AsyncIterator[ChoiceDelta]:
        prompt_logprobs = None
        async for delta in self._stream:
            prompt_logprobs = prompt_logprobs or delta.prompt_logprobs
            if delta.finish_reason is None:
                continue
            reason = "length" if delta.finish_reason == "stop" else delta.finish_reason
            for index in range(self._num_choices):
                yield ChoiceDelta(
                    index,
                    "",
                    (),
                    0,
                    num_cached_tokens=delta.num_cached_tokens,
                    finish_reason=reason,
                    prompt_logprobs=prompt_logprobs,
                )

    def abort(self) -> None:
        self._stream.abort()


async def _submit(engine: Engine, prompt: PreparedPrompt, job: Job) -> TokenStream:
    if job.sampling.max_tokens != 0:
        return await engine.submit(prompt.token_ids, job.sampling, job.terms)
    sampling = replace(job.sampling, max_tokens=1, n=1, stop=(), logprobs=None)
    return _HiddenOutput(await engine.submit(prompt.token_ids, sampling, job.terms), job.sampling.n)


def _abort(stream: TokenStream) -> None:
    stream.abort()


def _abort_if_accepted(submission: asyncio.Task[TokenStream]) -> None:
    if submission.done() and not submission.cancelled() and submission.exception() is None:
        submission.result().abort()


async def _single(stream: TokenStream) -> AsyncGenerator[list[ChoiceDelta], None]:
    async for delta in stream:
        yield [delta]


def _delta_or_raise(item: ChoiceDelta | Exception) -> ChoiceDelta:
    if isinstance(item, Exception):
        raise item
    return item


def _checked(delta: ChoiceDelta) -> ChoiceDelta:
    if delta.finish_reason is None:
        return delta
    if delta.finish_reason == "abort":
        raise DrainingError("the server is shutting down and ended the request")
    if delta.finish_reason == "error":
        raise EngineUnavailableError("the engine failed while it worked on the request")
    if delta.finish_reason == "deadline":
        return replace(delta, finish_reason="length", stop_reason="deadline")
    return delta
