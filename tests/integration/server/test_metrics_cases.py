"""What metrics and logs say after trouble, on a server whose KV memory is too small for its requests. Case numbers are
those of the issue list of comparable engines."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.server.server_process import ServerProcess, wait_until

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def small() -> Iterator[ServerProcess]:
    flags = (
        "--kv-cache-memory",
        "512KiB",
        "--max-num-seqs",
        "8",
        "--enable-log-requests",
        "--log-prompt-chars",
        "100",
        "--log-format",
        "json",
    )
    with ServerProcess(*flags) as server:
        yield server
        wait_until(server.is_idle, within_s=10)


def ask(server: ServerProcess, **body: object) -> httpx.Response:
    return httpx.post(server.url + COMPLETIONS, json={"ignore_eos": True, **body}, timeout=60)


def test_b49_a_quotation_in_the_log_never_cuts_a_character(small: ServerProcess) -> None:
    # One token is one byte here, so that two of three shifts have the 100th token within a character.
    prompts = {f"b49 {unit} {shift}": "x" * shift + unit * 100 for unit in ("漢", "🙂", "a") for shift in range(3)}
    prompts["b49 short"] = "漢字" * 16
    for label, prompt in prompts.items():
        name = label.encode("unicode_escape").decode()
        body = {"prompt": prompt, "max_tokens": 1}
        sent = httpx.post(small.url + COMPLETIONS, json=body, headers={"X-Request-Id": name}, timeout=60)
        assert sent.status_code == 200

    def quotes() -> dict[str, str]:
        lines = (json.loads(line) for line in small.log if "request ended" in line)
        return {line["label"].encode().decode("unicode_escape"): line["prompt"] for line in lines if "label" in line}

    wait_until(lambda: len(quotes()) == len(prompts), within_s=5)
    for label, quote in quotes().items():
        prompt = prompts[label]
        assert prompt.startswith(quote), label
        assert min(len(prompt.encode()), 97) <= len(quote.encode())
        assert len(quote) <= 100
    assert quotes()["b49 short"] == prompts["b49 short"]
    assert quotes()["b49 a 0"] == "a" * 100
    assert not any("Traceback" in line for line in small.log)
    assert httpx.get(small.url + "/health").status_code == 200


def test_b74_gauges_fall_when_everybody_left_at_once(small: ServerProcess) -> None:
    streams = httpx.Client(timeout=30, limits=httpx.Limits(max_connections=20))
    opened = []
    for number in range(20):
        request = streams.build_request(
            "POST",
            small.url + COMPLETIONS,
            json={"prompt": f"long {number} " * 5, "max_tokens": 400, "stream": True, "ignore_eos": True},
        )
        opened.append(streams.send(request, stream=True))
    wait_until(lambda: small.metric("chairlift_num_requests_running") > 0, within_s=5)
    for response in opened:
        response.close()
    streams.close()
    # Nothing else is sent meanwhile but the question itself.
    wait_until(small.is_idle, within_s=2)


def test_b78_preemptions_are_counted_and_each_request_is_timed_once(small: ServerProcess) -> None:
    names = ("time_to_first_token", "request_queue_time", "e2e_request_latency", "inter_token_latency")

    def counts_and_sums() -> dict[str, tuple[float, float]]:
        return {
            name: (
                small.metric(f"chairlift_{name}_seconds_count"),
                small.metric(f"chairlift_{name}_seconds_sum"),
            )
            for name in names
        }

    def by_cause() -> float:
        page = httpx.get(small.url + "/metrics").text
        return sum(map(float, re.findall(r"^chairlift_preemptions_by_cause_total\{.*\} (\S+)$", page, re.MULTILINE)))

    before, preemptions, told = counts_and_sums(), small.metric("chairlift_num_preemptions_total"), by_cause()
    # In one request: however busy the machine is, all are there before the first one is done.
    answer = ask(small, prompt=[f"prompt {number} " * 4 for number in range(8)], max_tokens=120)
    assert answer.json()["usage"]["completion_tokens"] == 120 * 8
    wait_until(small.is_idle, within_s=5)
    num_preemptions = small.metric("chairlift_num_preemptions_total") - preemptions
    assert num_preemptions > 0
    assert by_cause() - told == num_preemptions
    after = counts_and_sums()
    counts = {name: after[name][0] - before[name][0] for name in names}
    assert counts == {
        "time_to_first_token": 8,
        "request_queue_time": 8,
        "e2e_request_latency": 8,
        "inter_token_latency": 8 * 119,
    }
    sums = {name: after[name][1] - before[name][1] for name in names}
    # A pause by preemption is in the gap between two tokens: together the gaps are all of the time after the first one.
    whole = sums["e2e_request_latency"]
    assert sums["time_to_first_token"] + sums["inter_token_latency"] == pytest.approx(whole, rel=0.02)
