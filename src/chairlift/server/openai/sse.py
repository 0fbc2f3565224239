"""Server-sent events: one write per batch of deltas, and an end that clients understand.

Knows nothing of what the events say. An error before the first byte is an ordinary HTTP answer; one after it is an
event ``data: {"error": ...}``, and ``data: [DONE]`` closes the stream either way, as in vLLM.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Protocol, runtime_checkable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import ChairliftError
from chairlift.server.disconnect import ClientLeftError, run_while_connected
from chairlift.server.errors import describe
from chairlift.server.openai.extras import is_heavy, portions
from chairlift.server.openai.generation import Generation
from chairlift.server.openai.responses import encode
from chairlift.server.workers import answer_in_worker

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


class EventWriter(Protocol):
    """Writes the events of one kind of answer."""

    def write(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Events for new deltas; may be empty."""
        ...

    def write_end(self) -> bytes:
        """Events that follow the last delta; may be empty."""
        ...


@runtime_checkable
class FramedWriter(EventWriter, Protocol):
    """A writer whose stream has a beginning and an end of its own, instead of ``[DONE]``."""

    def write_start(self) -> bytes:
        """Events before the first delta."""
        ...

    def write_error(self, error: Exception) -> bytes:
        """The last events of a stream that failed."""
        ...


def event(body: msgspec.Struct, name: str | None = None) -> bytes:
    """One event. Its JSON has no line break, so one ``data:`` line is enough."""
    data = b"data: " + encode(body) + b"\n\n"
    return data if name is None else b"event: " + name.encode() + b"\n" + data


async def write_events(generation: Generation, writer: EventWriter) -> AsyncGenerator[bytes, None]:
    """Blocks of events, one per batch of deltas; never raises but for cancellation."""
    framed = writer if isinstance(writer, FramedWriter) else None
    try:
        if framed is not None:
            yield framed.write_start()
        async with aclosing(generation.batches()) as batches:
            async for deltas in batches:
                for number, portion in enumerate(portions(deltas)):
                    if number:
                        await asyncio.sleep(0)  # others are served between two portions
                    block = await _written(writer, portion)
                    if block:
                        yield block
        yield writer.write_end() + (b"" if framed is not None else DONE)
    except Exception as error:
        # The status line is sent already, so the client learns of it here.
        if not isinstance(error, ChairliftError):
            logger.exception("stream failed")
        yield event(describe(error)) + DONE if framed is None else framed.write_error(error)


async def _written(writer: EventWriter, deltas: Sequence[ChoiceDelta]) -> bytes:
    return await answer_in_worker(writer.write, deltas) if is_heavy(deltas) else writer.write(deltas)


class EventStream(Response):
    """Sends events as deltas come, and aborts the generation as soon as the client leaves.

    ``while_open`` is entered when the stream begins and left when it ends, however it ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        writer: EventWriter,
        while_open: AbstractContextManager[object],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._generation = generation
        self._writer = writer
        self._while_open = while_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            with self._while_open:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await run_while_connected(receive, self._send_events(send))
        except ClientLeftError:
            pass
        finally:
            self._generation.abort()

    async def _send_events(self, send: Send) -> None:
        async with aclosing(write_events(self._generation, self._writer)) as blocks:
            async for block in blocks:
                await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
