"""A span of each request for an OpenTelemetry collector, if the libraries are there.

Knows nothing of requests' content, and reads no clock: callers bring the time.
"""

from typing import Any

from chairlift.errors import ConfigurationError
from chairlift.observability.request_record import RequestReport

_SPAN_NAME = "llm_request"
_NS_PER_S = 1e9
_EXPORT_TIMEOUT_S = 2


class RequestTracer:
    """Sends spans in the background, under vLLM's names for their attributes.

    Args:
        endpoint: where the collector takes OTLP over HTTP, such as ``http://localhost:4318/v1/traces``.
        model: what is served.
        wall_offset_ns: what to add to a time of requests to get Unix time.

    Raises:
        ConfigurationError: the libraries are not installed.
    """

    def __init__(self, endpoint: str, model: str, wall_offset_ns: int) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigurationError(
                "--otlp-traces-endpoint needs OpenTelemetry, which is not installed: pip install '.[otel]' where "
                "Chairlift's repository is"
            ) from error
        self._model = model
        self._wall_offset_ns = wall_offset_ns
        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(resource=Resource.create({"service.name": "chairlift"}))
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("chairlift")

    def trace(self, report: RequestReport, request_id: str | None, traceparent: str | None) -> None:
        """Record a request that has ended, inside the trace that its client named."""
        headers = {} if traceparent is None else {"traceparent": traceparent}
        start_ns = report.arrival_ns + self._wall_offset_ns
        attributes: dict[str, Any] = {
            "gen_ai.request.id": request_id,
            "gen_ai.response.model": self._model,
            "gen_ai.request.n": report.num_choices,
            "gen_ai.usage.prompt_tokens": report.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": report.num_output_tokens,
            "gen_ai.usage.cached_tokens": report.num_cached_tokens,
            "gen_ai.latency.time_in_queue": report.queue_s,
            "gen_ai.latency.time_to_first_token": report.ttft_s,
            "gen_ai.latency.e2e": report.duration_s,
            "gen_ai.response.finish_reasons": report.reasons,
            "chairlift.tenant": report.tenant,
            "chairlift.tier": report.tier,
        }
        span = self._tracer.start_span(
            _SPAN_NAME,
            context=self._propagator.extract(headers),
            attributes={name: value for name, value in attributes.items() if value is not None},
            start_time=start_ns,
        )
        span.end(start_ns + round(report.duration_s * _NS_PER_S))

    def close(self) -> None:
        """Send what is left. May take seconds if the collector does not answer."""
        self._provider.shutdown()
