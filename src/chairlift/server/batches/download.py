"""A download: a file goes from disk to its reader, or there is nothing of it. Knows nothing of whose it is."""

import asyncio
import os
from pathlib import Path

from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from chairlift.errors import UnknownRequestError
from chairlift.server.batches.store import disk_error


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
