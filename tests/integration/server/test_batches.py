"""Files and batches with the OpenAI client: results, faults of single lines, cancelling, limits, and restarts."""

import json
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.server.raw_http import Heartbeat, RawConnection
from tests.integration.server.server_process import ServerProcess, wait_until

ENDPOINT = "/v1/completions"
MIB = 2**20
LONGEST_WAIT_S = 0.05
ROUNDS = 3
"""The median of them counts: a busy machine delays some, a loop that stands still delays all."""
ENDED = {"failed", "completed", "expired", "cancelled"}


def line(number: int, **body: Any) -> dict[str, Any]:
    fields = {"prompt": f"prompt {number}", "max_tokens": 5, "temperature": 0, "ignore_eos": True, **body}
    return {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": fields}


def upload(client: Any, lines: list[Any]) -> str:
    content = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    return client.files.create(file=("requests.jsonl", content.encode()), purpose="batch").id


def start(client: Any, lines: list[Any], window: str = "24h", endpoint: str = ENDPOINT) -> str:
    file_id = upload(client, lines)
    return client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window=window).id


def ended(client: Any, batch_id: str) -> Any:
    wait_until(lambda: client.batches.retrieve(batch_id).status in ENDED, within_s=30)
    return client.batches.retrieve(batch_id)


def num_completed(client: Any, batch_id: str) -> int:
    return client.batches.retrieve(batch_id).request_counts.completed


def results(client: Any, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    found = map(json.loads, client.files.content(file_id).text.splitlines())
    return {one["custom_id"]: one["response"] for one in found}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = str(tmp_path_factory.mktemp("batches"))
    flags = ("--batch-dir", folder, "--max-batch-requests", "50", "--max-batch-file-bytes", str(32 * MIB))
    # One slot, so that whoever is not first has to wait; and uploads that stop are soon cut off.
    with ServerProcess(*flags, "--max-num-seqs", "1", "--body-timeout", "2") as process:
        yield process
        wait_until(process.is_idle, within_s=10)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_batch_answers_as_the_endpoint_does(client: Any) -> None:
    lines = [line(number) for number in range(20)]
    batch = ended(client, start(client, [*lines, line(99, prompt=[10**6])]))
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (21, 20, 1)
    answers = results(client, batch.output_file_id)
    assert set(answers) == {one["custom_id"] for one in lines}
    for one in lines:
        direct = client.completions.create(
            model="fake", **{k: v for k, v in one["body"].items() if k != "ignore_eos"}, extra_body={"ignore_eos": True}
        )
        answer = answers[one["custom_id"]]
        assert answer["status_code"] == 200
        assert answer["body"]["choices"][0]["text"] == direct.choices[0].text
    refused = results(client, batch.error_file_id)
    assert refused["line-99"]["status_code"] == 400
    assert batch.id in [one.id for one in client.batches.list()]


def test_files_expire_when_a_client_says_so(client: Any) -> None:
    soon = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("f.jsonl", json.dumps(line(1)).encode()), purpose="batch", expires_after=soon)
    assert file.expires_at == file.created_at + 3600
    made = client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="1h", output_expires_after=soon
    )
    answers = client.files.retrieve(ended(client, made.id).output_file_id)
    assert answers.expires_at == answers.created_at + 3600


def test_a_batch_makes_vectors_too(client: Any) -> None:
    endpoint = "/v1/embeddings"
    texts = [f"text {number}" for number in range(5)]
    lines = [
        {"custom_id": text, "method": "POST", "url": endpoint, "body": {"model": "fake", "input": text}}
        for text in (*texts, "")
    ]
    batch = ended(client, start(client, lines, endpoint=endpoint))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (5, 1)
    answers = results(client, batch.output_file_id)
    direct = client.embeddings.create(model="fake", input=texts)
    assert [answers[text]["body"]["data"][0]["embedding"] for text in texts] == [one.embedding for one in direct.data]
    assert results(client, batch.error_file_id)[""]["body"]["error"]["param"] == "input"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "empty_file"),
        (["no json"], "invalid_json_line"),
        ([line(1), line(1)], "duplicate_custom_id"),
        ([{**line(1), "url": "/v1/chat/completions"}], "invalid_url"),
        ([{**line(1), "url": "/admin/scheduler"}], "invalid_url"),
        ([line(1, stream=True)], "invalid_request"),
        ([line(number) for number in range(51)], "too_many_lines"),
    ],
)
def test_an_input_with_a_wrong_line_fails_as_a_whole(client: Any, lines: list[Any], code: str) -> None:
    batch = ended(client, start(client, lines))
    assert batch.status == "failed"
    assert batch.errors.data[0].code == code


def test_a_batch_is_cancelled_and_what_is_done_can_be_read(client: Any) -> None:
    batch_id = start(client, [line(number, max_tokens=1500) for number in range(50)])
    wait_until(lambda: client.batches.retrieve(batch_id).status != "validating", within_s=30)
    client.batches.cancel(batch_id)
    batch = ended(client, batch_id)
    assert batch.status == "cancelled"
    assert len(results(client, batch.output_file_id)) == batch.request_counts.completed < 50


@pytest.mark.parametrize("wish", [{}, {"priority": -1, "service_tier": "priority"}], ids=["no wish", "a wish"])
def test_others_come_before_a_batch(wish: dict[str, Any], client: Any) -> None:
    """Sixteen lines are queued for the only slot when somebody comes who has no part in the batch."""
    batch_id = start(client, [line(number, max_tokens=300, **wish) for number in range(50)])
    wait_until(lambda: num_completed(client, batch_id) >= 2, within_s=30)
    num_before = num_completed(client, batch_id)
    answer = client.completions.create(model="fake", prompt="urgent", max_tokens=4)
    num_after = num_completed(client, batch_id)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert client.batches.retrieve(batch_id).status == "in_progress"
    assert num_after - num_before <= 4  # whoever waits for all that are queued sees fifteen go first
    client.batches.cancel(batch_id)
    ended(client, batch_id)


def long_line(number: int, field: bytes, num_bytes: int, unit: bytes) -> str:
    raw = json.dumps(line(number)).encode()
    return raw.replace(b'"max_tokens"', field % (unit * (num_bytes // len(unit))) + b', "max_tokens"').decode()


HEAVY = {
    "one line of 20 MiB": ([long_line(1, b'"metadata": [%s1]', 20 * MIB, b"[],")], "line_too_long"),
    "lines full of values": (
        [long_line(number, b'"metadata": [%s1]', 4 * MIB - 300, b"[],") for number in range(4)],
        "too_many_values",
    ),
    "long texts": ([long_line(number, b'"user": "%s"', MIB, b"abcd ") for number in range(16)], None),
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_large_file_keeps_nobody_waiting(name: str, client: Any, server: ServerProcess) -> None:
    lines, code = HEAVY[name]
    worst: list[float] = []
    for _ in range(ROUNDS):
        with Heartbeat.watching(server) as heartbeat:
            batch = ended(client, start(client, lines))
        if code is None:
            assert batch.status == "completed"
        else:
            assert (batch.status, batch.errors.data[0].code) == ("failed", code)
        worst.append(heartbeat.worst_stall_s)
    assert statistics.median(worst) < LONGEST_WAIT_S, worst


def test_half_an_upload_is_refused_once_it_stops(server: ServerProcess) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"y" * (2 * MIB)
    with RawConnection(server) as connection:
        kind = "Content-Type: multipart/form-data; boundary=x"
        connection.send_head("/v1/files", kind, f"Content-Length: {4 * MIB}", method="POST")
        connection.send(part)
        answer = connection.read_to_end()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"--body-timeout" in answer


def test_files_are_kept_shown_and_deleted(client: Any, server: ServerProcess) -> None:
    file_id = upload(client, [line(1)])
    assert client.files.retrieve(file_id).filename == "requests.jsonl"
    assert file_id in [file.id for file in client.files.list()]
    assert json.loads(client.files.content(file_id).text) == line(1)
    assert client.files.delete(file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file_id)
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h")
    with pytest.raises(openai.APIStatusError) as caught:
        client.files.create(file=("big.jsonl", b"x" * (33 * MIB)), purpose="batch")
    assert caught.value.status_code == 413
    with httpx.Client(base_url=server.url) as http:
        for name in ("../../etc/passwd", "..%2f..%2fetc%2fpasswd", "file-0.json"):
            assert http.get(f"/v1/files/{name}/content").status_code == 404
        assert http.post("/v1/files", content=b"nothing").status_code == 400
        for body in ({"completion_window": "1000h"}, {"completion_window": "soon"}, {"endpoint": "/v1/embeddings"}):
            fields = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h", **body}
            assert http.post("/v1/batches", json=fields).status_code in (400, 404)


def test_a_batch_goes_on_after_every_end_of_the_server_and_no_line_is_answered_twice(tmp_path: Path) -> None:
    """It is cut off by SIGTERM, killed, and drained by SIGTERM; none of this is a fault of any request."""
    lines = [line(place, max_tokens=250) for place in range(24)]
    batch_id, num_done = "", 0
    batch: Any = None
    answered: list[str] = []
    for number, timeout_s in ((signal.SIGTERM, "0"), (signal.SIGKILL, "0"), (signal.SIGTERM, "20"), (None, "0")):
        flags = ("--batch-dir", str(tmp_path), "--batch-concurrency", "2", "--shutdown-timeout", timeout_s)
        with ServerProcess(*flags) as process, openai.OpenAI(base_url=f"{process.url}/v1", api_key="none") as client:
            batch_id = batch_id or start(client, lines)
            if number is None:
                batch = ended(client, batch_id)
                answered = client.files.content(batch.output_file_id).text.splitlines()
                continue
            wait_until(lambda: num_completed(client, batch_id) >= num_done + 2, within_s=30)  # noqa: B023
            process.send_signal(number)
            process.process.wait(30)
            num_done = sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("batches/*.out"))
            assert num_done < len(lines)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (24, 0)
    assert sorted(json.loads(one)["custom_id"] for one in answered) == sorted(one["custom_id"] for one in lines)


def test_without_a_folder_there_are_no_batches(running_server: ServerProcess) -> None:
    with httpx.Client(base_url=running_server.url) as http:
        answer = http.get("/v1/batches")
        assert answer.status_code == 404
        assert "--batch-dir" in answer.json()["error"]["message"]
