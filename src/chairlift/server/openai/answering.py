"""The way of every request that is computed: accepted first, then answered whole or as a stream.

Knows nothing of completions or chat: an :class:`AnswerFormat` writes the answer.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.output_processor import DeltaBuffer
from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.context import caller_of, context_of
from chairlift.server.directory import LiveRequest
from chairlift.server.disconnect import run_while_connected
from chairlift.server.openai.extras import is_heavy
from chairlift.server.openai.generation import Generation, Job
from chairlift.server.openai.no_effect import names_without_effect
from chairlift.server.openai.requests import PromptFields, SamplingFields
from chairlift.server.openai.responses import Usage, encode
from chairlift.server.openai.sse import EventStream, EventWriter
from chairlift.server.openai.tally import UsageTally
from chairlift.server.openai.terms import served_tier
from chairlift.server.workers import answer_in_worker

REQUEST_ID_HEADER = "X-Chairlift-Request-Id"
"""The id of the answer, there before the answer is: GET /v1/requests/{id} says what the request waits for."""

IGNORED_HEADER = "X-Chairlift-Ignored-Fields"
"""Names the fields of the request that have no effect here."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the whole answer and every chunk of a stream repeat."""

    id: str
    created: int
    model: str
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    """The one that the request got, if it named one."""


class WholeFormat(Protocol):
    """How one endpoint writes an answer in one piece."""

    id_prefix: str

    def whole(self, head: Head, choices: Sequence[ChoiceDelta], usage: Usage) -> msgspec.Struct:
        """The answer; all that came of a choice is in one delta."""
        ...


class AnswerFormat(WholeFormat, Protocol):
    """How one endpoint writes its answers, streamed ones too."""

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


StreamWriter = Callable[[Head, UsageTally], EventWriter]
"""Makes what writes a streamed answer."""


async def answer(
    request: Request, body: SamplingFields, job: Job, style: AnswerFormat, *, asked: BaseModel | None = None
) -> Response:
    """Generate and answer, whole or as a stream; as :func:`answer_whole`."""

    def writer(head: Head, tally: UsageTally) -> EventWriter:
        return style.writer(head, StreamUsage(tally, body))

    return await answer_whole(request, body, job, style, writer if body.stream else None, asked=asked)


async def answer_whole(
    request: Request,
    body: PromptFields,
    job: Job,
    style: WholeFormat,
    stream: StreamWriter | None = None,
    *,
    asked: BaseModel | None = None,
) -> Response:
    """Compute and answer; every refusal is raised before the first byte is sent.

    Args:
        request: where the answer goes.
        body: what it asks for.
        job: the same for the engine.
        style: how an answer is written.
        stream: what writes it as a stream instead.
        asked: the body as the client sent it, if ``body`` was made of that.

    Raises:
        ChairliftError: the request was refused, or (unless streamed) did not end well.
        ClientLeftError: the client left before the answer had begun.
    """
    context = context_of(request)
    head = Head(
        f"{style.id_prefix}{secrets.token_hex(16)}",
        int(time.time()),
        context.engine.model_info.name,
        served_tier(body, job.terms) or msgspec.UNSET,
    )
    tally = UsageTally([len(prompt.token_ids) for prompt in job.prompts], job.sampling.n, job.opening)
    terms = replace(job.terms, answer_id=head.id, traceparent=request.headers.get("traceparent"))
    job = replace(job, terms=terms)
    caller = caller_of(request)
    headers = {REQUEST_ID_HEADER: head.id}
    if ignored := names_without_effect(asked or body):
        headers[IGNORED_HEADER] = ", ".join(ignored)
    with ExitStack() as while_open:
        while_open.enter_context(context.concurrency.counted(request, caller))
        generation = await run_while_connected(request.receive, Generation.start(context.engine, job))
        live = LiveRequest(head.id, caller.key_number, terms, generation)
        while_open.enter_context(context.directory.listed(live))
        if stream is not None:
            return EventStream(generation, stream(head, tally), while_open.pop_all(), headers)
        choices = await run_while_connected(request.receive, _gather(generation, tally))

    def write() -> bytes:
        return encode(style.whole(head, choices, tally.usage()))

    content = await answer_in_worker(write) if is_heavy(choices) else write()
    return Response(content, headers=headers, media_type="application/json")


async def _gather(generation: Generation, tally: UsageTally) -> list[ChoiceDelta]:
    """All that comes of each choice, in one delta for each, in the order of their indices."""
    unread = DeltaBuffer()
    try:
        async with aclosing(generation.batches()) as batches:
            async for deltas in batches:
                for delta in deltas:
                    tally.add(delta)
                    unread.put(delta)
    finally:
        generation.abort()
    return sorted(unread.take_all(), key=lambda choice: choice.index)
