"""POST /v1/completions. Knows nothing of chat."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter
from msgspec import UnsetType
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.body import is_long_body, read_body
from chairlift.server.context import context_of
from chairlift.server.disconnect import run_while_connected
from chairlift.server.engine_port import TextCodec
from chairlift.server.openai.answer_plan import hold_completion
from chairlift.server.openai.answering import Head, StreamUsage, answer
from chairlift.server.openai.extras import Extras
from chairlift.server.openai.generation import Job
from chairlift.server.openai.logprobs import token_offsets
from chairlift.server.openai.prompts import (
    PreparedPrompt,
    check_prompt,
    decode,
    num_reserved,
    prepare_prompts,
    truncate,
)
from chairlift.server.openai.requests import CompletionBody
from chairlift.server.openai.responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from chairlift.server.openai.sampling import sampling_params
from chairlift.server.openai.sse import event
from chairlift.server.openai.terms import terms_of
from chairlift.server.openapi import documented
from chairlift.server.workers import in_worker

router = APIRouter()


@router.post("/v1/completions", **documented(CompletionBody, Completion, "Continue prompts", events=Completion))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts, whole or as a stream."""
    context = context_of(request)
    body = await read_body(request, CompletionBody)
    context.check_model(body.model)
    sampling = sampling_params(body, context.settings, context.sections.limits)
    is_long = is_long_body(request)
    sampling = await in_worker(hold_completion, body, sampling) if is_long else hold_completion(body, sampling)
    terms = terms_of(request, body)
    preparing = prepare_prompts(body, context.engine, context.settings, context.sections.limits)
    prompts = await run_while_connected(request.receive, preparing)
    model, codec = context.engine.model_info, context.engine.tokenizer
    prompts = [truncate(prompt, body, num_reserved(sampling.max_tokens), model) for prompt in prompts]
    for prompt in prompts:
        check_prompt(prompt.token_ids, sampling.max_tokens, model, is_echoed=body.echo is True)
    job = Job(prompts, sampling, terms)
    extras = Extras.of(body, codec)
    echoes = [await _echo(prompt, codec, extras) for prompt in prompts] if body.echo else [Echo()] * len(prompts)
    style = CompletionFormat(prompts, echoes, extras, num_generated=sampling.n, num_shown=body.n or 1)
    return await answer(request, body, job, style)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt's text as it comes before the output, and where its tokens begin if that is wanted."""

    text: str = ""
    offsets: Sequence[int] | None = None


class CompletionFormat:
    """Text completions; each choice begins with its prompt's echo, empty if none is wanted.

    Args:
        prompts, echoes: in order.
        extras: what is shown beside the text.
        num_generated: choices for each prompt.
        num_shown: how many of them the answer has: those whose tokens are likeliest on average.
    """

    id_prefix = "cmpl-"

    def __init__(
        self,
        prompts: Sequence[PreparedPrompt],
        echoes: Sequence[Echo],
        extras: Extras,
        *,
        num_generated: int,
        num_shown: int,
    ) -> None:
        self.extras = extras
        self._prompts = prompts
        self._echoes = echoes
        self._num_generated = num_generated
        self._num_shown = num_shown

    def whole(self, head: Head, choices: Sequence[ChoiceDelta], usage: Usage) -> Completion:
        """An answer in one piece."""
        if self._num_shown < self._num_generated:
            choices = self._best(choices)
        written = [self.choice(choice, self._num_shown, is_first=True) for choice in choices]
        return Completion(
            head.id, "text_completion", head.created, head.model, written, usage, service_tier=head.service_tier
        )

    def writer(self, head: Head, usage: StreamUsage) -> "CompletionWriter":
        """What writes a streamed answer."""
        return CompletionWriter(self, head, usage)

    def stream_choice(self, delta: ChoiceDelta, *, is_first: bool) -> CompletionChoice | None:
        """What is new in a choice; ``None`` if nothing is to be shown of it yet."""
        choice = self.choice(delta, self._num_generated, is_first=is_first)
        if choice.text or delta.finish_reason is not None or self.extras.has_news(delta):
            return choice
        return None

    def choice(self, delta: ChoiceDelta, choices_per_prompt: int, *, is_first: bool) -> CompletionChoice:
        """A choice, or what is new in it."""
        place = delta.index // choices_per_prompt
        prompt, echo = self._prompts[place], self._echoes[place]
        text = echo.text + delta.text if is_first else delta.text
        choice = CompletionChoice(delta.index, text, self._logprobs(prompt, echo, delta, is_first=is_first))
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.stop_reason = delta.stop_reason
        if self.extras.has_token_ids:
            choice.token_ids = delta.token_ids
            if is_first:
                choice.prompt_token_ids = prompt.token_ids
        if self.extras.num_prompt_top is not None and delta.prompt_logprobs is not None:
            choice.prompt_logprobs = self.extras.logprobs.prompt(
                prompt.token_ids, delta.prompt_logprobs, self.extras.num_prompt_top
            )
        return choice

    def _logprobs(
        self, prompt: PreparedPrompt, echo: Echo, delta: ChoiceDelta, *, is_first: bool
    ) -> CompletionLogprobs | None:
        if not self.extras.logprobs.is_wanted:
            return None
        shift = len(echo.text)
        offsets = [shift + offset for offset in delta.text_offsets]
        if is_first and echo.offsets is not None and delta.prompt_logprobs is not None:
            return self.extras.logprobs.completion(
                [*prompt.token_ids, *delta.token_ids],
                [None, *delta.prompt_logprobs, *delta.logprobs],
                [*echo.offsets, *offsets],
            )
        return self.extras.logprobs.completion(delta.token_ids, delta.logprobs, offsets) if delta.token_ids else None

    def _best(self, choices: Sequence[ChoiceDelta]) -> list[ChoiceDelta]:
        best: list[ChoiceDelta] = []
        for start in range(0, len(choices), self._num_generated):
            ranked = sorted(choices[start : start + self._num_generated], key=_mean_logprob, reverse=True)
            best.extend(ranked[: self._num_shown])
        return [replace(choice, index=index) for index, choice in enumerate(best)]


class CompletionWriter:
    """Writes chunks of text completions."""

    def __init__(self, style: CompletionFormat, head: Head, usage: StreamUsage) -> None:
        self._style = style
        self._head = head
        self._usage = usage
        self._begun: set[int] = set()

    def write(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Events for new deltas; a delta without text, ending or anything else to show has none."""
        return b"".join(map(self._write_one, deltas))

    def write_end(self) -> bytes:
        """The usage, if it is wanted."""
        if not self._usage.is_wanted:
            return b""
        return event(self._chunk([], self._usage.tally.usage()))

    def _write_one(self, delta: ChoiceDelta) -> bytes:
        self._usage.tally.add(delta)
        choice = self._style.stream_choice(delta, is_first=delta.index not in self._begun)
        if choice is None:
            return b""
        self._begun.add(delta.index)
        return event(self._chunk([choice], self._usage.in_chunk))

    def _chunk(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        head = self._head
        return Completion(
            head.id, "text_completion", head.created, head.model, choices, usage, service_tier=head.service_tier
        )


async def _echo(prompt: PreparedPrompt, codec: TextCodec, extras: Extras) -> Echo:
    text = prompt.text
    if text is None:
        text = await decode(codec, prompt.token_ids, skip_special_tokens=True)
    if not extras.logprobs.is_wanted:
        return Echo(text)
    return Echo(text, await in_worker(token_offsets, codec, prompt.token_ids, text))


def _mean_logprob(choice: ChoiceDelta) -> float:
    if not choice.logprobs:
        return float("-inf")
    return sum(found.token_logprob for found in choice.logprobs) / len(choice.logprobs)
