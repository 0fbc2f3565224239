"""What is told of each request when it has ended: a line in the log, a span for a collector, or nothing.

Knows nothing of how a request is served.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from chairlift.config.sections import ObservabilitySettings
from chairlift.engine.terms import Terms
from chairlift.observability.logging import log_fields
from chairlift.observability.request_record import RequestRecord, RequestReport
from chairlift.observability.tracing import RequestTracer

_CLOSE_TIMEOUT_S = 3.0
_MS_PER_S = 1000.0
_HALF_CHARACTER = "\ufffd"
"""What is decoded of a character whose other tokens are cut off."""

_logger = logging.getLogger("chairlift.requests")


class EndReports:
    """Follows requests, as far as the settings ask for it.

    Args:
        settings: what is to be told.
        decode: text of token ids, for the part of a prompt that is to be quoted.
    """

    def __init__(self, settings: ObservabilitySettings, decode: Callable[[Sequence[int]], str]) -> None:
        self._settings = settings
        self._decode = decode
        self._tracer: RequestTracer | None = None

    def start(self, model: str) -> None:
        """The engine serves this model.

        Raises:
            ConfigurationError: spans are wanted, but the libraries for it are not installed.
        """
        endpoint = self._settings.otlp_traces_endpoint
        if endpoint is not None and self._tracer is None:
            self._tracer = RequestTracer(endpoint, model, time.time_ns() - time.monotonic_ns())

    async def stop(self) -> None:
        """Send the spans that are left, if the collector takes them soon."""
        if self._tracer is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self._tracer.close), _CLOSE_TIMEOUT_S)

    def follow(self, record: RequestRecord, prompt_token_ids: Sequence[int], terms: Terms) -> None:
        """Tell of this request when it has ended."""
        if not self._settings.enable_log_requests and self._tracer is None:
            return
        quoted = self._quoted(prompt_token_ids)

        def tell(report: RequestReport) -> None:
            if self._tracer is not None:
                self._tracer.trace(report, terms.answer_id, terms.traceparent)
            if self._settings.enable_log_requests:
                log_fields(_logger, "request ended", _fields(report, terms, quoted))

        record.tell_end(tell)

    def _quoted(self, prompt_token_ids: Sequence[int]) -> str | None:
        num_chars = self._settings.log_prompt_chars
        if not num_chars or not self._settings.enable_log_requests:
            return None
        # No more tokens than characters: a token without any is rare, and this is a quotation.
        text = self._decode(prompt_token_ids[:num_chars])
        if len(prompt_token_ids) > num_chars:
            text = text.rstrip(_HALF_CHARACTER)
        return text[:num_chars]


def _fields(report: RequestReport, terms: Terms, quoted: str | None) -> dict[str, object]:
    fields: dict[str, object | None] = {
        "request_id": terms.answer_id,
        "label": terms.label,
        "tenant": report.tenant,
        "tier": report.tier,
        "reasons": ",".join(report.reasons),
        "prompt_tokens": report.num_prompt_tokens,
        "cached_tokens": report.num_cached_tokens,
        "output_tokens": report.num_output_tokens,
        "queue_ms": _ms(report.queue_s),
        "ttft_ms": _ms(report.ttft_s),
        "duration_ms": _ms(report.duration_s),
        "prompt": quoted,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _ms(duration_s: float | None) -> float | None:
    return None if duration_s is None else round(duration_s * _MS_PER_S, 3)
