"""GET and PATCH /admin/scheduler, the settings that can change while requests run; and POST /reset_prefix_cache.

Knows nothing of what the settings do; the guard lets only the administrator's key get here.
"""

from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any, cast

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field, create_model
from starlette.requests import Request
from starlette.responses import Response

from chairlift.config.changes import CHANGEABLE
from chairlift.config.settings import settings_by_name
from chairlift.errors import InvalidRequestError
from chairlift.server.body import read_bytes
from chairlift.server.context import context_of
from chairlift.server.errors import shorten
from chairlift.server.openapi import documented

router = APIRouter()

_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Scalar = bool | _Whole | float | str | None
_Fields = dict[str, _Scalar]
_Change = _Scalar | dict[str, _Scalar | _Fields]
_Changes = dict[str, _Change]
_KINDS: tuple[Any, ...] = (_Change, _Scalar | _Fields, _Scalar)
"""What a value may be, from the outside in."""
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Changes)
_encode = msgspec.json.Encoder().encode


class CacheResetError(InvalidRequestError):
    """The prefix cache is in use."""

    http_status = HTTPStatus.CONFLICT


class PrefixCacheReset(msgspec.Struct):
    """Answer of /reset_prefix_cache."""

    is_reset: bool


class SchedulerSettingsNow(msgspec.Struct):
    """Answer of /admin/scheduler: every setting that can be changed, by name, with its value now."""

    settings: dict[str, Any]


def _described_changes() -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name in CHANGEABLE:
        info = settings_by_name().get(name)
        if info is not None:
            fields[name] = (info.kind | None, Field(None, description=info.help))
    fields["tenants"] = (
        dict[str, Any] | None,
        Field(
            None,
            description="By name the fields that change: weight, max_num_queued_reqs, max_num_queued_tokens, "
            "max_kv_pages, most_urgent_tier; null makes a tenant like all others.",
        ),
    )
    fields["default_tenant"] = (
        dict[str, Any] | None,
        Field(None, description="The same for every tenant that has no fields of its own."),
    )
    return create_model(
        "SchedulerChanges", __doc__="PATCH /admin/scheduler: the settings to change, all or none.", **fields
    )


SchedulerChanges = _described_changes()
"""For the documentation alone: values are checked where the settings are defined."""


@router.get("/admin/scheduler", **documented(None, SchedulerSettingsNow, "Settings of the scheduler"))
async def show_scheduler(request: Request) -> Response:
    """The settings that can be changed while requests run, as they are now."""
    return await _configured(request, {})


@router.patch("/admin/scheduler", **documented(SchedulerChanges, SchedulerSettingsNow, "Change the scheduler"))
async def change_scheduler(request: Request) -> Response:
    """Change policies, weights, caps and budgets while requests run: all that is asked for, or nothing.

    Requests keep their place in the order of arrival, and tenants what they were charged. Changes are logged, hold
    after a restart of the engine process, and are gone when the server is started anew.
    """
    raw = await read_bytes(request)
    try:
        changes = cast("dict[str, object]", _decoder.decode(raw))
    except msgspec.DecodeError as error:
        raise _not_settings(raw, error) from None
    if not changes:
        raise InvalidRequestError(f"nothing to change; there are: {', '.join(CHANGEABLE)}")
    return await _configured(request, changes)


@router.post("/reset_prefix_cache", **documented(None, PrefixCacheReset, "Forget all cached prefixes"))
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached prefixes, if nothing runs or waits; else 409, and nothing is done.

    A prefix may be half computed, or be what a running request goes on from; whoever wants the cache empty sends it
    again when the requests have ended. For the administrator's key alone.
    """
    if not await context_of(request).engine.reset_prefix_cache():
        raise CacheResetError("requests are alive and use the prefix cache; reset it when they have ended")
    return Response(_encode(PrefixCacheReset(True)), media_type="application/json")


def _not_settings(raw: bytes, error: msgspec.DecodeError) -> InvalidRequestError:
    """Names the first value that no setting can have; or says what else is wrong with a body."""
    path: list[str] = []
    with suppress(msgspec.DecodeError, RecursionError):
        value: Any = msgspec.json.decode(raw)
        for kind in _KINDS:
            fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
            wrong = next((name for name, inner in fields.items() if not _fits(inner, kind)), None)
            if wrong is None:
                break
            path.append(wrong)
            value = fields[wrong]
    if not path:
        return InvalidRequestError(f"the request body must be a JSON object of settings: {error}")
    name = shorten(".".join(path))
    return InvalidRequestError(f"{name} must be a text, true, false, null or a number of 64 bits", param=name)


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


async def _configured(request: Request, changes: dict[str, object]) -> Response:
    settings = await context_of(request).engine.configure(changes)
    return Response(_encode(SchedulerSettingsNow(dict(settings))), media_type="application/json")
