"""POST /v1/messages: Anthropic's API, whole or as a stream, on the same engine. Knows nothing of OpenAI's shapes."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.anthropic.errors import to_messages_error
from chairlift.server.anthropic.fields import CountBody, MessagesBody, to_chat
from chairlift.server.anthropic.objects import (
    AssistantMessage,
    BlockDelta,
    ContentBlock,
    MessageDelta,
    MessagesError,
    MessagesEvent,
    MessagesUsage,
    TextBlock,
    ThinkingBlock,
    TokenCount,
    ToolUseBlock,
)
from chairlift.server.body import is_long_body, read_body
from chairlift.server.errors import invalid_body
from chairlift.server.openai.answering import Head, StreamUsage, answer
from chairlift.server.openai.chat import prepare_chat
from chairlift.server.openai.requests import ChatBody
from chairlift.server.openai.responses import Usage, encode
from chairlift.server.openai.sse import event
from chairlift.server.openapi import documented
from chairlift.server.tools.pieces import Assembled, CallArguments, CallStart, Content, Piece, Reasoning
from chairlift.server.tools.reader import AnswerReader, ReadingPlan
from chairlift.server.workers import in_worker

router = APIRouter()


@router.post(
    "/v1/messages",
    **documented(
        MessagesBody,
        AssistantMessage,
        "Answer a conversation, in Anthropic's form",
        error=MessagesError,
        events=MessagesEvent,
    ),
)
async def create_message(request: Request) -> Response:
    """Write the assistant's next turn, whole or as a stream."""
    body = await read_body(request, MessagesBody)
    chat = await _to_chat(request, body)
    job, reading = await prepare_chat(request, chat)
    return await answer(request, chat, job, MessagesFormat(reading), asked=body)


@router.post(
    "/v1/messages/count_tokens",
    **documented(CountBody, TokenCount, "Count the tokens of a conversation", error=MessagesError),
)
async def count_tokens(request: Request) -> Response:
    """Say how many tokens a conversation has, without answering it."""
    chat = await _to_chat(request, await read_body(request, CountBody))
    job, _ = await prepare_chat(request, chat)
    return Response(encode(TokenCount(len(job.prompts[0].token_ids))), media_type="application/json")


async def _to_chat(request: Request, body: MessagesBody | CountBody) -> ChatBody:
    try:
        return await in_worker(to_chat, body) if is_long_body(request) else to_chat(body)
    except ValidationError as error:
        raise invalid_body(error) from None


class MessagesFormat:
    """Messages, which have one choice."""

    id_prefix = "msg_"

    def __init__(self, reading: ReadingPlan) -> None:
        self.reading = reading

    def whole(self, head: Head, choices: Sequence[ChoiceDelta], usage: Usage) -> AssistantMessage:
        """An answer in one piece."""
        choice = choices[0]
        reader = AnswerReader(self.reading)
        blocks = _to_blocks(reader.read(choice.text, is_final=True))
        ended = _to_ending(reader, choice)
        return AssistantMessage(
            head.id,
            head.model,
            blocks,
            to_usage(usage),
            ended.stop_reason,
            ended.stop_sequence,
        )

    def writer(self, head: Head, usage: StreamUsage) -> "MessagesWriter":
        """What writes a streamed answer."""
        return MessagesWriter(self.reading, head, usage)


class MessagesWriter:
    """Writes the events of a message; implements :class:`~chairlift.server.openai.sse.FramedWriter`."""

    def __init__(self, reading: ReadingPlan, head: Head, usage: StreamUsage) -> None:
        self._head = head
        self._usage = usage
        self._reader = AnswerReader(reading)
        self._num_blocks = 0
        self._open: type[ContentBlock] | None = None
        self._ended = MessageDelta("end_turn", None)

    def write_start(self) -> bytes:
        """The message as it begins."""
        message = AssistantMessage(self._head.id, self._head.model, [], to_usage(self._usage.tally.usage()))
        return _written([MessagesEvent("message_start", message=message)])

    def write(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Events for new deltas."""
        events: list[MessagesEvent] = []
        for delta in deltas:
            self._usage.tally.add(delta)
            is_final = delta.finish_reason is not None
            for piece in self._reader.read(delta.text, is_final=is_final):
                events.extend(self._tell(piece))
            if is_final:
                self._ended = _to_ending(self._reader, delta)
        return _written(events)

    def write_end(self) -> bytes:
        """Why the message ended, and what it took."""
        usage = to_usage(self._usage.tally.usage())
        delta = MessagesEvent("message_delta", delta=self._ended, usage=usage)
        return _written([*self._close(), delta, MessagesEvent("message_stop")])

    def write_error(self, error: Exception) -> bytes:
        """The last event of a stream that failed."""
        return event(to_messages_error(error), "error")

    def _tell(self, piece: Piece) -> list[MessagesEvent]:
        match piece:
            case Reasoning():
                events = self._begin(ThinkingBlock(""))
                delta = BlockDelta("thinking_delta", thinking=piece.text)
            case Content():
                events = self._begin(TextBlock(""))
                delta = BlockDelta("text_delta", text=piece.text)
            case CallStart():
                return self._begin(ToolUseBlock(_tool_use_id(), piece.name, {}), is_new=True)
            case CallArguments():
                events = []
                delta = BlockDelta("input_json_delta", partial_json=piece.text)
        return [*events, MessagesEvent("content_block_delta", index=self._num_blocks - 1, delta=delta)]

    def _begin(self, block: ContentBlock, *, is_new: bool = False) -> list[MessagesEvent]:
        if self._open is type(block) and not is_new:
            return []
        events = self._close()
        self._open = type(block)
        self._num_blocks += 1
        return [*events, MessagesEvent("content_block_start", index=self._num_blocks - 1, content_block=block)]

    def _close(self) -> list[MessagesEvent]:
        if self._open is None:
            return []
        self._open = None
        return [MessagesEvent("content_block_stop", index=self._num_blocks - 1)]


def to_usage(usage: Usage) -> MessagesUsage:
    """Tokens as Anthropic counts them."""
    cached = usage.prompt_tokens_details.cached_tokens
    return MessagesUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)


def _to_blocks(pieces: Sequence[Piece]) -> list[ContentBlock]:
    whole = Assembled()
    whole.add(pieces)
    blocks: list[ContentBlock] = []
    if whole.reasoning:
        blocks.append(ThinkingBlock(whole.reasoning))
    if whole.content or not (whole.calls or whole.reasoning):
        blocks.append(TextBlock(whole.content))
    blocks.extend(ToolUseBlock(_tool_use_id(), call.name, _to_input(call.arguments)) for call in whole.calls)
    return blocks


def _to_input(arguments: str) -> Any:
    """Arguments that were cut off are no JSON: their text is all there is."""
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {"unfinished": arguments}


def _to_ending(reader: AnswerReader, delta: ChoiceDelta) -> MessageDelta:
    reason = reader.finish_reason(delta.finish_reason)
    if reason == "length":
        return MessageDelta("max_tokens", None)
    if reason == "tool_calls":
        return MessageDelta("tool_use", None)
    if isinstance(delta.stop_reason, str):
        return MessageDelta("stop_sequence", delta.stop_reason)
    return MessageDelta("end_turn", None)


def _tool_use_id() -> str:
    return f"toolu_{secrets.token_hex(12)}"


def _written(events: Sequence[MessagesEvent]) -> bytes:
    return b"".join(event(told, told.type) for told in events)
