"""Files and batches with the OpenAI client: results, faults of single lines, cancelling, windows, and restarts."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.server.server_process import ServerProcess, wait_until

ENDPOINT = "/v1/completions"
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


def results(client: Any, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    found = map(json.loads, client.files.content(file_id).text.splitlines())
    return {one["custom_id"]: one["response"] for one in found}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = str(tmp_path_factory.mktemp("batches"))
    with ServerProcess(
        "--batch-dir", folder, "--max-batch-requests", "50", "--max-batch-file-bytes", "100000"
    ) as process:
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
        ([line(number) for number in range(51)], "invalid_request"),
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


def test_others_come_before_a_batch(client: Any, server: ServerProcess) -> None:
    batch_id = start(client, [line(number, max_tokens=1500) for number in range(40)])
    wait_until(lambda: client.batches.retrieve(batch_id).status == "in_progress", within_s=30)
    answer = client.completions.create(model="fake", prompt="urgent", max_tokens=4)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert client.batches.retrieve(batch_id).status == "in_progress"
    client.batches.cancel(batch_id)
    ended(client, batch_id)


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
        client.files.create(file=("big.jsonl", b"x" * 200_000), purpose="batch")
    assert caught.value.status_code == 413
    with httpx.Client(base_url=server.url) as http:
        for name in ("../../etc/passwd", "..%2f..%2fetc%2fpasswd", "file-0.json"):
            assert http.get(f"/v1/files/{name}/content").status_code == 404
        assert http.post("/v1/files", content=b"nothing").status_code == 400
        for body in ({"completion_window": "1000h"}, {"completion_window": "soon"}, {"endpoint": "/v1/embeddings"}):
            fields = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h", **body}
            assert http.post("/v1/batches", json=fields).status_code in (400, 404)


def test_a_batch_goes_on_after_a_restart_and_no_line_is_answered_twice(tmp_path: Path) -> None:
    flags = ("--batch-dir", str(tmp_path), "--batch-concurrency", "2", "--shutdown-timeout", "0")
    lines = [line(number, max_tokens=250) for number in range(8)]
    with ServerProcess(*flags) as process:
        client: Any = openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
        batch_id = start(client, lines)
        wait_until(lambda: client.batches.retrieve(batch_id).request_counts.completed >= 2, within_s=30)
        client.close()
        process.process.send_signal(signal.SIGKILL)
        process.process.wait(30)
    with ServerProcess(*flags) as process:
        client = openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
        batch = ended(client, batch_id)
        assert batch.status == "completed"
        answered = [
            json.loads(one)["custom_id"] for one in client.files.content(batch.output_file_id).text.splitlines()
        ]
        assert sorted(answered) == sorted(one["custom_id"] for one in lines)
        client.close()


def test_without_a_folder_there_are_no_batches(running_server: ServerProcess) -> None:
    with httpx.Client(base_url=running_server.url) as http:
        answer = http.get("/v1/batches")
        assert answer.status_code == 404
        assert "--batch-dir" in answer.json()["error"]["message"]
