import httpx
import pytest
from click.testing import CliRunner, Result

from chairlift.cli.explain import describe, explain

CHOICE = {
    "index": 0,
    "phase": "waiting",
    "blocked_on": "pages",
    "reason": "waits for 3 KV pages; 1 are available",
    "tier": 1,
    "tenant": "batch",
    "waited_s": 1.26,
    "position": 2,
    "num_tokens_ahead": 30,
    "predicted_wait_s": 4.0,
    "num_prompt_tokens": 7,
    "num_computed_tokens": 5,
    "num_output_tokens": 1,
    "max_tokens": 16,
    "num_kv_pages": 1,
    "num_preemptions": 2,
}
DETAILS = {"id": "cmpl-1", "label": "mine", "ttft_deadline_ms": None, "deadline_ms": 1.5e6, "choices": [CHOICE]}


class Server:
    """Stands in for a server: keeps what it was asked, and answers one thing."""

    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body
        self.asked: list[tuple[str, dict]] = []

    def get(self, url: str, headers: dict, timeout: float) -> httpx.Response:
        assert timeout > 0
        self.asked.append((url, headers))
        return httpx.Response(self.status, json=self.body)


def run(monkeypatch: pytest.MonkeyPatch, server: Server, *words: str, **env: str) -> Result:
    monkeypatch.setattr(httpx, "get", server.get)
    return CliRunner().invoke(explain, list(words), env=env)


def test_a_request_is_described_in_words_and_numbers() -> None:
    text = "\n".join(describe(DETAILS))
    for said in (
        "request cmpl-1 (mine)",
        "wanted within deadline_ms 1500000",
        "choice 0: waits for 3 KV pages; 1 are available",
        "tier 1, tenant batch, waited 1.3 s, 2 requests before it, 30 tokens before it, next token in about 4.0 s",
        "5 of 8 tokens computed in 1 page, preempted 2 times",
    ):
        assert said in text


def test_names_of_others_do_nothing_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = {**CHOICE, "tenant": "[b]\x1b[2J"}
    said = run(monkeypatch, Server(200, {**DETAILS, "label": "\x1b]0;x\x07", "choices": [choice]}), "cmpl-1").output
    assert "\x1b" not in said
    assert r"tenant [b]\x1b[2J" in said


def test_what_is_not_known_is_left_out() -> None:
    unknown = {**CHOICE, "tenant": "", "position": None, "num_tokens_ahead": None, "predicted_wait_s": None}
    text = "\n".join(describe({**DETAILS, "label": None, "choices": [unknown]}))
    assert "before it" not in text
    assert "tenant default" in text
    assert "None" not in text


def test_the_administrator_s_key_comes_first_and_ids_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(200, DETAILS)
    keys = {"CHAIRLIFT_API_KEY": "k", "CHAIRLIFT_ADMIN_API_KEY": "a"}
    assert run(monkeypatch, server, "a/b?c", "--url", "http://x:1/v1/", **keys).exit_code == 0
    assert run(monkeypatch, server, "id", CHAIRLIFT_API_KEY="k", CHAIRLIFT_ADMIN_API_KEY="").exit_code == 0
    assert server.asked == [
        ("http://x:1/v1/requests/a%2Fb%3Fc", {"Authorization": "Bearer a"}),
        ("http://127.0.0.1:8000/v1/requests/id", {"Authorization": "Bearer k"}),
    ]


def test_what_the_administrator_s_key_does_not_find_is_asked_with_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get(url: str, headers: dict, timeout: float) -> httpx.Response:
        asked.append(headers["Authorization"])
        return httpx.Response(200, json=DETAILS) if headers["Authorization"] == "Bearer k" else httpx.Response(404)

    monkeypatch.setattr(httpx, "get", get)
    result = CliRunner().invoke(explain, ["mine"], env={"CHAIRLIFT_API_KEY": "k", "CHAIRLIFT_ADMIN_API_KEY": "a"})
    assert (result.exit_code, asked) == (0, ["Bearer a", "Bearer k"])


def test_one_is_not_said_as_several() -> None:
    single = {**CHOICE, "position": 1, "num_tokens_ahead": 1, "num_preemptions": 1}
    text = "\n".join(describe({**DETAILS, "choices": [single]}))
    assert "1 request before it, 1 token before it" in text
    assert text.endswith("in 1 page, preempted 1 time")


@pytest.mark.parametrize("body", [{"error": {"message": "no live request"}}, {"detail": 3}, []])
def test_a_refusal_says_what_the_server_said(monkeypatch: pytest.MonkeyPatch, body: object) -> None:
    result = run(monkeypatch, Server(404, body), "id")
    assert result.exception is not None
    expected = "no live request" if isinstance(body, dict) and "error" in body else "the server answered 404"
    assert str(result.exception) == expected


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[::1"])
def test_a_server_that_is_not_there_is_said_without_a_traceback(url: str) -> None:
    result = CliRunner().invoke(explain, ["id", "--url", url])
    assert "no server answers at" in str(result.exception)


@pytest.mark.parametrize("body", [[], {"id": 5}, {"id": "x", "choices": [{}]}, "hello"])
def test_another_server_s_answer_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch, body: object) -> None:
    result = run(monkeypatch, Server(200, body), "id")
    assert "is no Chairlift server" in str(result.exception)


def test_an_answer_that_is_no_json_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, text="<html>"))
    result = CliRunner().invoke(explain, ["id"])
    assert "its answer is no JSON" in str(result.exception)
