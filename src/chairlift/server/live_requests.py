"""GET /v1/requests and /v1/requests/{id}: what requests wait for. Knows nothing of generation."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.messages import RequestStatus
from chairlift.errors import InvalidRequestError, UnknownRequestError
from chairlift.server.context import caller_of, context_of
from chairlift.server.directory import RequestDirectory
from chairlift.server.errors import shorten
from chairlift.server.openai.responses import encode
from chairlift.server.openapi import documented, query_parameter

router = APIRouter()

DEFAULT_LIMIT = 100
MAX_LIMIT = 256


class ChoiceStatus(msgspec.Struct):
    """One choice of a request as the scheduler has it; ``reason`` says in words why it is not further.

    ``waited_s`` is how long it has waited since it came or was last preempted, or waited for its slot if it runs.
    ``position`` counts from 0; it, the tokens before it and the predicted time until its next token are ``null`` for
    one that runs and where they are not known.
    """

    index: int
    phase: str
    blocked_on: str | None
    reason: str
    tier: int
    tenant: str
    waited_s: float
    position: int | None
    num_tokens_ahead: int | None
    predicted_wait_s: float | None
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_kv_pages: int
    num_preemptions: int


class RequestDetails(msgspec.Struct):
    """Answer of /v1/requests/{id}: the first 256 of the choices that have not ended."""

    id: str
    object: Literal["request"]
    label: str | None
    ttft_deadline_ms: float | None
    deadline_ms: float | None
    choices: list[ChoiceStatus]


class ListedChoice(msgspec.Struct):
    """A choice in a list: the request's id, ``null`` if it is ending, and the choice."""

    id: str | None
    choice: ChoiceStatus


class RequestList(msgspec.Struct):
    """Answer of /v1/requests: the first of the running, in the order of admission, and the first of the waiting."""

    object: Literal["list"]
    num_running: int
    num_waiting: int
    running: list[ListedChoice]
    waiting: list[ListedChoice]


class Cancelled(msgspec.Struct):
    """Answer of DELETE /v1/requests/{id}."""

    id: str
    object: Literal["request"] = "request"
    cancelled: Literal[True] = True


_LIMIT = query_parameter("limit", "Choices in each list at most.", type="integer", minimum=1, maximum=MAX_LIMIT)


@router.get("/v1/requests", **documented(None, RequestList, "List running and waiting requests", query=[_LIMIT]))
async def list_requests(request: Request) -> Response:
    """What runs and what waits, with the reasons; ?limit= says how many of each, 100 if absent.

    For the administrator's key alone.
    """
    context = context_of(request)
    listed = await context.engine.list_requests(_limit(request))
    naming = _Naming(context.directory)
    answer = RequestList(
        "list",
        listed.num_running,
        listed.num_waiting,
        [naming.listed(status) for status in listed.running],
        [naming.listed(status) for status in listed.waiting],
    )
    return Response(encode(answer), media_type="application/json")


@router.get("/v1/requests/{request_id:path}", **documented(None, RequestDetails, "Explain what a request waits for"))
async def show_request(request: Request, request_id: str) -> Response:
    """Where a live request stands, and why it is not further.

    The id is that of the answer, which the header X-Chairlift-Request-Id has before the answer is there; or, for a
    request that came with a key, its own X-Request-Id. Only the key that sent it sees it, and the administrator's.
    """
    context = context_of(request)
    live = context.directory.find(request_id, caller_of(request))
    indexed = live.choices.live_choices[:MAX_LIMIT] if live is not None else []
    statuses: Sequence[RequestStatus | None] = ()
    if indexed:
        statuses = await context.engine.explain([engine_id for _, engine_id in indexed])
    found = [_choice(status, index) for (index, _), status in zip(indexed, statuses, strict=True) if status is not None]
    if live is None or not found:
        raise UnknownRequestError(
            f"no live request of yours has the id '{shorten(request_id)}'; it may have ended", param="id"
        )
    terms = live.terms
    details = RequestDetails(live.id, "request", terms.label, terms.ttft_deadline_ms, terms.deadline_ms, found)
    return Response(encode(details), media_type="application/json")


@router.delete("/v1/requests/{request_id:path}", **documented(None, Cancelled, "Cancel a request"))
async def cancel_request(request: Request, request_id: str) -> Response:
    """End a live request; whoever waits for its answer gets the error ``request_cancelled``.

    The id is as for asking about it. Only the key that sent it may cancel it, and the administrator's.
    """
    live = context_of(request).directory.find(request_id, caller_of(request))
    if live is None:
        raise UnknownRequestError(
            f"no live request of yours has the id '{shorten(request_id)}'; it may have ended", param="id"
        )
    live.choices.cancel()
    return Response(encode(Cancelled(live.id)), media_type="application/json")


class _Naming:
    """Finds the names that clients know for what the engine lists; a request's choices are looked at once."""

    def __init__(self, directory: RequestDirectory) -> None:
        self._directory = directory
        self._indices: dict[str, dict[int, int]] = {}

    def listed(self, status: RequestStatus) -> ListedChoice:
        live = self._directory.find_by_engine_id(status.request_id)
        if live is None:
            return ListedChoice(None, _choice(status, 0))
        indices = self._indices.get(live.id)
        if indices is None:
            indices = {engine_id: index for index, engine_id in live.choices.live_choices}
            self._indices[live.id] = indices
        return ListedChoice(live.id, _choice(status, indices.get(status.request_id, 0)))


def _choice(status: RequestStatus, index: int) -> ChoiceStatus:
    fields = {name: getattr(status, name) for name in ChoiceStatus.__struct_fields__ if name != "index"}
    return ChoiceStatus(index=index, **fields)


def _limit(request: Request) -> int:
    given = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if len(given) > 9 or not given.isdecimal() or not given.isascii() or not 1 <= int(given) <= MAX_LIMIT:
        raise InvalidRequestError(f"limit must be in [1, {MAX_LIMIT}], got {shorten(given)!r}", param="limit")
    return int(given)
