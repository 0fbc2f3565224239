"""POST /v1/completions. Knows nothing of chat."""

from collections.abc import Sequence

from fastapi import APIRouter
from msgspec import UnsetType
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.outputs import ChoiceDelta, CompletionOutput
from chairlift.server.body import read_body
from chairlift.server.context import context_of
from chairlift.server.engine_port import TextCodec
from chairlift.server.openai.answering import Head, StreamUsage, answer
from chairlift.server.openai.generation import Job
from chairlift.server.openai.prompts import PreparedPrompt, check_prompt, decode, prepare_prompts
from chairlift.server.openai.requests import CompletionBody
from chairlift.server.openai.responses import Completion, CompletionChoice, Usage
from chairlift.server.openai.sampling import sampling_params
from chairlift.server.openai.sse import event
from chairlift.server.openai.terms import terms_of
from chairlift.server.openapi import documented

router = APIRouter()


@router.post("/v1/completions", **documented(CompletionBody, Completion, "Continue prompts"))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts, whole or as a stream."""
    context = context_of(request)
    body = await read_body(request, CompletionBody)
    context.check_model(body.model)
    sampling = sampling_params(body, context.settings)
    terms = terms_of(request, body)
    prompts = await prepare_prompts(body, context.engine, context.settings)
    for prompt in prompts:
        check_prompt(prompt.token_ids, sampling.max_tokens, context.engine.model_info, is_echoed=body.echo is True)
    job = Job(prompts, sampling, terms)
    echoes = [await _echo(prompt, context.engine.tokenizer) if body.echo else "" for prompt in prompts]
    return await answer(request, body, job, CompletionFormat(echoes, sampling.n))


class CompletionFormat:
    """Text completions; each choice begins with its prompt's echo, empty if none is wanted."""

    id_prefix = "cmpl"

    def __init__(self, echoes: Sequence[str], choices_per_prompt: int) -> None:
        self._echoes = echoes
        self._choices_per_prompt = choices_per_prompt

    def echo_of(self, index: int) -> str:
        """Text that comes before the generated text of a choice."""
        return self._echoes[index // self._choices_per_prompt]

    def whole(self, head: Head, choices: Sequence[CompletionOutput], usage: Usage) -> Completion:
        """An answer in one piece."""
        written = [
            CompletionChoice(
                choice.index,
                self.echo_of(choice.index) + choice.text,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            for choice in choices
        ]
        return Completion(head.id, "text_completion", head.created, head.model, written, usage)

    def writer(self, head: Head, usage: StreamUsage) -> "CompletionWriter":
        """What writes a streamed answer."""
        return CompletionWriter(self, head, usage)


class CompletionWriter:
    """Writes chunks of text completions."""

    def __init__(self, style: CompletionFormat, head: Head, usage: StreamUsage) -> None:
        self._style = style
        self._head = head
        self._usage = usage
        self._begun: set[int] = set()

    def write(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Events for new deltas; a delta without text or ending has none."""
        return b"".join(map(self._write_one, deltas))

    def write_end(self) -> bytes:
        """The usage, if it is wanted."""
        if not self._usage.is_wanted:
            return b""
        return event(self._chunk([], self._usage.tally.usage()))

    def _write_one(self, delta: ChoiceDelta) -> bytes:
        self._usage.tally.add(delta)
        text = delta.text
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            text = self._style.echo_of(delta.index) + text
        if not text and delta.finish_reason is None:
            return b""
        choice = CompletionChoice(delta.index, text)
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.stop_reason = delta.stop_reason
        return event(self._chunk([choice], self._usage.in_chunk))

    def _chunk(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(self._head.id, "text_completion", self._head.created, self._head.model, choices, usage)


async def _echo(prompt: PreparedPrompt, codec: TextCodec) -> str:
    if prompt.text is not None:
        return prompt.text
    return await decode(codec, prompt.token_ids, skip_special_tokens=True)
