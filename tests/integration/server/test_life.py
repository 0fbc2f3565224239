"""Clients that leave, signals, and an engine that dies: on a server process with the fake executor."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.integration.server.raw_http import RawConnection
from tests.integration.server.server_process import ServerProcess, wait_until

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "long", "max_tokens": 2000, "ignore_eos": True}


class OpenStream:
    """A streamed request over a raw socket, so that the test decides when it ends and how."""

    def __init__(self, server: ServerProcess, body: dict) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        data = json.dumps({**body, "stream": True}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.sendall(head + data)
        self.received = b""

    def read_until(self, mark: bytes) -> bytes:
        """All that came, once it holds a mark; or all there was, if the server closes before."""
        while mark not in self.received:
            block = self.socket.recv(65536)
            if not block:
                break
            self.received += block
        return self.received

    def close(self) -> None:
        self.socket.close()


@contextmanager
def open_streams(server: ServerProcess, count: int, body: dict) -> Iterator[list[OpenStream]]:
    """Streams that have each sent their first chunk."""
    streams = [OpenStream(server, body) for _ in range(count)]
    try:
        for stream in streams:
            assert b"data: " in stream.read_until(b"data: ")
        yield streams
    finally:
        for stream in streams:
            stream.close()


def test_b30_300_streams_that_disconnect_leave_nothing(server: ServerProcess) -> None:
    aborted = server.metric('chairlift_requests_finished_total{reason="abort"}')
    streams = [OpenStream(server, {**LONG, "max_tokens": 500}) for _ in range(300)]

    def leave_after_first_chunk(stream: OpenStream) -> None:
        assert b"data: " in stream.read_until(b"data: ")
        stream.close()

    with ThreadPoolExecutor(300) as pool:
        list(pool.map(leave_after_first_chunk, streams))
    wait_until(server.is_idle, within_s=2)
    assert server.metric('chairlift_requests_finished_total{reason="abort"}') > aborted


def test_b30_clients_that_leave_before_their_answer_leave_nothing(server: ServerProcess) -> None:
    generated = server.metric("chairlift_generation_tokens_total")

    def leave(_: int) -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + COMPLETIONS, json=LONG, timeout=httpx.Timeout(30, read=0.05))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(32)))
    wait_until(server.is_idle, within_s=2)
    assert server.metric("chairlift_generation_tokens_total") - generated < 32 * 2000 / 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_new_requests_are_refused_and_running_ones_end(number: signal.Signals) -> None:
    with ServerProcess() as server:
        with open_streams(server, 4, {**LONG, "max_tokens": 1000}) as streams:
            server.send_signal(number)
            wait_until(lambda: httpx.get(server.url + "/ready").status_code == 503, within_s=5)
            assert httpx.get(server.url + "/health").json() == {"status": "draining"}
            refused = httpx.post(server.url + COMPLETIONS, json={"prompt": "x"})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            for stream in streams:
                text = stream.read_until(b"[DONE]")
                assert text.count(b'"finish_reason":"length"') == 1
                assert b'"error"' not in text
        assert server.wait() == 0
    assert not any("Traceback" in line for line in server.log)
    assert server.log[-1].endswith("the server has stopped")


def test_nothing_that_was_accepted_is_lost_when_a_loaded_server_drains() -> None:
    flags = ("--max-num-seqs", "2", "--fake-step-ms", "8", "--shutdown-timeout", "60")
    exact = {"ignore_eos": True, "temperature": 0}
    bodies = [
        {"prompt": f"request {number}", "max_tokens": 60 + number, "stream": number % 2 == 0, **exact}
        for number in range(12)
    ]
    with ServerProcess(*flags) as server, ThreadPoolExecutor(len(bodies)) as pool:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            expected = [
                client.post(COMPLETIONS, json={**body, "stream": False}).json()["choices"] for body in bodies[:2]
            ]
            answers = [pool.submit(client.post, COMPLETIONS, json=body) for body in bodies]
            wait_until(lambda: server.metric("chairlift_requests_received_total") == len(bodies) + 2, within_s=10)
            assert server.metric("chairlift_num_requests_waiting") >= 2
            server.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(server.url + "/ready").status_code == 503, within_s=5)
            assert not all(answer.done() for answer in answers)
            ended = [answer.result() for answer in answers]
        assert server.wait() == 0
    texts: list[str] = []
    for body, answer in zip(bodies, ended, strict=True):
        assert answer.status_code == 200, answer.text
        if body["stream"]:
            *events, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
            assert done == "[DONE]"
            choices = [json.loads(event)["choices"][0] for event in events]
            assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
            texts.append("".join(choice["text"] for choice in choices))
        else:
            told = answer.json()
            assert told["usage"]["completion_tokens"] == body["max_tokens"]
            texts.append(told["choices"][0]["text"])
    assert len(set(texts)) == len(bodies)
    assert texts[:2] == [choices[0]["text"] for choices in expected]
    assert not any("Traceback" in line for line in server.log)


def test_the_time_to_drain_is_limited_and_the_rest_learns_of_it() -> None:
    with ServerProcess("--shutdown-timeout", "0") as server:
        with open_streams(server, 4, LONG) as streams:
            server.send_signal(signal.SIGTERM)
            for stream in streams:
                text = stream.read_until(b"[DONE]")
                assert b'data: {"error":{"message":' in text
        assert server.wait() == 0


def test_a_second_signal_stops_at_once_and_every_stream_learns_of_it() -> None:
    with ServerProcess("--fake-step-ms", "3000") as server, open_streams(server, 2, LONG) as streams:
        server.send_signal(signal.SIGINT)
        wait_until(lambda: any("no new requests" in line for line in server.log), within_s=5)
        start_s = time.monotonic()
        server.send_signal(signal.SIGINT)
        assert server.wait() == 1
        assert time.monotonic() - start_s < 2.5  # the step that runs takes longer, and is not waited for
        for stream in streams:
            assert b'data: {"error":{"message":' in stream.read_until(b"[DONE]")
    assert not any("Traceback" in line for line in server.log)


def assert_every_stream_fails_and_the_engine_comes_back(
    server: ServerProcess, streams: list[OpenStream], number: signal.Signals
) -> None:
    """Once its process has got a signal."""
    first = server.engine_process_id()
    os.kill(first, number)
    with ThreadPoolExecutor(len(streams)) as pool:
        texts = list(pool.map(lambda stream: stream.read_until(b"[DONE]"), streams))
    assert all(b'data: {"error":{"message":' in text and b"engine_unavailable" in text for text in texts)
    wait_until(lambda: httpx.get(server.url + "/health").status_code == 200, within_s=30)
    assert server.engine_process_id() != first
    answer = httpx.post(server.url + COMPLETIONS, json={"prompt": "x", "max_tokens": 3, "ignore_eos": True}).json()
    assert answer["usage"]["completion_tokens"] == 3


def test_killing_the_engine_ends_streams_with_an_error_and_it_comes_back() -> None:
    with ServerProcess() as server, open_streams(server, 8, LONG) as streams:
        assert_every_stream_fails_and_the_engine_comes_back(server, streams, signal.SIGKILL)
        assert server.metric("chairlift_engine_restarts_total") == 1


def test_a_stopped_engine_is_noticed_and_every_request_has_its_end() -> None:
    with ServerProcess("--watchdog-timeout", "0.5") as server, open_streams(server, 8, LONG) as streams:
        assert_every_stream_fails_and_the_engine_comes_back(server, streams, signal.SIGSTOP)
        assert server.metric('chairlift_requests_finished_total{reason="error"}') == 8
        assert server.metric("chairlift_requests_received_total") == 9


def test_half_a_request_does_not_hold_up_the_end() -> None:
    with ServerProcess() as server, RawConnection(server) as half, RawConnection(server) as idle:
        half.send_head(COMPLETIONS, "Content-Length: 1000")
        half.send(b'{"prompt": "')
        idle.send(b"GET /version HTTP/1.1\r\n")
        wait_until(lambda: httpx.get(server.url + "/version").status_code == 200, within_s=5)
        start_s = time.monotonic()
        server.send_signal(signal.SIGTERM)
        received = half.read_to_end()
        assert server.wait() == 0
        assert time.monotonic() - start_s < 4
        assert b" 503 " in received
        assert b"retry-after: 1" in received.lower()


def test_half_a_request_is_nothing_to_log_when_a_second_signal_stops_the_server() -> None:
    with (
        ServerProcess("--fake-step-ms", "150") as server,
        open_streams(server, 1, LONG),
        RawConnection(server) as half,
        RawConnection(server) as chunked,
    ):
        half.send_head(COMPLETIONS, "Content-Length: 1000")
        half.send(b'{"prompt": "')
        chunked.send_head("/v1/messages", "Transfer-Encoding: chunked")
        chunked.send(b"5\r\n{")
        assert httpx.get(server.url + "/version").status_code == 200
        server.send_signal(signal.SIGTERM)
        wait_until(lambda: any("no new requests" in line for line in server.log), within_s=5)
        server.send_signal(signal.SIGTERM)
        received = half.read_to_end(), chunked.read_to_end()
        assert server.wait() == 1
        assert all(text.count(b"HTTP/1.1 ") == text.count(b" 503 ") <= 1 for text in received), received
    assert not any("Traceback" in line or "ERROR" in line for line in server.log), server.log


def test_a_port_in_use_is_said_before_a_model_is_loaded(server: ServerProcess) -> None:
    port = server.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "chairlift", "serve", "--executor", "fake", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"--port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_while_starting_ends_cleanly() -> None:
    command = [sys.executable, "-m", "chairlift", "serve", "--executor", "fake", "--port", "0", "--log-level", "debug"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: children.read_text().strip() != "", within_s=30)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output
        assert "Traceback" not in output


def test_a_slow_sender_is_bounded_and_hurts_nobody(server: ServerProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        block = b"%x\r\n" % 65536 + b"x" * 65536 + b"\r\n"
        refused = threading.Event()

        def read() -> None:
            if b" 413 " in slow.recv(65536):
                refused.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(400):  # 25 MiB, of which 16 MiB are allowed
                slow.sendall(block)
        except OSError:
            pass
        reader.join()
        assert refused.is_set()
        assert httpx.get(server.url + "/health").status_code == 200
