"""How many KV pages a tenant's running requests may hold together. One of them alone may always run.

Knows nothing of who gives way to whom.
"""

from chairlift.core.request import Request
from chairlift.core.state import SchedulerState


def exceeds_quota(state: SchedulerState, request: Request, num_tokens: int) -> bool:
    """Whether its tenant would hold too much if a waiting request started with pages for so many tokens."""
    quota = state.config.tenant(request.tenant).max_kv_pages
    if quota is None:
        return False
    num_held = state.count_held_pages(request.tenant)
    return num_held > 0 and num_held + state.memory.pages_for(num_tokens) > quota


def would_exceed_quota(state: SchedulerState, tenant: str, num_more_pages: int) -> bool:
    """Whether its running requests would hold too much with so many pages more."""
    quota = state.config.tenant(tenant).max_kv_pages
    if quota is None or state.count_held_pages(tenant) + num_more_pages <= quota:
        return False
    return not _is_alone(state, tenant)


def count_room(state: SchedulerState, request: Request) -> int:
    """Return how many of the available pages a running request may take."""
    num_available = state.memory.num_available
    quota = state.config.tenant(request.tenant).max_kv_pages if state.has_quotas else None
    if quota is None or _is_alone(state, request.tenant):
        return num_available
    return max(0, min(num_available, quota - state.count_held_pages(request.tenant)))


def _is_alone(state: SchedulerState, tenant: str) -> bool:
    return sum(request.tenant == tenant for request in state.running.values()) <= 1
