"""What a server tells about its work when it is asked to: logs, spans, vLLM's metrics; and who may do how much."""

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.integration.server.raw_http import RawConnection
from tests.integration.server.server_process import ServerProcess, wait_until

COMPLETIONS = "/v1/completions"
SECRET_PROMPT = "the secret of the prompt"
KEY = "sk-seen-nowhere"
BEARER = {"Authorization": f"Bearer {KEY}"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """An OpenTelemetry collector that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                export = ExportTraceServiceRequest.FromString(body)
                spans.extend(s for r in export.resource_spans for scope in r.scope_spans for s in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def observed(collector: Collector) -> Iterator[ServerProcess]:
    flags = (
        *("--metrics-compat", "vllm", "--log-format", "json", "--enable-log-requests"),
        *("--otlp-traces-endpoint", collector.url, "--max-concurrent-requests", "2", "--host", "0.0.0.0"),
    )
    with ServerProcess(*flags, env={"CHAIRLIFT_API_KEY": KEY, "OTEL_BSP_SCHEDULE_DELAY": "100"}) as process:
        yield process


def complete(server: ServerProcess, **body: object) -> httpx.Response:
    headers = {**BEARER, "X-Request-Id": "mine", "traceparent": TRACE}
    return httpx.post(
        server.url + COMPLETIONS, json={"prompt": SECRET_PROMPT, "max_tokens": 5, **body}, headers=headers, timeout=30
    )


def ended(server: ServerProcess) -> list[dict]:
    return [line for line in map(json.loads, server.log) if line["message"] == "request ended"]


def test_a_line_for_each_request_and_no_text(observed: ServerProcess) -> None:
    answer = complete(observed, ignore_eos=True).json()
    wait_until(lambda: any(line["request_id"] == answer["id"] for line in ended(observed)), within_s=10)
    line = next(line for line in ended(observed) if line["request_id"] == answer["id"])
    assert (line["label"], line["reasons"], line["output_tokens"]) == ("mine", "length", 5)
    assert line["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["duration_ms"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    everything = "\n".join(observed.log)
    assert SECRET_PROMPT not in everything
    assert answer["choices"][0]["text"] not in everything
    assert KEY not in everything


def test_refused_requests_are_logged_too(observed: ServerProcess) -> None:
    assert complete(observed, prompt=[1] * 5000).status_code == 400
    wait_until(lambda: any(line["reasons"] == "rejected" for line in ended(observed)), within_s=10)


def test_a_server_that_others_can_reach_does_not_warn_if_it_needs_a_key(observed: ServerProcess) -> None:
    assert not any("NO API KEY" in line for line in observed.log)


def test_every_line_of_the_log_is_an_object(observed: ServerProcess) -> None:
    assert {"time", "level", "logger", "process_id", "message"} <= set.intersection(
        *(set(json.loads(line)) for line in observed.log)
    )


def test_a_span_for_each_request_in_the_clients_trace(observed: ServerProcess, collector: Collector) -> None:
    answer = complete(observed, ignore_eos=True, n=2).json()

    def attributes(span) -> dict:
        values = ((pair.key, pair.value) for pair in span.attributes)
        return {name: value.string_value or value.int_value or value.double_value for name, value in values}

    wait_until(
        lambda: any(attributes(s).get("gen_ai.request.id") == answer["id"] for s in collector.spans), within_s=20
    )
    span = next(s for s in collector.spans if attributes(s).get("gen_ai.request.id") == answer["id"])
    found = attributes(span)
    assert found["gen_ai.usage.completion_tokens"] == 10
    assert found["gen_ai.request.n"] == 2
    assert span.trace_id.hex() == TRACE.split("-")[1]
    assert span.parent_span_id.hex() == TRACE.split("-")[2]
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    assert abs(span.start_time_unix_nano - time.time_ns()) < 600e9


def test_vllms_names_are_there_with_its_labels(observed: ServerProcess) -> None:
    complete(observed)
    text = httpx.get(observed.url + "/metrics").text
    assert re.search(r'^vllm:num_requests_running\{engine="0",model_name="[^"]+"\} 0\.0$', text, re.MULTILINE)
    assert re.search(r"^vllm:time_to_first_token_seconds_bucket\{.*le=\"0\.001\".*\} ", text, re.MULTILINE)
    count = re.search(
        r'^http_requests_total\{handler="/v1/completions",method="POST",status="2xx"\} (\S+)$', text, re.MULTILINE
    )
    assert count is not None
    assert float(count[1]) >= 1
    for path in ("/made-up-1", "/made-up-2"):
        httpx.get(observed.url + path, headers=BEARER)
    text = httpx.get(observed.url + "/metrics").text
    assert "made-up" not in text
    assert 'handler="none"' in text


def test_one_key_has_so_many_requests_at_a_time(observed: ServerProcess) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
    connections = [RawConnection(observed) for _ in range(2)]
    for connection in connections:
        connection.send_head(COMPLETIONS, f"Content-Length: {len(body)}", f"Authorization: Bearer {KEY}")
        connection.send(body)
        assert b" 200 " in connection.read()
    assert httpx.get(observed.url + "/load").json() == {"server_load": 2}
    refused = complete(observed)
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) >= 1
    assert "--max-concurrent-requests is 2" in refused.json()["error"]["message"]
    for connection in connections:
        connection.__exit__(None, None, None)
    wait_until(lambda: httpx.get(observed.url + "/load").json() == {"server_load": 0}, within_s=10)
    assert complete(observed).status_code == 200
