"""Counts HTTP requests under the names that vLLM's server has for them. Knows nothing of what they ask for."""

import time
from collections.abc import MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary, generate_latest
from starlette.types import ASGIApp, Receive, Scope, Send

_FEW_BUCKETS_S = (0.1, 0.5, 1.0)
_MANY_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5),
    *(10.0, 30.0, 60.0),
)
_NO_HANDLER = "none"
"""For paths that do not exist: clients could make any number of them up."""


class HttpMetrics:
    """The series, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "http_requests",
            "Requests by method, status and handler.",
            ("method", "status", "handler"),
            registry=registry,
        )
        self.duration = Histogram(
            *("http_request_duration_seconds", "Duration of requests by handler."),
            labelnames=("method", "handler"),
            buckets=_FEW_BUCKETS_S,
            registry=registry,
        )
        self.duration_fine = Histogram(
            *("http_request_duration_highr_seconds", "Duration of all requests, in fine buckets."),
            buckets=_MANY_BUCKETS_S,
            registry=registry,
        )
        self.request_bytes = Summary(
            "http_request_size_bytes", "Announced size of request bodies.", ("handler",), registry=registry
        )
        self.response_bytes = Summary(
            "http_response_size_bytes", "Announced size of answers.", ("handler",), registry=registry
        )

    def render(self) -> bytes:
        """Return all values in Prometheus' text format."""
        return generate_latest(self._registry)


class HttpCounting:
    """Feeds the series."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, size = 500, 0
        start_s = time.perf_counter()

        async def send_noticed(message: MutableMapping[str, Any]) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                size = _announced(message.get("headers", ()))
            await send(message)

        try:
            await self.app(scope, receive, send_noticed)
        finally:
            duration_s = time.perf_counter() - start_s
            handler, method = _handler(scope), scope["method"]
            metrics = self._metrics
            metrics.requests.labels(method, f"{status // 100}xx", handler).inc()
            metrics.duration.labels(method, handler).observe(duration_s)
            metrics.duration_fine.observe(duration_s)
            metrics.request_bytes.labels(handler).observe(_announced(scope["headers"]))
            metrics.response_bytes.labels(handler).observe(size)


def _handler(scope: Scope) -> str:
    """The path as it is declared, so that there are no more of them than endpoints."""
    return getattr(scope.get("route"), "path", _NO_HANDLER)


def _announced(headers: Any) -> int:
    length = next((value for name, value in headers if name.lower() == b"content-length"), b"0")
    return int(length) if length.isdigit() else 0
