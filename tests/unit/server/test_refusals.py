"""What is refused before there is an endpoint has the shape of the API that was asked."""

from typing import Any

import httpx
import pytest

from chairlift.config.sections import ServerSettings
from chairlift.errors import TooManyRequestsError
from tests.unit.server.stub_engine import StubEngine, post, request

MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
OTHERS = ("/v1/chat/completions", "/v1/messagesque")
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


def of_anthropic(answer: httpx.Response, status: int) -> str:
    """The type of an error that has Anthropic's shape and nothing else."""
    body = answer.json()
    assert (answer.status_code, set(body), body["type"]) == (status, {"type", "error"}, "error"), answer.text
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["message"]
    return body["error"]["type"]


@pytest.mark.parametrize("path", MESSAGES)
def test_a_wrong_key_is_told_in_anthropics_shape(path: str) -> None:
    for headers in ({}, {"x-api-key": "wrong"}):
        answer = post(path, ASKED, server=ServerSettings(api_key="sk"), headers=headers)
        assert of_anthropic(answer, 401) == "authentication_error"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", MESSAGES)
def test_a_name_or_a_page_that_is_not_allowed_is_told_in_anthropics_shape(path: str) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert of_anthropic(post(path, ASKED, headers=headers), 403) == "permission_error"


def test_what_the_router_refuses_is_told_in_anthropics_shape() -> None:
    assert of_anthropic(request("GET", "/v1/messages/batches"), 404) == "not_found_error"
    wrong = request("GET", "/v1/messages")
    assert of_anthropic(wrong, 405) == "invalid_request_error"
    assert wrong.headers["allow"] == "POST"


def test_what_the_endpoint_refuses_and_its_faults_are_told_in_anthropics_shape() -> None:
    large = post(MESSAGES[0], ASKED, server=ServerSettings(max_body_bytes=9))
    assert of_anthropic(large, 413) == "request_too_large"
    busy = post(MESSAGES[0], ASKED, engine=StubEngine(refuse=lambda _: TooManyRequestsError("busy", retry_after_s=7)))
    assert of_anthropic(busy, 429) == "rate_limit_error"
    assert busy.headers["retry-after"] == "7"
    broken = post(MESSAGES[0], ASKED, engine=StubEngine(refuse=lambda _: KeyError("secret")), raise_faults=False)
    assert of_anthropic(broken, 500) == "api_error"
    assert "secret" not in broken.text


@pytest.mark.parametrize("path", OTHERS)
def test_everywhere_else_errors_have_openais_shape(path: str) -> None:
    for answer in (post(path, ASKED, server=ServerSettings(api_key="sk")), post(path, {}, headers={"Host": "evil"})):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert "type" not in answer.json()
