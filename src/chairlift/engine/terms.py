"""What a request asks of the scheduler beside its tokens: whose it is, how urgent, and by when.

Knows nothing of prompts, or of who may ask for what.
"""

from dataclasses import dataclass

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one request.

    ``label`` is the client's name for it; it need not be unique and decides nothing. ``answer_id`` is the id that its
    answer has, and ``traceparent`` the trace that it belongs to, both for logs and traces alone. Deadlines are in
    milliseconds from ``arrival_ns``, the time on this machine's monotonic clock at which the request had arrived;
    ``None`` is now.
    """

    tenant: str = ""
    priority: int = 0
    ttft_deadline_ms: float | None = None
    deadline_ms: float | None = None
    cache_salt: str | None = None
    label: str | None = None
    answer_id: str | None = None
    traceparent: str | None = None
    arrival_ns: int | None = None


def deadline_ns(arrival_ns: int, after_ms: float | None) -> int | None:
    """Absolute time of a deadline that lies so many milliseconds after the arrival."""
    return None if after_ms is None else arrival_ns + round(after_ms * _NS_PER_MS)
