"""POST /v1/chat/completions. Knows nothing of text completions."""

from collections.abc import Sequence

from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.body import is_long_body, read_body
from chairlift.server.context import context_of
from chairlift.server.disconnect import run_while_connected
from chairlift.server.errors import blaming
from chairlift.server.openai.answer_plan import plan_answer, template_variables
from chairlift.server.openai.answering import Head, StreamUsage, answer
from chairlift.server.openai.chat_pieces import to_deltas, to_message
from chairlift.server.openai.extras import Extras
from chairlift.server.openai.generation import Job
from chairlift.server.openai.prompts import PreparedPrompt, num_reserved, prepare_conversation, truncate
from chairlift.server.openai.requests import ChatBody
from chairlift.server.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    Usage,
)
from chairlift.server.openai.sampling import sampling_params
from chairlift.server.openai.sse import event
from chairlift.server.openai.terms import terms_of
from chairlift.server.openapi import documented
from chairlift.server.tools.reader import AnswerReader, ReadingPlan
from chairlift.server.workers import in_worker

router = APIRouter()


@router.post("/v1/chat/completions", **documented(ChatBody, ChatCompletion, "Answer a conversation", events=ChatChunk))
async def create_chat_completion(request: Request) -> Response:
    """Write the assistant's next turn, whole or as a stream."""
    body = await read_body(request, ChatBody)
    with blaming("messages"):
        job, reading = await prepare_chat(request, body)
        style = ChatFormat(job.prompts[0], Extras.of(body, context_of(request).engine.tokenizer), reading)
        return await answer(request, body, job, style)


async def prepare_chat(request: Request, body: ChatBody) -> tuple[Job, ReadingPlan]:
    """What to generate for a conversation, and how the answers are read.

    Raises:
        ChairliftError: the request is refused.
        ClientLeftError: the client left meanwhile.
    """
    context = context_of(request)
    tokenizer, sections = context.engine.tokenizer, context.sections
    context.check_model(body.model)
    sampling = sampling_params(body, context.settings, sections.limits)
    terms = terms_of(request, body)
    is_long = is_long_body(request)
    variables = await in_worker(template_variables, body) if is_long else template_variables(body)
    preparing = prepare_conversation(body.messages, body, tokenizer, sections.limits, variables)
    prompt = await run_while_connected(request.receive, preparing)
    planning = (body, sampling, prompt.text or "", tokenizer, sections.answers)
    sampling, reading = await in_worker(plan_answer, *planning) if is_long else plan_answer(*planning)
    prompt = truncate(prompt, body, num_reserved(sampling.max_tokens), context.engine.model_info)
    return Job([prompt], sampling, terms, reading.opening or "none"), reading


class ChatFormat:
    """Chat completions of one prompt."""

    id_prefix = "chatcmpl-"

    def __init__(self, prompt: PreparedPrompt, extras: Extras, reading: ReadingPlan) -> None:
        self.prompt = prompt
        self.extras = extras
        self.reading = reading

    def whole(self, head: Head, choices: Sequence[ChoiceDelta], usage: Usage) -> ChatCompletion:
        """An answer in one piece."""
        written = [self._choice(choice) for choice in choices]
        answer = ChatCompletion(
            head.id, "chat.completion", head.created, head.model, written, usage, service_tier=head.service_tier
        )
        found = choices[0].prompt_logprobs
        if self.extras.num_prompt_top is not None and found is not None:
            answer.prompt_logprobs = self.extras.logprobs.prompt(
                self.prompt.token_ids, found, self.extras.num_prompt_top
            )
        if self.extras.has_token_ids:
            answer.prompt_token_ids = self.prompt.token_ids
        return answer

    def writer(self, head: Head, usage: StreamUsage) -> "ChatWriter":
        """What writes a streamed answer."""
        return ChatWriter(self, head, usage)

    def _choice(self, choice: ChoiceDelta) -> ChatChoice:
        reader = AnswerReader(self.reading)
        pieces = reader.read(choice.text, is_final=True)
        return ChatChoice(
            choice.index,
            to_message(pieces, has_tools=self.reading.scanner is not None),
            self.extras.logprobs.chat(choice.token_ids, choice.logprobs),
            finish_reason=reader.finish_reason(choice.finish_reason),
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if self.extras.has_token_ids else UNSET,
        )


class ChatWriter:
    """Writes chunks of chat completions: first the role of each choice, then its text, then why it ended."""

    def __init__(self, style: ChatFormat, head: Head, usage: StreamUsage) -> None:
        self._style = style
        self._head = head
        self._usage = usage
        self._begun: set[int] = set()
        self._readers: dict[int, AnswerReader] = {}

    def write(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Events for new deltas; a delta without text, ending or anything else to show has none but the role."""
        return b"".join(map(self._write_one, deltas))

    def write_end(self) -> bytes:
        """The usage, if it is wanted."""
        if not self._usage.is_wanted:
            return b""
        return event(self._chunk([], self._usage.tally.usage()))

    def _write_one(self, delta: ChoiceDelta) -> bytes:
        self._usage.tally.add(delta)
        events = b""
        extras = self._style.extras
        if delta.index not in self._begun:
            is_first = not self._begun
            self._begun.add(delta.index)
            opening = self._chunk(
                [ChatChunkChoice(delta.index, ChatDelta(role="assistant", content=""))], self._usage.in_chunk
            )
            if is_first and extras.has_token_ids:
                opening.prompt_token_ids = self._style.prompt.token_ids
            events = event(opening)
        if not delta.text and delta.finish_reason is None and not extras.has_news(delta):
            return events
        contents, finish_reason = self._read(delta)
        if not contents:
            if finish_reason is None and not extras.has_news(delta):
                return events
            contents = [ChatDelta()]
        choices = [ChatChunkChoice(delta.index, content) for content in contents]
        choice = choices[0]
        if delta.token_ids:
            choice.logprobs = extras.logprobs.chat(delta.token_ids, delta.logprobs)
            if extras.has_token_ids:
                choice.token_ids = delta.token_ids
        if finish_reason is not None:
            choices[-1].finish_reason = finish_reason
            choices[-1].stop_reason = delta.stop_reason
        return events + b"".join(event(self._chunk([one], self._usage.in_chunk)) for one in choices)

    def _read(self, delta: ChoiceDelta) -> tuple[list[ChatDelta], str | None]:
        """What is new in a message, and why it ended."""
        if self._style.reading.is_plain:
            return [ChatDelta(content=delta.text)] if delta.text else [], delta.finish_reason
        reader = self._readers.get(delta.index)
        if reader is None:
            reader = self._readers[delta.index] = AnswerReader(self._style.reading)
        pieces = reader.read(delta.text, is_final=delta.finish_reason is not None)
        return to_deltas(pieces), reader.finish_reason(delta.finish_reason)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        head = self._head
        return ChatChunk(
            head.id,
            "chat.completion.chunk",
            head.created,
            head.model,
            choices,
            usage,
            service_tier=head.service_tier,
        )
