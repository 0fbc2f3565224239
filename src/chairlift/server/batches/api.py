"""/v1/files and /v1/batches. Knows nothing of how batches are worked on.

A file or batch is its sender's tenant's: everybody else gets the same 404 as for one that does not exist.
"""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from fastapi import APIRouter
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from chairlift.errors import InvalidRequestError, UnknownRequestError
from chairlift.server.batches.download import download
from chairlift.server.batches.objects import (
    Batch,
    BatchList,
    FileDeleted,
    FileList,
    FileObject,
    StoredBatch,
    StoredFile,
)
from chairlift.server.batches.runner import BatchRunner
from chairlift.server.batches.shelves import Shelf
from chairlift.server.batches.store import BatchStore, now_s
from chairlift.server.batches.upload import FORM_BYTES, Form, file_too_large, receive
from chairlift.server.body import read_body
from chairlift.server.context import caller_of, context_of
from chairlift.server.errors import invalid_body, shorten
from chairlift.server.openai.requests import Body
from chairlift.server.openai.responses import encode
from chairlift.server.openai.structure_fields import Options
from chairlift.server.openapi import documented, query_parameter

router = APIRouter()

_HOUR_S = 3600
_MAX_WINDOW_HOURS = 24 * 14

_Listed = TypeVar("_Listed", FileObject, Batch)
_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class BatchesOffError(InvalidRequestError):
    """There is no folder for files and batches."""

    http_status = 404


class ExpiresAfter(Options):
    """How long a file is kept."""

    anchor: Literal["created_at"] = Field(description="Since when: its creation.")
    seconds: int = Field(ge=3600, le=2_592_000, description="One hour to 30 days.")


class _UploadFields(Options):
    """What a form has beside its file and its purpose."""

    expires_after: ExpiresAfter | None = None


class BatchBody(Body):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: str = Field(pattern=r"^[1-9][0-9]{0,2}h$", description="Hours until it expires, such as 24h.")
    metadata: dict[_Key, _Value] | None = Field(None, max_length=16, description="16 pairs at most.")
    output_expires_after: ExpiresAfter | None = Field(None, description="How long the files of results are kept.")


class Batches:
    """What these endpoints work with; ``None`` on an application without --batch-dir."""

    def __init__(self, store: BatchStore, runner: BatchRunner, max_file_bytes: int) -> None:
        self.store = store
        self.runner = runner
        self.max_file_bytes = max_file_bytes


_FORM = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"const": "batch"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
    },
    "required": ["file", "purpose"],
}
_USER = (
    query_parameter(
        "user",
        "With --trust-user the tenant, if neither the key nor a header names one; else no effect.",
        type="string",
    ),
)
_UPLOAD: dict[str, Any] = {
    **documented(None, FileObject, "Upload a file with the requests of a batch"),
    "openapi_extra": {
        "parameters": list(_USER),
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}},
    },
}


class _PageSize(NamedTuple):
    """How many things one page of a list has, and how many if nothing is said."""

    most: int
    default: int

    def parameters(self) -> tuple[dict[str, Any], ...]:
        """What a request may say about its page."""
        size = {"type": "integer", "minimum": 1, "maximum": self.most, "default": self.default}
        return (
            query_parameter("limit", "How many at most.", **size),
            query_parameter("after", "The id before them.", type="string"),
        )


_FILES = _PageSize(most=10_000, default=10_000)
"""As OpenAI has it."""
_BATCHES = _PageSize(most=1000, default=100)
_CONTENT = {"description": "The file", "content": {"application/octet-stream": {"schema": {"type": "string"}}}}
_CHOICE = (
    query_parameter("purpose", "Only files with this purpose.", type="string"),
    query_parameter("order", "asc for the oldest first.", type="string", enum=["asc", "desc"], default="desc"),
)


@router.post("/v1/files", **_UPLOAD)
async def create_file(request: Request) -> Response:
    """Keep a file: multipart form data with ``file`` and ``purpose``."""
    batches = _batches(request)
    owner = _owner(_tenant(request))
    shelf, caps, most = batches.store.shelf(owner), batches.store.caps, batches.max_file_bytes
    caps.check_files(shelf)
    announced = request.headers.get("content-length", "")
    if announced.isdigit():
        num_bytes = max(int(announced) - FORM_BYTES, 0)
        if num_bytes > most:
            raise file_too_large(f"at least {num_bytes}", most)
        caps.check_bytes(shelf, num_bytes)
    async with batches.store.incoming(owner) as upload:
        form = Form(request.headers.get("content-type", ""), upload.content, most)
        await receive(request, form, most, upload.grew)
        if form.field("purpose") != "batch":
            raise InvalidRequestError("purpose must be batch", param="purpose")
        upload.expires_after_s = _expires_after_s(form)
        upload.filename = shorten(form.filename or "requests.jsonl")
    return _json(upload.file)


@router.get("/v1/files", **documented(None, FileList, "List files", query=(*_FILES.parameters(), *_CHOICE, *_USER)))
async def list_files(request: Request) -> Response:
    """The caller's files of a ?purpose=, newest first unless ?order= is asc; pages are as those of batches."""
    purpose, order = request.query_params.get("purpose"), request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError(f"order must be asc or desc, got {shorten(order)!r}", param="order")
    found = sorted(_shelf(request).files.values(), key=lambda stored: stored.age_key, reverse=order == "desc")
    files = [one.file for one in found if purpose is None or one.file.purpose == purpose]
    shown, has_more = _page(request, files, _FILES)
    return _json(FileList(shown, first_id=_id_at(shown, 0), last_id=_id_at(shown, -1), has_more=has_more))


@router.get("/v1/files/{file_id}", **documented(None, FileObject, "Describe a file", query=_USER))
async def show_file(request: Request, file_id: str) -> Response:
    """What a file is."""
    return _json(_file(request, file_id).file)


@router.get(
    "/v1/files/{file_id}/content",
    response_class=Response,
    responses={200: _CONTENT},
    summary="Download a file",
    openapi_extra={"parameters": list(_USER)},
)
async def show_content(request: Request, file_id: str) -> Response:
    """What is in a file."""
    stored = _file(request, file_id)
    return await download(_batches(request).store.content_path(stored.file))


@router.delete("/v1/files/{file_id}", **documented(None, FileDeleted, "Delete a file", query=_USER))
async def delete_file(request: Request, file_id: str) -> Response:
    """Forget a file, which no batch may be working on."""
    stored = _file(request, file_id)
    reader = _shelf(request).reader_of(stored.file.id)
    if reader is not None:
        raise InvalidRequestError(
            f"{stored.file.id} is the input of {reader.batch.id}, which has not ended; cancel that first",
            param="file_id",
        )
    await _batches(request).store.delete_file(stored)
    return _json(FileDeleted(stored.file.id))


@router.post("/v1/batches", **documented(BatchBody, Batch, "Run a file of requests when there is time", query=_USER))
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
    created_at = now_s()
    batches.store.caps.check_batch(_shelf(request))
    batch = Batch(
        id=f"batch_{secrets.token_hex(16)}",
        endpoint=body.endpoint,
        input_file_id=stored_file.file.id,
        completion_window=body.completion_window,
        created_at=created_at,
        expires_at=created_at + hours * _HOUR_S,
        metadata=body.metadata,
    )
    tenant, key_number = _tenant(request), caller_of(request).key_number
    number, expires_after = batches.store.new_number(), body.output_expires_after
    stored = StoredBatch(_owner(tenant), key_number, tenant or None, batch, number)
    stored.output_expires_after_s = None if expires_after is None else expires_after.seconds
    await batches.store.add_batch(stored)
    batches.runner.notice()
    return _json(batch)


@router.get("/v1/batches", **documented(None, BatchList, "List batches", query=(*_BATCHES.parameters(), *_USER)))
async def list_batches(request: Request) -> Response:
    """The caller's batches, newest first; ?limit= says how many, 100 if absent, and ?after= the id before them."""
    shelf = _shelf(request)
    found = sorted((*shelf.ended_batches.values(), *shelf.open_batches.values()), key=lambda stored: stored.age_key)
    shown, has_more = _page(request, [stored.batch for stored in reversed(found)], _BATCHES)
    return _json(BatchList(shown, first_id=_id_at(shown, 0), last_id=_id_at(shown, -1), has_more=has_more))


@router.get("/v1/batches/{batch_id}", **documented(None, Batch, "Describe a batch", query=_USER))
async def show_batch(request: Request, batch_id: str) -> Response:
    """How far a batch is."""
    return _json(_batch(request, batch_id).batch)


@router.post("/v1/batches/{batch_id}/cancel", **documented(None, Batch, "Cancel a batch", query=_USER))
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """End a batch; what is done by then can be read."""
    stored = _batch(request, batch_id)
    await _batches(request).runner.cancel(stored)
    return _json(stored.batch)


def _expires_after_s(form: Form) -> int | None:
    """For how long a form asks its file to be kept: an object in a form is a field for each of its own."""
    given = {name: form.field(f"expires_after[{name}]") for name in ExpiresAfter.model_fields}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    try:
        fields = _UploadFields.model_validate_strings({"expires_after": given})
    except ValidationError as error:
        raise invalid_body(error) from None
    return None if fields.expires_after is None else fields.expires_after.seconds


def _batches(request: Request) -> Batches:
    batches: Batches | None = request.app.state.batches
    if batches is None:
        raise BatchesOffError(f"there is no {shorten(request.url.path)} here; --batch-dir turns files and batches on")
    return batches


def _shelf(request: Request) -> Shelf:
    """What whoever asks keeps; what others keep is not looked at."""
    return _batches(request).store.shelf(_owner(_tenant(request)))


def _file(request: Request, file_id: str, param: str = "file_id") -> StoredFile:
    stored = _shelf(request).files.get(file_id)
    if stored is None:
        raise UnknownRequestError(f"no file of yours has the id '{shorten(file_id)}'", param=param)
    return stored


def _batch(request: Request, batch_id: str) -> StoredBatch:
    stored = _shelf(request).find_batch(batch_id)
    if stored is None:
        raise UnknownRequestError(f"no batch of yours has the id '{shorten(batch_id)}'", param="batch_id")
    return stored


def _tenant(request: Request) -> str:
    """Whom what is kept belongs to: as a request counts for it, but ``user`` is in the address, as most of these
    requests have no body.
    """
    user = request.query_params.get("user")
    return context_of(request).access.tenant_of(caller_of(request), request.headers, user)


def _owner(tenant: str) -> str:
    """Whose a thing is, in words that are the same after a restart: a tenant's, or that of all who have none."""
    return f"tenant {tenant}" if tenant else ""


def _page(request: Request, found: list[_Listed], size: _PageSize) -> tuple[list[_Listed], bool]:
    """The part of a list that a request asks for, and whether there is more after it."""
    given = request.query_params.get("limit", str(size.default))
    if len(given) > 9 or not given.isdecimal() or not given.isascii() or not 1 <= int(given) <= size.most:
        raise InvalidRequestError(f"limit must be in [1, {size.most}], got {shorten(given)!r}", param="limit")
    start = 0
    after = request.query_params.get("after")
    if after is not None:
        places = [place for place, one in enumerate(found) if one.id == after]
        if not places:
            raise InvalidRequestError(f"after names nothing of yours: {shorten(after)!r}", param="after")
        start = places[0] + 1
    end = start + int(given)
    return found[start:end], end < len(found)


def _id_at(shown: Sequence[FileObject | Batch], place: int) -> str | None:
    return shown[place].id if shown else None


def _json(answer: Any) -> Response:
    return Response(encode(answer), media_type="application/json")
