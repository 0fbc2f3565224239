"""POST /v1/chat/completions. Knows nothing of text completions."""

from collections.abc import Sequence

from fastapi import APIRouter
from msgspec import UnsetType
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.outputs import ChoiceDelta, CompletionOutput
from chairlift.server.body import read_body
from chairlift.server.context import context_of
from chairlift.server.openai.answering import Head, StreamUsage, answer
from chairlift.server.openai.generation import Job
from chairlift.server.openai.prompts import prepare_conversation
from chairlift.server.openai.requests import ChatBody
from chairlift.server.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Usage,
)
from chairlift.server.openai.sampling import sampling_params
from chairlift.server.openai.sse import event
from chairlift.server.openai.terms import terms_of
from chairlift.server.openapi import documented

router = APIRouter()


@router.post("/v1/chat/completions", **documented(ChatBody, ChatCompletion, "Answer a conversation"))
async def create_chat_completion(request: Request) -> Response:
    """Write the assistant's next turn, whole or as a stream."""
    context = context_of(request)
    body = await read_body(request, ChatBody)
    context.check_model(body.model)
    sampling = sampling_params(body, context.settings)
    terms = terms_of(request, body)
    prompt = await prepare_conversation(body.messages, body, context.engine.tokenizer)
    job = Job([prompt], sampling, terms)
    return await answer(request, body, job, ChatFormat())


class ChatFormat:
    """Chat completions."""

    id_prefix = "chatcmpl"

    def whole(self, head: Head, choices: Sequence[CompletionOutput], usage: Usage) -> ChatCompletion:
        """An answer in one piece."""
        written = [
            ChatChoice(
                choice.index,
                ChatMessage("assistant", choice.text),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            for choice in choices
        ]
        return ChatCompletion(head.id, "chat.completion", head.created, head.model, written, usage)

    def writer(self, head: Head, usage: StreamUsage) -> "ChatWriter":
        """What writes a streamed answer."""
        return ChatWriter(head, usage)


class ChatWriter:
    """Writes chunks of chat completions: first the role of each choice, then its text, then why it ended."""

    def __init__(self, head: Head, usage: StreamUsage) -> None:
        self._head = head
        self._usage = usage
        self._begun: set[int] = set()

    def write(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Events for new deltas; a delta without text or ending has none but the role."""
        return b"".join(map(self._write_one, deltas))

    def write_end(self) -> bytes:
        """The usage, if it is wanted."""
        if not self._usage.is_wanted:
            return b""
        return event(self._chunk([], self._usage.tally.usage()))

    def _write_one(self, delta: ChoiceDelta) -> bytes:
        self._usage.tally.add(delta)
        events = b""
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            events = self._event(ChatChunkChoice(delta.index, ChatDelta(role="assistant", content="")))
        if not delta.text and delta.finish_reason is None:
            return events
        choice = ChatChunkChoice(delta.index, ChatDelta(content=delta.text or None))
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.stop_reason = delta.stop_reason
        return events + self._event(choice)

    def _event(self, choice: ChatChunkChoice) -> bytes:
        return event(self._chunk([choice], self._usage.in_chunk))

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(self._head.id, "chat.completion.chunk", self._head.created, self._head.model, choices, usage)
