"""From a request to what it may ask of the scheduler. Knows nothing of prompts or sampling."""

from collections.abc import Mapping

from starlette.requests import Request

from chairlift.engine.terms import Terms
from chairlift.errors import InvalidRequestError
from chairlift.server.context import caller_of, context_of
from chairlift.server.middleware import request_label
from chairlift.server.openai.requests import PromptFields

SERVICE_TIERS: Mapping[str, int] = {"auto": 0, "default": 0, "scale": 0, "flex": 1, "priority": -1}
"""The tier that each of OpenAI's service tiers stands for; lower is more urgent."""


def terms_of(request: Request, body: PromptFields) -> Terms:
    """Whom a request counts for, how urgent it may be, and by when it is wanted.

    A tier that is more urgent than the tenant may ask for is raised to what it may ask for.

    Raises:
        InvalidRequestError: the tenant's name cannot be used, or the deadlines contradict each other.
    """
    context = context_of(request)
    tenant = context.access.tenant_of(caller_of(request), request.headers, body.user)
    ttft_ms, total_ms = body.ttft_deadline_ms, body.deadline_ms
    if ttft_ms is not None and total_ms is not None and ttft_ms > total_ms:
        raise InvalidRequestError(
            f"ttft_deadline_ms is {ttft_ms:g}, but deadline_ms, by which all must be there, is {total_ms:g}",
            param="ttft_deadline_ms",
        )
    wanted = wanted_tier(body.priority, body.service_tier)
    return Terms(
        tenant=tenant,
        priority=max(wanted, context.engine.tenants.find(tenant).most_urgent_tier),
        ttft_deadline_ms=ttft_ms,
        deadline_ms=total_ms,
        cache_salt=context.access.cache_salt_of(tenant, body.cache_salt),
        label=request_label(request.scope),
        arrival_ns=request.state.arrival_ns,
    )


def served_tier(body: PromptFields, terms: Terms) -> str | None:
    """The service tier that a request got, if it named one: what it asked for, or what it may have of that."""
    if body.service_tier is None:
        return None
    if terms.priority > 0:
        return "flex"
    return "priority" if terms.priority < 0 else "default"


def wanted_tier(priority: int | None, service_tier: str | None) -> int:
    """The tier that a request asks for, whatever it may ask for."""
    if priority is not None:
        return priority
    return SERVICE_TIERS[service_tier] if service_tier is not None else 0
