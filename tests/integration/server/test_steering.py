"""Tenants, deadlines, explanations and changes at run time, as clients and an administrator see them.

The server has one slot, so that a request that never ends keeps everybody else waiting until it is told to leave.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from tests.integration.server.server_process import ServerProcess, wait_until

COMPLETIONS = "/v1/completions"
ID_HEADER = "x-chairlift-request-id"
SHORT = {"prompt": "short", "max_tokens": 2, "ignore_eos": True}
ENDLESS = {"prompt": "endless", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
ONE_SLOT = ("--max-num-seqs", "1", "--guaranteed-share", "0")
"""Without a guaranteed share nobody who waits gets the slot before it is free."""
ADMIN = {"Authorization": "Bearer sk-admin"}
TENANTS = """
[tenants.search]
keys = ["sk-search-1", { env = "SECOND_KEY" }]
most_urgent_tier = -1

[tenants.batch]
keys = ["sk-batch"]
most_urgent_tier = 2
max_num_queued_reqs = 1
"""


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with one slot, tenants and an administrator."""
    file = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    file.write_text(TENANTS)
    flags = (*ONE_SLOT, "--max-model-len", "65536", "--kv-cache-memory", "256MiB", "--tenants", str(file))
    env = {"SECOND_KEY": "sk-search-2", "CHAIRLIFT_ADMIN_API_KEY": "sk-admin", "CHAIRLIFT_API_KEY": "sk-plain"}
    with ServerProcess(*flags, env=env) as process:
        yield process
        shown = "\n".join([*process.log, *process.announcement, httpx.get(f"{process.url}/metrics").text])
    for key in ("sk-search-1", "sk-search-2", "sk-batch", "sk-plain", "sk-admin"):
        assert key not in shown + "\n".join(process.log)


@pytest.fixture
def client(steered: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=steered.url, timeout=60, headers=bearer("sk-plain")) as client:
        yield client
        wait_until(steered.is_idle, within_s=10)


@contextmanager
def occupied(client: httpx.Client, key: str = "sk-plain") -> Generator[str]:
    """The only slot is taken meanwhile; the id of the request that has it."""
    with client.stream("POST", COMPLETIONS, json=ENDLESS, headers=bearer(key)) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()  # the response would be closed with it
        next(lines)
        yield response.headers[ID_HEADER]
        del lines


@contextmanager
def waiting(client: httpx.Client, key: str, **fields: object) -> Generator[str]:
    """A request that waits meanwhile; its id."""
    body = {**SHORT, "stream": True, **fields}
    with client.stream("POST", COMPLETIONS, json=body, headers=bearer(key)) as response:
        assert response.status_code == 200, response.read()
        yield response.headers[ID_HEADER]


def metric(client: httpx.Client, start: str) -> float:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"chairlift_{start} ")]
    return float(lines[0].rsplit(" ", 1)[1]) if lines else 0.0


def test_a_key_decides_tenant_and_most_urgent_tier(client: httpx.Client) -> None:
    asked = {"sk-search-1": (-5, "search", -1), "sk-search-2": (3, "search", 3), "sk-batch": (0, "batch", 2),
             "sk-plain": (-1, "", 0)}  # fmt: skip
    with occupied(client):
        for key, (priority, tenant, tier) in asked.items():
            # A more urgent one displaces the one that runs, so it must not end by itself either.
            with waiting(client, key, priority=priority, max_tokens=60_000) as request_id:
                (choice,) = client.get(f"/v1/requests/{request_id}", headers=bearer(key)).json()["choices"]
                assert (choice["tenant"], choice["tier"]) == (tenant, tier)
    assert client.post(COMPLETIONS, json=SHORT, headers=bearer("sk-none")).status_code == 401
    assert client.post(COMPLETIONS, json=SHORT, headers=bearer("sk-admin")).status_code == 401
    assert metric(client, 'tenant_requests_finished_total{reason="abort",tenant="batch",tier="2"}') == 1


def test_a_service_tier_is_granted_as_far_as_the_key_may(client: httpx.Client) -> None:
    asked = [
        ("sk-search-1", "priority", "priority", -1),
        ("sk-search-1", "auto", "default", 0),
        ("sk-search-1", "flex", "flex", 1),
        ("sk-plain", "priority", "default", 0),
        ("sk-batch", "priority", "flex", 2),
    ]
    for key, wanted, granted, _ in asked:
        answer = client.post(COMPLETIONS, json={**SHORT, "service_tier": wanted}, headers=bearer(key))
        assert answer.json()["service_tier"] == granted
    with occupied(client):
        for key, wanted, _, tier in asked:
            # One that is more urgent displaces the one that runs, so it must not end by itself either.
            with waiting(client, key, service_tier=wanted, max_tokens=60_000) as request_id:
                (choice,) = client.get(f"/v1/requests/{request_id}", headers=bearer(key)).json()["choices"]
                assert choice["tier"] == tier


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_cancelled_by_the_administrator_and_by_no_other_key(client: httpx.Client, stream: bool) -> None:
    label = f"to be cancelled {stream}"
    headers = {**bearer("sk-search-1"), "X-Request-Id": label}
    with occupied(client), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, COMPLETIONS, json={**SHORT, "stream": stream}, headers=headers)
        mine = f"/v1/requests/{label}"
        wait_until(lambda: client.get(mine, headers=bearer("sk-search-1")).status_code == 200, within_s=10)
        path = f"/v1/requests/{client.get(mine, headers=bearer('sk-search-1')).json()['id']}"
        for key in ("sk-search-2", "sk-batch", "sk-plain"):
            assert client.delete(path, headers=bearer(key)).status_code == 404
            assert client.delete(mine, headers=bearer(key)).status_code == 404
        assert client.delete(path, headers=bearer("sk-none")).status_code == 401
        assert client.get(path, headers=bearer("sk-search-1")).json()["choices"][0]["phase"] == "waiting"
        cancelled = client.delete(path, headers=ADMIN)
        assert (cancelled.status_code, cancelled.json()["cancelled"]) == (200, True)
        ended = answer.result(timeout=30)
    assert "request_cancelled" in ended.text
    assert ended.status_code == 200 if stream else ended.status_code >= 400


def test_a_waiting_request_says_why_to_its_sender_and_the_administrator(
    client: httpx.Client, steered: ServerProcess
) -> None:
    with occupied(client), waiting(client, "sk-batch") as request_id:
        path = f"/v1/requests/{request_id}"
        for headers in (bearer("sk-batch"), ADMIN):
            answer = client.get(path, headers=headers).json()
            (choice,) = answer["choices"]
            assert answer["id"] == request_id
            assert (choice["phase"], choice["tenant"]) == ("waiting", "batch")
            assert choice["reason"]
        for key in ("sk-search-1", "sk-plain"):
            assert client.get(path, headers=bearer(key)).status_code == 404
        listed = client.get("/v1/requests", headers=ADMIN).json()
        assert (listed["num_running"], listed["num_waiting"]) == (1, 1)
        assert [entry["id"] for entry in listed["waiting"]] == [request_id]
        assert listed["running"][0]["choice"]["phase"] == "running"

        command = [sys.executable, "-m", "chairlift", "explain", request_id, "--url", steered.url]
        env = {**os.environ, "CHAIRLIFT_API_KEY": "sk-batch"}
        told = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
        assert request_id in told
        assert "waits for a slot" in told
        assert "tenant batch" in told
        stranger = {**env, "CHAIRLIFT_API_KEY": "sk-search-1"}
        refused = subprocess.run(command, env=stranger, capture_output=True, text=True, check=False, timeout=60)
        assert refused.returncode == 1
        assert "no live request of yours" in refused.stderr
    wait_until(lambda: client.get(path, headers=ADMIN).status_code == 404, within_s=10)


def test_a_first_token_that_cannot_come_in_time_is_refused_and_not_asked_for_again(client: httpx.Client) -> None:
    """Given up while it waits (504), or refused at once if the wait can be predicted already (503)."""
    name = 'slo_requests_total{outcome="missed",tenant="default",tier="0"}'
    before = metric(client, name)
    with occupied(client):
        refused = client.post(COMPLETIONS, json={**SHORT, "ttft_deadline_ms": 300})
        error = refused.json()["error"]
        if refused.status_code == 504:
            assert error["type"] == "deadline_exceeded"
            assert "ttft_deadline_ms is 300" in error["message"]
        else:
            assert (refused.status_code, error["type"]) == (503, "overloaded_error")
            assert int(refused.headers["retry-after"]) >= 1
        with client.stream("POST", COMPLETIONS, json={**SHORT, "stream": True, "deadline_ms": 300}) as response:
            lines = [line for line in response.iter_lines() if line]
        if response.status_code == 200:
            assert json.loads(lines[0].removeprefix("data: "))["error"]["type"] == "deadline_exceeded"
            assert lines[1:] == ["data: [DONE]"]
        else:
            assert response.status_code == 503
        api = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="sk-plain", max_retries=0)
        with api, pytest.raises(openai.InternalServerError):
            api.completions.create(model="fake", prompt="x", extra_body={"ttft_deadline_ms": 50})
    assert metric(client, name) == before + 3


def test_at_its_deadline_a_running_request_is_answered_with_what_is_there(client: httpx.Client) -> None:
    body = {**ENDLESS, "stream": False, "deadline_ms": 400}
    answer = client.post(COMPLETIONS, json=body)
    assert answer.status_code == 200
    (choice,) = answer.json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")
    assert 0 < answer.json()["usage"]["completion_tokens"] < 60_000
    assert metric(client, 'requests_finished_total{reason="deadline"}') >= 1


def test_a_deadline_that_is_kept_is_counted_as_attained(client: httpx.Client) -> None:
    name = 'slo_requests_total{outcome="met",tenant="search",tier="0"}'
    first_tokens = 'tenant_time_to_first_token_seconds_count{tenant="search",tier="0"}'
    num_met, num_first = metric(client, name), metric(client, first_tokens)
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="sk-search-2", max_retries=0) as api:
        answer = api.completions.create(
            model="fake", prompt="x", max_tokens=3, extra_body={"ttft_deadline_ms": 30_000, "deadline_ms": 60_000}
        )
        assert answer.choices[0].finish_reason in ("length", "stop")
        with pytest.raises(openai.BadRequestError, match="deadline_ms"):
            api.completions.create(model="fake", prompt="x", extra_body={"deadline_ms": -5})
    assert metric(client, name) == num_met + 1
    assert metric(client, 'goodput_tokens_total{tenant="search",tier="0"}') > 0
    assert metric(client, first_tokens) == num_first + 1


def test_a_tenant_s_own_cap_refuses_only_that_tenant(client: httpx.Client) -> None:
    with occupied(client), waiting(client, "sk-batch"):
        refused = client.post(COMPLETIONS, json=SHORT, headers=bearer("sk-batch"))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "max_num_queued_reqs" in refused.json()["error"]["message"]
        with waiting(client, "sk-plain"):
            pass


def test_settings_change_while_requests_run_and_survive_the_engine(
    client: httpx.Client, steered: ServerProcess
) -> None:
    def settings() -> dict:
        return client.get("/admin/scheduler", headers=ADMIN).json()["settings"]

    def change(**changes: object) -> httpx.Response:
        return client.patch("/admin/scheduler", json=changes, headers=ADMIN)

    assert client.patch("/admin/scheduler", json={"watermark": 0.1}).status_code == 401
    before = settings()
    assert (before["scheduling_policy"], before["tenants"]["search"]["most_urgent_tier"]) == ("fcfs", -1)
    for wrong, said in (
        ({"scheduling_policy": "fcsf"}, "--scheduling-policy must be one of"),
        ({"watermark": 2}, "--watermark must be at most 0.9, got 2"),
        ({"max_num_seqs": 2}, "--max-num-seqs"),
        ({"page_size": 8}, "--page-size cannot be changed while running"),
        ({"watermrk": 0.1}, "did you mean watermark?"),
        ({"tenants": {"search": {"weight": 0}}}, "tenants.search weight must be a positive number, got 0"),
        ({"watermark": 0.2, "max_num_batched_tokens": 1}, "--max-num-batched-tokens"),
    ):
        refused = change(**wrong)
        assert refused.status_code == 400, wrong
        assert said in refused.json()["error"]["message"]
    assert settings() == before

    with occupied(client), waiting(client, "sk-plain") as request_id:
        changed = change(
            tenant_order="fair", max_num_queued_reqs=7, tenants={"search": {"weight": 3, "most_urgent_tier": 1}}
        )
        assert changed.status_code == 200, changed.text
        now = changed.json()["settings"]
        assert (now["tenant_order"], now["max_num_queued_reqs"]) == ("fair", 7)
        assert now["tenants"]["search"]["weight"] == 3
        assert now["tenants"]["batch"] == before["tenants"]["batch"]
        assert client.get(f"/v1/requests/{request_id}").status_code == 200
        with waiting(client, "sk-search-1", priority=-1) as other:
            (choice,) = client.get(f"/v1/requests/{other}", headers=ADMIN).json()["choices"]
            assert choice["tier"] == 1
    assert metric(client, "scheduler_reconfigurations_total") == 1
    assert any("changed=tenant_order before=none now=fair" in line for line in steered.log)

    os.kill(steered.engine_process_id(), signal.SIGKILL)
    wait_until(lambda: steered.metric("chairlift_engine_restarts_total") == 1, within_s=20)
    wait_until(lambda: client.get("/health").status_code == 200, within_s=20)
    assert settings() == now
    assert change(tenant_order="none", max_num_queued_reqs=None, tenants={"search": None}).status_code == 200
    assert settings()["max_num_queued_reqs"] is None


def test_administration_is_off_without_its_key_and_priority_is_clamped() -> None:
    with ServerProcess(*ONE_SLOT, "--queue-timeout", "0.3") as server, ThreadPoolExecutor(1) as pool:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            assert client.get("/admin/scheduler").status_code == 404
            assert client.get("/v1/requests").status_code == 404
            with occupied(client):
                with waiting(client, "none", priority=-7) as request_id:
                    (choice,) = client.get(f"/v1/requests/{request_id}").json()["choices"]
                    assert choice["tier"] == 0
                timed_out = pool.submit(client.post, COMPLETIONS, json=SHORT).result()
                assert timed_out.status_code == 503
                assert int(timed_out.headers["retry-after"]) >= 1
                assert "--queue-timeout" in timed_out.json()["error"]["message"]
        assert server.metric('chairlift_requests_finished_total{reason="timeout"}') == 1


def test_a_tenants_file_that_cannot_work_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[tenants.a]\nweight = -1\nkeys = ['sk-hidden']\n")
    command = [sys.executable, "-m", "chairlift", "serve", "--executor", "fake", "--tenants", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "[tenants.a] weight must be a positive number, got -1" in done.stderr
    assert "sk-hidden" not in done.stderr
