"""Connections that take too much or too long: over raw sockets, on a server with short times."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import httpx
import pytest

from benchmarks.reliability.watch import resident_mib
from chairlift.observability.metrics import FINISH_REASONS
from tests.integration.server.raw_http import RawConnection
from tests.integration.server.server_process import ServerProcess, wait_until

COMPLETIONS = "/v1/completions"
MIB = 2**20
SLOW_READERS, SLOW_TOKENS, CHUNK_BYTES = 20, 300, 20_000
FLAGS = (
    *("--header-timeout", "0.5", "--body-timeout", "1", "--write-timeout", "0.5", "--max-header-bytes", "4096"),
    *("--max-connections", "40", "--max-buffered-bytes", "300000", "--max-model-len", "8192"),
    *("--served-model-name", "m" * 1000),  # so that answers soon fill what the machine keeps of them
)


@pytest.fixture(scope="module")
def strict() -> Iterator[ServerProcess]:
    with ServerProcess(*FLAGS) as process:
        yield process
        wait_until(process.is_idle, within_s=10)
        assert not any("Traceback" in line for line in process.log)


def status(received: bytes) -> int:
    return int(received.split(b" ", 2)[1])


def error_of(received: bytes) -> str:
    return json.loads(received.split(b"\r\n\r\n", 1)[1])["error"]["message"]


def split_answers(received: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer that has a Content-Length; fails where other bytes are between them."""
    answers: list[tuple[int, bytes]] = []
    while received:
        assert received.startswith(b"HTTP/1.1 "), received
        head, _, rest = received.partition(b"\r\n\r\n")
        match = re.search(rb"^content-length: (\d+)\r?$", head, re.IGNORECASE | re.MULTILINE)
        assert match is not None, head
        assert len(rest) >= int(match[1])
        answers.append((status(head), rest[: int(match[1])]))
        received = rest[int(match[1]) :]
    return answers


@contextmanager
def lines_in_the_log(server: ServerProcess, count: int = 1) -> Iterator[None]:
    """Whatever happens inside, the server says no more of it than so often that somebody sent no HTTP."""

    def said() -> list[str]:
        return [line for line in server.log[before:] if " INFO " not in line]

    before = len(server.log)
    yield
    wait_until(server.is_idle, within_s=10)
    with RawConnection(server) as last:  # whose line comes after all of theirs
        last.send(b"!\r\n\r\n")
        assert status(last.read_to_end()) == 400
    wait_until(lambda: len(said()) > count, within_s=10)
    assert len(said()) == count + 1, said()
    assert all(line.endswith("Invalid HTTP request received.") for line in said()), said()


def has_counted_all(server: ServerProcess) -> bool:
    """Whether every request that was received has been counted among those that ended."""
    ended = (f'chairlift_requests_finished_total{{reason="{reason}"}}' for reason in FINISH_REASONS)
    return server.metric("chairlift_requests_received_total") == sum(map(server.metric, ended))


def completion_body(**fields: Any) -> bytes:
    return json.dumps({"prompt": "x", "ignore_eos": True, **fields}).encode()


def test_a_connection_without_a_request_is_closed(strict: ServerProcess) -> None:
    with RawConnection(strict) as connection:
        start_s = time.monotonic()
        assert connection.read_to_end() == b""
        assert 0.3 < time.monotonic() - start_s < 5


def test_headers_that_come_one_by_one_are_given_up(strict: ServerProcess) -> None:
    with RawConnection(strict) as connection:
        connection.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        received = connection.read_to_end()
    assert status(received) == 408
    assert "--header-timeout" in error_of(received)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /version HTTP/1.1\r\n",
        b"\r\n",  # the parser skips it, and it ends the wait of an idle connection
    ],
)
def test_headers_that_come_late_on_a_connection_that_was_used_are_given_up_too(
    sent: bytes, strict: ServerProcess
) -> None:
    with RawConnection(strict) as connection:
        connection.send_head("/version", method="GET")
        while b"version" not in connection.read():
            pass
        connection.send(sent)
        assert status(connection.read_to_end()) == 408


def test_headers_that_begin_during_an_answer_have_their_time_too(strict: ServerProcess) -> None:
    """It is over while the answer before it is still to come, and bytes come after that."""
    body = json.dumps({"prompt": "x", "max_tokens": 2000, "ignore_eos": True}).encode()
    with RawConnection(strict) as connection:
        connection.send_head(COMPLETIONS, f"Content-Length: {len(body)}")
        connection.send(body + b"GET /hea")
        received = b""
        while b"usage" not in received:
            received += connection.read()
        connection.send(b"l")
        assert b" 408 " in connection.read_to_end()


@pytest.mark.parametrize(
    "headers",
    [
        b"X-Long: " + b"x" * 100_000,
        b"".join(b"X-%d: y\r\n" % i for i in range(5000)),
        b"X-Never-Ends: " + b"x" * 4000 + b"y" * 2_000_000,
    ],
)
def test_too_many_bytes_of_headers_are_refused(strict: ServerProcess, headers: bytes) -> None:
    with RawConnection(strict) as connection:
        try:
            connection.send(b"GET /version HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n")
        except OSError:
            return  # it was closed while this was still being sent
        received = connection.read_to_end()
    if received:  # the end may have overtaken the answer
        assert status(received) == 431
        assert "--max-header-bytes" in error_of(received)


@pytest.mark.parametrize(("path", "fields"), [("/v1/messages?beta=true", {"type", "error"}), (COMPLETIONS, {"error"})])
def test_a_connection_is_refused_in_the_shape_of_the_api_that_is_asked(
    path: str, fields: set[str], strict: ServerProcess
) -> None:
    with RawConnection(strict) as connection:
        connection.send_head(path, "X-Long: " + "y" * 5000)
        received = connection.read_to_end()
    assert status(received) == 431
    assert set(json.loads(received.split(b"\r\n\r\n", 1)[1])) == fields


def test_a_long_line_is_refused(strict: ServerProcess) -> None:
    with RawConnection(strict) as connection:
        connection.send(b"GET /" + b"a" * 8000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(connection.read_to_end()) == 431


def test_what_is_no_http_is_refused_in_the_same_form(strict: ServerProcess) -> None:
    with RawConnection(strict) as connection:
        connection.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        received = connection.read_to_end()
    assert status(received) == 400
    assert json.loads(received.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"


BAD_CHUNK = b"zz\r\n"
BAD_TRAILERS = b"0\r\nX-Long: " + b"x" * 5000 + b"\r\n\r\n"


@pytest.mark.parametrize(("rest", "code"), [(BAD_CHUNK, 400), (BAD_TRAILERS, 431)])
@pytest.mark.parametrize("path", ["/health", "/nowhere", COMPLETIONS, "/v1/messages", "/v1/messages/nowhere"])
def test_the_body_that_is_no_http_has_one_answer(path: str, rest: bytes, code: int, strict: ServerProcess) -> None:
    with lines_in_the_log(strict), RawConnection(strict) as connection:
        connection.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + rest
        )
        ((told, body),) = split_answers(connection.read_to_end())
    assert told == code
    assert set(json.loads(body)) == ({"type", "error"} if path.startswith("/v1/messages") else {"error"})


def test_a_body_that_is_no_http_after_its_answer_has_no_second_one(strict: ServerProcess) -> None:
    with lines_in_the_log(strict), RawConnection(strict) as connection:
        connection.send_head("/nowhere", "Transfer-Encoding: chunked")
        received = b""
        while b"}" not in received:
            received += connection.read()
        connection.send(BAD_CHUNK)
        ((told, _),) = split_answers(received + connection.read_to_end())
    assert told == 404


GET_VERSION = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET /version HTTP/1.1\r\nX-Long: " + b"x" * 5000 + b"\r\n\r\n", 431),
        (b"POST /version HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + BAD_CHUNK, 400),
    ],
)
def test_requests_before_one_that_is_refused_have_their_answers_first(
    last: bytes, code: int, strict: ServerProcess
) -> None:
    with lines_in_the_log(strict), RawConnection(strict) as connection:
        connection.send(GET_VERSION * 3 + last)
        answers = split_answers(connection.read_to_end())
    assert [told for told, _ in answers] == [200, 200, 200, code]
    assert all(b"version" in body for _, body in answers[:3])
    assert b"invalid_request_error" in answers[3][1]


@pytest.mark.parametrize("last", [b"garbage\r\n\r\n", GET_VERSION + b"garbage\r\n\r\n"])
def test_an_answer_that_takes_long_comes_before_the_refusal_too(last: bytes, strict: ServerProcess) -> None:
    body = completion_body(max_tokens=300)
    with lines_in_the_log(strict), RawConnection(strict) as connection:
        connection.send_head(COMPLETIONS, f"Content-Length: {len(body)}")
        connection.send(body + last)
        (told, answer), *others, (refused, _) = split_answers(connection.read_to_end())
    assert (told, refused) == (200, 400)
    assert json.loads(answer)["usage"]["completion_tokens"] == 300
    assert [other for other, _ in others] == [200] * last.count(b"GET")
    assert has_counted_all(strict)


def test_an_answer_after_which_the_connection_closes_is_the_last(strict: ServerProcess) -> None:
    body = completion_body(max_tokens=3)
    with lines_in_the_log(strict, 0), RawConnection(strict) as connection:
        connection.send_head(COMPLETIONS, f"Content-Length: {len(body)}", "Connection: close")
        connection.send(body + b"garbage\r\n\r\n")
        assert [told for told, _ in split_answers(connection.read_to_end())] == [200]


@pytest.mark.parametrize("last", [b"garbage\r\n\r\n", GET_VERSION + b"garbage\r\n\r\n"])
def test_a_stream_whose_client_sends_no_http_is_cut_off(last: bytes, strict: ServerProcess) -> None:
    aborted = strict.metric('chairlift_requests_finished_total{reason="abort"}')
    body = completion_body(max_tokens=8000, stream=True)
    with lines_in_the_log(strict), RawConnection(strict) as connection:
        connection.send_head(COMPLETIONS, f"Content-Length: {len(body)}")
        connection.send(body)
        received = connection.read()
        while b"data: " not in received:
            received += connection.read()
        connection.send(last)
        received += connection.read_to_end()
    assert received.count(b"HTTP/1.1") == 1
    assert b"invalid_request_error" not in received
    assert b"[DONE]" not in received
    assert strict.metric('chairlift_requests_finished_total{reason="abort"}') == aborted + 1
    assert has_counted_all(strict)


def test_a_client_that_asked_for_more_and_leaves_ends_what_runs(strict: ServerProcess) -> None:
    aborted = strict.metric('chairlift_requests_finished_total{reason="abort"}')
    body = completion_body(max_tokens=8000, stream=True)
    with RawConnection(strict) as connection:
        connection.send_head(COMPLETIONS, f"Content-Length: {len(body)}")
        connection.send(body + GET_VERSION)
        received = connection.read()
        while b"data: " not in received:
            received += connection.read()
    wait_until(strict.is_idle, within_s=10)
    assert strict.metric('chairlift_requests_finished_total{reason="abort"}') == aborted + 1
    assert has_counted_all(strict)


def test_a_body_that_does_not_come_is_given_up(strict: ServerProcess) -> None:
    with RawConnection(strict) as connection:
        connection.send_head(COMPLETIONS, "Content-Length: 1000")
        connection.send(b'{"prompt": ')
        received = connection.read_to_end()
    assert status(received) == 408
    assert "11 bytes of the request body" in error_of(received)
    assert "--body-timeout" in error_of(received)


def test_bodies_in_memory_are_bounded_and_let_go(strict: ServerProcess) -> None:
    with ExitStack() as stack:
        senders = [stack.enter_context(RawConnection(strict)) for _ in range(3)]
        for sender in senders:
            sender.send_head(COMPLETIONS, "Content-Length: 200000")
            sender.send(b"x" * 120_000)
        statuses = [status(sender.read_to_end()) for sender in senders]
    assert sorted(statuses) == [408, 408, 503]
    assert httpx.post(strict.url + COMPLETIONS, json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_a_client_that_reads_nothing_is_cut_off_and_its_request_ended(strict: ServerProcess) -> None:
    aborted = strict.metric('chairlift_requests_finished_total{reason="abort"}')
    body = json.dumps({"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True, "n": 16}).encode()
    with RawConnection(strict, receive_buffer_bytes=4096) as connection:
        connection.send_head(COMPLETIONS, f"Content-Length: {len(body)}")
        connection.send(body)
        wait_until(strict.is_idle, within_s=30)
        assert strict.metric('chairlift_requests_finished_total{reason="abort"}') > aborted


def test_a_slow_reader_slows_nobody_and_gets_everything(strict: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    with RawConnection(strict, receive_buffer_bytes=4096) as slow:
        slow.send_head(COMPLETIONS, f"Content-Length: {len(data)}", "Connection: close")
        slow.send(data)
        received = slow.read(200)
        with httpx.Client(base_url=strict.url, timeout=30) as client:
            for _ in range(5):  # one piece, then somebody else's whole answer
                received += slow.read(200)
                answer = client.post(COMPLETIONS, json={"prompt": "y", "max_tokens": 50, "ignore_eos": True})
                assert answer.json()["usage"]["completion_tokens"] == 50
        received += slow.read_to_end()
    assert b"[DONE]" in received
    assert received.count(b'"finish_reason":"length"') == 1


def test_readers_of_a_chunk_a_second_slow_nobody_and_fill_no_memory() -> None:
    # Steps take their time whatever runs, so that only waiting for readers could make an answer take longer.
    flags = ("--fake-step-ms", "10", "--max-num-seqs", "32", "--served-model-name", "m" * CHUNK_BYTES)
    body = json.dumps({"prompt": "x", "max_tokens": SLOW_TOKENS, "ignore_eos": True, "stream": True}).encode()
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(*flags))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=30))

        def answer_s() -> float:
            start_s = time.monotonic()
            answer = client.post(COMPLETIONS, json={"prompt": "y", "max_tokens": 20, "ignore_eos": True})
            assert answer.json()["usage"]["completion_tokens"] == 20
            return time.monotonic() - start_s

        answer_s()
        alone_s = median(answer_s() for _ in range(5))
        before_mib = resident_mib(server.process.pid)
        readers = [stack.enter_context(RawConnection(server, receive_buffer_bytes=4096)) for _ in range(SLOW_READERS)]
        for reader in readers:
            reader.send_head(COMPLETIONS, f"Content-Length: {len(body)}")
            reader.send(body)
        received = [len(reader.read(CHUNK_BYTES)) for reader in readers]
        beside_s: list[float] = []
        most_mib, next_read_s = 0.0, time.monotonic() + 1
        # What is generated for them is all there long before they have read it.
        while server.metric("chairlift_num_requests_running") > 0:
            beside_s.append(answer_s())
            most_mib = max(most_mib, resident_mib(server.process.pid))
            if time.monotonic() > next_read_s:
                next_read_s += 1
                received = [
                    have + len(reader.read(CHUNK_BYTES)) for have, reader in zip(received, readers, strict=True)
                ]
        unread_mib = (SLOW_READERS * SLOW_TOKENS * CHUNK_BYTES - sum(received)) / MIB
        print(
            f"alone {alone_s:.3f} s, beside {beside_s}; {most_mib - before_mib:.1f} MiB more, {unread_mib:.0f} unread"
        )
        assert len(beside_s) >= 5
        assert median(beside_s) < 1.5 * alone_s
        assert max(received) < SLOW_TOKENS * CHUNK_BYTES / 10
        assert unread_mib > 100
        assert most_mib - before_mib < 16


@pytest.mark.parametrize("path", ["/nowhere", "/version", COMPLETIONS])
def test_an_answer_before_the_end_of_the_body_is_not_lost(strict: ServerProcess, path: str) -> None:
    # A socket that is closed with bytes unread is reset, and takes with it what the client has not read yet.
    for _ in range(10):
        with RawConnection(strict) as connection:
            body = b"x" * 5_000_000
            connection.send_head(path, f"Content-Length: {len(body)}", "Connection: close")
            try:
                connection.send(body)
            except ConnectionError:
                pytest.fail("the connection was reset while the body was sent")
            assert status(connection.read_to_end()) in (404, 405, 413)


def test_connections_are_bounded(strict: ServerProcess) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(strict)) for _ in range(60)]
        first = [connection.read_to_end() for connection in connections]
    refused = [received for received in first if received]
    assert 20 <= len(refused) <= 60
    assert all(status(received) == 503 and b"--max-connections" in received for received in refused)
    assert httpx.get(strict.url + "/health").status_code == 200
