"""The way of every generating request: accepted first, then answered whole or as a stream.

Knows nothing of completions or chat: an :class:`AnswerFormat` writes the answer.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.outputs import CompletionOutput
from chairlift.server.context import caller_of, context_of
from chairlift.server.directory import LiveRequest
from chairlift.server.disconnect import run_while_connected
from chairlift.server.openai.generation import Generation, Job
from chairlift.server.openai.requests import SamplingFields
from chairlift.server.openai.responses import Usage, encode
from chairlift.server.openai.sse import EventStream, EventWriter
from chairlift.server.openai.tally import UsageTally

REQUEST_ID_HEADER = "X-Chairlift-Request-Id"
"""The id of the answer, there before the answer is: GET /v1/requests/{id} says what the request waits for."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the whole answer and every chunk of a stream repeat."""

    id: str
    created: int
    model: str


class AnswerFormat(Protocol):
    """How one endpoint writes its answers."""

    id_prefix: str

    def whole(self, head: Head, choices: Sequence[CompletionOutput], usage: Usage) -> msgspec.Struct:
        """An answer in one piece."""
        ...

    def writer(self, head: Head, usage: "StreamUsage") -> EventWriter:
        """What writes a streamed answer."""
        ...


class StreamUsage:
    """The usage that a stream shows: none, at the end, or in every chunk."""

    def __init__(self, tally: UsageTally, body: SamplingFields) -> None:
        options = body.stream_options
        self.tally = tally
        self.is_wanted = options is not None and options.include_usage is True
        self._is_continuous = self.is_wanted and options is not None and options.continuous_usage_stats is True

    @property
    def in_chunk(self) -> Usage | msgspec.UnsetType | None:
        """``usage`` of a chunk with choices: OpenAI writes ``null`` there if usage comes at the end."""
        if not self.is_wanted:
            return msgspec.UNSET
        return self.tally.usage() if self._is_continuous else None


async def answer(request: Request, body: SamplingFields, job: Job, style: AnswerFormat) -> Response:
    """Generate and answer; every refusal is raised before the first byte is sent.

    Raises:
        ChairliftError: the request was refused, or (unless streamed) did not end well.
        ClientLeftError: the client left before the answer had begun.
    """
    context = context_of(request)
    head = Head(f"{style.id_prefix}-{secrets.token_hex(16)}", int(time.time()), context.engine.model_info.name)
    tally = UsageTally([len(prompt.token_ids) for prompt in job.prompts], job.sampling.n)
    generation = await run_while_connected(request.receive, Generation.start(context.engine, job))
    live = LiveRequest(head.id, caller_of(request).key_number, job.terms, generation)
    headers = {REQUEST_ID_HEADER: head.id}
    if body.stream:
        stream = context.directory.listed(live)
        return EventStream(generation, style.writer(head, StreamUsage(tally, body)), stream, headers)
    with context.directory.listed(live):
        choices = await run_while_connected(request.receive, _gather(generation, tally, job))
    return Response(encode(style.whole(head, choices, tally.usage())), headers=headers, media_type="application/json")


async def _gather(generation: Generation, tally: UsageTally, job: Job) -> Sequence[CompletionOutput]:
    texts: Mapping[int, list[str]] = {index: [] for index in range(len(job.prompts) * job.sampling.n)}
    choices = [CompletionOutput(index) for index in texts]
    try:
        async with aclosing(generation.batches()) as batches:
            async for deltas in batches:
                for delta in deltas:
                    tally.add(delta)
                    texts[delta.index].append(delta.text)
                    if delta.finish_reason is not None:
                        choices[delta.index].finish_reason = delta.finish_reason
                        choices[delta.index].stop_reason = delta.stop_reason
    finally:
        generation.abort()
    for choice in choices:
        choice.text = "".join(texts[choice.index])
    return choices
