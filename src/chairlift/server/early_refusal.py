"""Answers requests that the engine would refuse, before anything else is made of them.

Knows nothing of prompts: of a body it reads who it is from and how urgent it is, and of a long one nothing at all.
Whatever is not refused here takes the usual way, so a body that is wrong is answered there.
"""

import asyncio
import time
from typing import NamedTuple

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chairlift.engine.terms import Terms
from chairlift.errors import InvalidRequestError, OverloadedError
from chairlift.server.body import BODY_DEADLINE, LONG_BODY_BYTES
from chairlift.server.context import ServerContext
from chairlift.server.middleware import request_label
from chairlift.server.openai.terms import SERVICE_TIERS, wanted_tier
from chairlift.server.refusals import refusal

_PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"})
"""Endpoints whose requests wait in the engine's queue."""


class _Route(NamedTuple):
    """Stands for the endpoint that was not asked, where requests are counted by endpoint."""

    path: str


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Glance(msgspec.Struct):
    """What matters of a body here. Other fields are skipped, not parsed."""

    model: str | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    priority: int | None = None
    service_tier: str | None = None
    user: str | None = None
    metadata: _Metadata | None = None
    ttft_deadline_ms: float | None = None
    deadline_ms: float | None = None


_decode = msgspec.json.Decoder(_Glance).decode


class EarlyRefusal:
    """Stands before the endpoints, behind whoever checks keys."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self.app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] not in _PATHS or not self._context.engine.may_turn_away:
            await self.app(scope, receive, send)
            return
        first: Message | None = None
        if scope["method"] != "POST":
            error = None
        elif _is_long(scope):
            error = self._look_at_headers(scope)
        else:
            first = await self._first_message(scope, receive)
            error = None if first is None else self._look_at_body(scope, first)
        if error is None:
            await self.app(scope, receive if first is None else _again(first, receive), send)
            return
        path = scope["path"]
        scope["route"] = _Route(path)
        await refusal(path, error)(scope, receive, send)

    async def _first_message(self, scope: Scope, receive: Receive) -> Message | None:
        """The body, or its beginning; ``None`` if nothing came in time."""
        deadline_s = asyncio.get_running_loop().time() + self._context.sections.connections.body_timeout
        scope["state"][BODY_DEADLINE] = deadline_s  # whoever reads the rest has no more time than this
        try:
            async with asyncio.timeout_at(deadline_s):
                return await receive()
        except TimeoutError:
            return None

    def _look_at_headers(self, scope: Scope) -> OverloadedError | None:
        """Whatever the body says, the request is none that is more urgent than its tenant may ask for."""
        if self._context.access.trusts_user:
            return None
        return self._look(scope, _Glance(priority=-(2**31)))

    def _look_at_body(self, scope: Scope, message: Message) -> OverloadedError | None:
        if message["type"] != "http.request" or message.get("more_body", False):
            return None
        try:
            glance = _decode(message.get("body", b""))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        is_known = glance.service_tier is None or glance.service_tier in SERVICE_TIERS
        is_ours = glance.model is None or glance.model == self._context.engine.model_info.name
        # What generates nothing does not wait.
        return self._look(scope, glance) if is_known and is_ours and glance.max_tokens != 0 else None

    def _look(self, scope: Scope, glance: _Glance) -> OverloadedError | None:
        context, headers = self._context, Headers(scope=scope)
        num_choices = max(glance.n or 1, glance.best_of or 1)
        if not 1 <= num_choices <= context.settings.max_choices:
            return None
        user = glance.user if glance.metadata is None or glance.user is not None else glance.metadata.user_id
        try:
            tenant = context.access.tenant_of(scope["state"]["caller"], headers, user)
        except InvalidRequestError:
            return None
        wanted = wanted_tier(glance.priority, glance.service_tier)
        terms = Terms(
            tenant=tenant,
            priority=max(wanted, context.engine.tenants.find(tenant).most_urgent_tier),
            ttft_deadline_ms=glance.ttft_deadline_ms,
            deadline_ms=glance.deadline_ms,
            label=request_label(scope),
            arrival_ns=time.monotonic_ns(),
        )
        return context.engine.turn_away(terms, num_choices)


def _is_long(scope: Scope) -> bool:
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return not length.isdigit() or int(length) > LONG_BODY_BYTES


def _again(first: Message, receive: Receive) -> Receive:
    """The same messages once more, for whoever reads them next."""
    is_first = True

    async def receive_again() -> Message:
        nonlocal is_first
        if is_first:
            is_first = False
            return first
        return await receive()

    return receive_again
