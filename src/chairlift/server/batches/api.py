"""/v1/files and /v1/batches. Knows nothing of how batches are worked on.

A file or batch is its sender's: everybody else gets the same 404 as for one that does not exist.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from chairlift.errors import InvalidRequestError, UnknownRequestError
from chairlift.server.access import Caller
from chairlift.server.batches.objects import (
    ENDED,
    Batch,
    BatchList,
    FileDeleted,
    FileList,
    FileObject,
    StoredBatch,
    StoredFile,
)
from chairlift.server.batches.runner import BatchRunner
from chairlift.server.batches.store import BatchStore, now_s
from chairlift.server.body import read_body
from chairlift.server.context import caller_of
from chairlift.server.errors import BodyTooLargeError, shorten
from chairlift.server.openai.requests import Body
from chairlift.server.openai.responses import encode
from chairlift.server.openapi import documented

router = APIRouter()

_HOUR_S = 3600
_MAX_WINDOW_HOURS = 24 * 14
_MAX_LISTED = 100


class BatchesOffError(InvalidRequestError):
    """There is no folder for files and batches."""

    http_status = 404


class BatchBody(Body):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: str = Field(pattern=r"^[1-9][0-9]{0,2}h$", description="Hours until it expires, such as 24h.")
    metadata: dict[str, str] | None = None


class Batches:
    """What these endpoints work with; ``None`` on an application without --batch-dir."""

    def __init__(self, store: BatchStore, runner: BatchRunner, max_file_bytes: int) -> None:
        self.store = store
        self.runner = runner
        self.max_file_bytes = max_file_bytes


@router.post("/v1/files", **documented(None, FileObject, "Upload a file with the requests of a batch"))
async def create_file(request: Request) -> Response:
    """Keep a file: multipart form data with ``file`` and ``purpose``."""
    batches = _batches(request)
    parser = MultiPartParser(request.headers, _bounded(request, batches.max_file_bytes), max_files=1, max_fields=16)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise InvalidRequestError(f"the body is no multipart form: {error}") from None
    upload, purpose = form.get("file"), form.get("purpose")
    try:
        if not isinstance(upload, UploadFile):
            raise InvalidRequestError("file is missing", param="file")
        if purpose != "batch":
            raise InvalidRequestError("purpose must be batch", param="purpose")
        content = batches.store.new_content()
        await asyncio.to_thread(_copy, upload, content)
        name = shorten(upload.filename or "requests.jsonl")
        file = batches.store.add_file(_owner(caller_of(request)), name, "batch", content)
    finally:
        await form.close()
    return _json(file)


@router.get("/v1/files", **documented(None, FileList, "List files"))
async def list_files(request: Request) -> Response:
    """The newest of the caller's files."""
    owner = _owner(caller_of(request))
    files = [stored.file for stored in _batches(request).store.files.values() if stored.owner == owner]
    return _json(FileList(files[::-1][:_MAX_LISTED]))


@router.get("/v1/files/{file_id}", **documented(None, FileObject, "Describe a file"))
async def show_file(request: Request, file_id: str) -> Response:
    """What a file is."""
    return _json(_file(request, file_id).file)


@router.get("/v1/files/{file_id}/content", response_class=Response, summary="Download a file")
async def show_content(request: Request, file_id: str) -> Response:
    """What is in a file."""
    stored = _file(request, file_id)
    return FileResponse(_batches(request).store.content_path(stored.file.id), media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}", **documented(None, FileDeleted, "Delete a file"))
async def delete_file(request: Request, file_id: str) -> Response:
    """Forget a file; a batch that has not read it yet fails."""
    stored = _file(request, file_id)
    _batches(request).store.delete_file(stored.file.id)
    return _json(FileDeleted(stored.file.id))


@router.post("/v1/batches", **documented(BatchBody, Batch, "Run a file of requests when there is time"))
async def create_batch(request: Request) -> Response:
    """Queue a batch: its requests are in the least urgent tier, and what is not done within the window expires."""
    batches = _batches(request)
    body = await read_body(request, BatchBody)
    stored_file = _file(request, body.input_file_id, param="input_file_id")
    hours = int(body.completion_window[:-1])
    if hours > _MAX_WINDOW_HOURS:
        raise InvalidRequestError(
            f"completion_window is at most {_MAX_WINDOW_HOURS}h, got {body.completion_window}",
            param="completion_window",
        )
    caller, created_at = caller_of(request), now_s()
    batch = Batch(
        id=f"batch_{secrets.token_hex(16)}",
        endpoint=body.endpoint,
        input_file_id=stored_file.file.id,
        completion_window=body.completion_window,
        created_at=created_at,
        expires_at=created_at + hours * _HOUR_S,
        metadata=body.metadata,
    )
    batches.store.save(StoredBatch(_owner(caller), caller.key_number, caller.tenant, batch))
    batches.runner.notice()
    return _json(batch)


@router.get("/v1/batches", **documented(None, BatchList, "List batches"))
async def list_batches(request: Request) -> Response:
    """The newest of the caller's batches."""
    owner = _owner(caller_of(request))
    found = [stored.batch for stored in _batches(request).store.batches.values() if stored.owner == owner]
    found.sort(key=lambda batch: batch.created_at, reverse=True)
    shown = found[:_MAX_LISTED]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return _json(BatchList(shown, first_id=first, last_id=last, has_more=len(found) > len(shown)))


@router.get("/v1/batches/{batch_id}", **documented(None, Batch, "Describe a batch"))
async def show_batch(request: Request, batch_id: str) -> Response:
    """How far a batch is."""
    return _json(_batch(request, batch_id).batch)


@router.post("/v1/batches/{batch_id}/cancel", **documented(None, Batch, "Cancel a batch"))
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """End a batch; what is done by then can be read."""
    stored = _batch(request, batch_id)
    if stored.batch.status not in ENDED:
        stored.batch.status, stored.batch.cancelling_at = "cancelling", now_s()
        batches = _batches(request)
        batches.store.save(stored)
        batches.runner.notice()
    return _json(stored.batch)


def _batches(request: Request) -> Batches:
    batches: Batches | None = request.app.state.batches
    if batches is None:
        raise BatchesOffError(f"there is no {shorten(request.url.path)} here; --batch-dir turns files and batches on")
    return batches


def _file(request: Request, file_id: str, param: str = "file_id") -> StoredFile:
    stored = _batches(request).store.files.get(file_id)
    if stored is None or stored.owner != _owner(caller_of(request)):
        raise UnknownRequestError(f"no file of yours has the id '{shorten(file_id)}'", param=param)
    return stored


def _batch(request: Request, batch_id: str) -> StoredBatch:
    stored = _batches(request).store.batches.get(batch_id)
    if stored is None or stored.owner != _owner(caller_of(request)):
        raise UnknownRequestError(f"no batch of yours has the id '{shorten(batch_id)}'", param="batch_id")
    return stored


def _owner(caller: Caller) -> str:
    """Whose a thing is, in words that are the same after a restart: a tenant's, or whoever's key names none."""
    return "" if caller.tenant is None else f"tenant {caller.tenant}"


def _copy(upload: UploadFile, target: Path) -> None:
    upload.file.seek(0)
    with target.open("wb") as file:
        while block := upload.file.read(2**20):
            file.write(block)


async def _bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for block in request.stream():
        num_bytes += len(block)
        if num_bytes > max_bytes:
            raise BodyTooLargeError(f"the file has more than --max-batch-file-bytes {max_bytes}")
        yield block


def _json(answer: Any) -> Response:
    return Response(encode(answer), media_type="application/json")
