"""A download: a file goes from disk to its reader, or there is nothing of it. Knows nothing of whose it is."""

import asyncio
import os
from http import HTTPStatus
from pathlib import Path

from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from chairlift.errors import InvalidRequestError, UnknownRequestError
from chairlift.server.batches.store import disk_error
from chairlift.server.errors import error_response


class Download(FileResponse):
    """The content of a file. Nothing is said of it before it is open, as somebody may delete it at the same time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it.

        Raises:
            UnknownRequestError: it is gone; nothing was sent.
            DiskError: it cannot be read; nothing was sent.
        """
        start: Message | None = None

        async def send_once_open(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None and start["status"] >= HTTPStatus.BAD_REQUEST:
                await self._range_refusal(start["status"])(scope, receive, send)
                return
            if start is not None:
                await send(start)
                start = None
            await send(message)

        try:
            await super().__call__(scope, receive, send_once_open)
        except FileNotFoundError:
            raise content_gone() from None
        except OSError as error:
            if start is None:
                raise  # too late to say so
            raise disk_error("does not give the file", error) from error

    def _range_refusal(self, status: int) -> Response:
        """What is said where the framework's own answer, to a range it cannot send, would be plain text."""
        num_bytes = self.headers["content-length"]
        if status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return error_response(InvalidRequestError("the header Range is no range such as bytes=0-99"))
        answer = error_response(RangeError(f"the header Range is not within the file, which has {num_bytes} bytes"))
        answer.headers["Content-Range"] = f"bytes */{num_bytes}"
        return answer


class RangeError(InvalidRequestError):
    """A part of a file was asked for that it does not have."""

    http_status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


async def download(path: Path) -> Download:
    """The content of a file that may be gone.

    Raises:
        UnknownRequestError: it is.
        DiskError: that cannot be found out.
    """
    try:
        found = await asyncio.to_thread(os.stat, path)
    except FileNotFoundError:
        raise content_gone() from None
    except OSError as error:
        raise disk_error("does not give the file", error) from error
    return Download(path, media_type="application/octet-stream", stat_result=found)


def content_gone() -> UnknownRequestError:
    """Nobody can read this file any more."""
    return UnknownRequestError("the content of this file is gone", param="file_id")
