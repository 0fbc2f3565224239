"""POST /v1/responses: text in, text and calls of tools out, whole or as a stream of events. Knows nothing of chat's
shape.

Nothing is stored: ``previous_response_id`` and ``background`` are refused, ``store`` has no effect.
"""

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.body import is_long_body, read_body
from chairlift.server.errors import blaming, describe, invalid_body
from chairlift.server.openai.answering import Head, StreamUsage, answer
from chairlift.server.openai.chat import prepare_chat
from chairlift.server.openai.response_fields import ResponseBody, to_chat
from chairlift.server.openai.response_objects import (
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from chairlift.server.openai.response_output import ResponseOutput
from chairlift.server.openai.responses import Usage
from chairlift.server.openai.sse import event
from chairlift.server.openapi import documented
from chairlift.server.tools.reader import AnswerReader, ReadingPlan
from chairlift.server.workers import in_worker

router = APIRouter()


@router.post("/v1/responses", **documented(ResponseBody, ResponseObject, "Answer an input", events=ResponseEvent))
async def create_response(request: Request) -> Response:
    """Write the next turn of a conversation, whole or as a stream."""
    body = await read_body(request, ResponseBody)
    try:
        chat = await in_worker(to_chat, body) if is_long_body(request) else to_chat(body)
    except ValidationError as error:
        raise invalid_body(error) from None
    with blaming("input"):
        job, reading = await prepare_chat(request, chat)
        return await answer(request, chat, job, ResponseFormat(body, reading), asked=body)


class ResponseFormat:
    """Responses, which have one choice."""

    id_prefix = "resp_"

    def __init__(self, body: ResponseBody, reading: ReadingPlan) -> None:
        self.body = body
        self.reading = reading

    def whole(self, head: Head, choices: Sequence[ChoiceDelta], usage: Usage) -> ResponseObject:
        """An answer in one piece."""
        choice = choices[0]
        output = ResponseOutput()
        output.add(AnswerReader(self.reading).read(choice.text, is_final=True))
        is_complete = choice.finish_reason != "length"
        output.end(is_complete=is_complete)
        return self.settled(self.begun(head), output, is_complete=is_complete, usage=usage)

    def writer(self, head: Head, usage: StreamUsage) -> "ResponseWriter":
        """What writes a streamed answer."""
        return ResponseWriter(self, head, usage)

    def begun(self, head: Head) -> ResponseObject:
        """The response before anything of it is there."""
        body = self.body
        text = None if body.text is None else body.text.model_dump(by_alias=True, exclude_none=True)
        choice = body.tool_choice
        return ResponseObject(
            head.id,
            head.created,
            head.model,
            [],
            "in_progress",
            body.parallel_tool_calls is not False,
            "auto" if choice is None else choice if isinstance(choice, str) else choice.model_dump(),
            [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            instructions=body.instructions,
            metadata=body.metadata or {},
            max_output_tokens=body.max_output_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            text=text or {"format": {"type": "text"}},
            reasoning=None if body.reasoning is None else body.reasoning.model_dump(),
            service_tier=head.service_tier,
            user=body.user,
        )

    def settled(
        self, response: ResponseObject, output: ResponseOutput, *, is_complete: bool, usage: Usage
    ) -> ResponseObject:
        """The response with everything in it."""
        response.output = output.items
        response.status = "completed" if is_complete else "incomplete"
        response.incomplete_details = None if is_complete else IncompleteDetails("max_output_tokens")
        response.usage = ResponseUsage(
            usage.prompt_tokens,
            InputDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputDetails(usage.reasoning_tokens),
            usage.total_tokens,
        )
        return response


class ResponseWriter:
    """Writes the events of a response; implements :class:`~chairlift.server.openai.sse.FramedWriter`."""

    def __init__(self, style: ResponseFormat, head: Head, usage: StreamUsage) -> None:
        self._style = style
        self._head = head
        self._usage = usage
        self._reader = AnswerReader(style.reading)
        self._output = ResponseOutput()
        self._response = style.begun(head)
        self._num_events = 0
        self._is_complete = True

    def write_start(self) -> bytes:
        """The response as it begins."""
        kinds = ("response.created", "response.in_progress")
        return self._write([ResponseEvent(kind, 0, response=self._response) for kind in kinds])

    def write(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Events for new deltas."""
        events: list[ResponseEvent] = []
        for delta in deltas:
            self._usage.tally.add(delta)
            is_final = delta.finish_reason is not None
            events.extend(self._output.add(self._reader.read(delta.text, is_final=is_final)))
            if is_final:
                self._is_complete = delta.finish_reason != "length"
                events.extend(self._output.end(is_complete=self._is_complete))
        return self._write(events)

    def write_end(self) -> bytes:
        """The whole response."""
        usage = self._usage.tally.usage()
        response = self._style.settled(self._response, self._output, is_complete=self._is_complete, usage=usage)
        return self._write([ResponseEvent(f"response.{response.status}", 0, response=response)])

    def write_error(self, error: Exception) -> bytes:
        """The response that failed."""
        detail = describe(error).error
        code = detail.code or detail.type
        self._response.status = "failed"
        self._response.output = self._output.items
        self._response.error = ResponseError(code, detail.message)
        told = ResponseEvent("error", 0, code=code, message=detail.message, param=detail.param)
        return self._write([told, ResponseEvent("response.failed", 0, response=self._response)])

    def _write(self, events: Sequence[ResponseEvent]) -> bytes:
        blocks: list[bytes] = []
        for told in events:
            told.sequence_number = self._num_events
            self._num_events += 1
            blocks.append(event(told, told.type))
        return b"".join(blocks)
