"""What requests tell a model's own chat template, and how long it may take: real templates behind the endpoints."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.config.model_source import ModelSource
from chairlift.config.sections import LimitSettings
from chairlift.engine.tokenizer import EngineTokenizer, build_tokenizer
from tests.unit.server.stub_engine import StubEngine, post
from tests.unit.tokenization.vocabularies import byte_level_backend

TEMPLATE = """{{ persona | default('nobody') }}/{{ enable_thinking | default('unset') }}/{{ reasoning_effort |
default('unset') }}/{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}{%
if add_generation_prompt %}go{% endif %}"""
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HELLO: list[Any] = [{"role": "user", "content": "hi"}]


def tokenizer_with(folder: Path, template: str, **limits: Any) -> EngineTokenizer:
    """That of a model whose template this is."""
    byte_level_backend().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return build_tokenizer(ModelSource("folder", folder, "test"), None, LimitSettings(**limits))


def prompt_of(tokenizer: EngineTokenizer, path: str, **fields: object) -> str:
    engine = StubEngine(tokenizer=tokenizer)  # type: ignore[arg-type]
    answer = post(path, {"max_tokens": 1, "messages": HELLO, **fields}, engine=engine)
    assert answer.status_code == 200, answer.text
    return tokenizer.decode(engine.submitted[0]["prompt"])


@pytest.mark.parametrize(
    ("path", "fields", "begins"),
    [
        ("/v1/chat/completions", {}, "nobody/unset/unset/"),
        ("/v1/chat/completions", {"chat_template_kwargs": {"persona": "a <b>"}}, "a <b>/unset/unset/"),
        ("/v1/chat/completions", {"chat_template_kwargs": {"enable_thinking": False}}, "nobody/False/unset/"),
        ("/v1/chat/completions", {"reasoning_effort": "low"}, "nobody/unset/low/"),
        ("/v1/chat/completions", {"reasoning_effort": "none"}, "nobody/False/none/"),
        (
            "/v1/chat/completions",
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "x"}},
            "nobody/True/x/",
        ),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 9}}, "nobody/True/unset/"),
        ("/v1/messages", {"thinking": {"type": "disabled"}}, "nobody/False/unset/"),
    ],
)
def test_variables_of_a_request_reach_the_template(
    tmp_path: Path, path: str, fields: dict[str, Any], begins: str
) -> None:
    assert prompt_of(tokenizer_with(tmp_path, TEMPLATE), path, **fields) == f"{begins}user:hi;go"


def test_counting_tokens_counts_what_the_variables_make(tmp_path: Path) -> None:
    engine = StubEngine(tokenizer=tokenizer_with(tmp_path, TEMPLATE))  # type: ignore[arg-type]

    def tokens(**fields: object) -> list[int]:
        return post("/tokenize", {"messages": HELLO, **fields}, engine=engine).json()["tokens"]

    assert len(tokens(chat_template_kwargs={"persona": "nobody and more"})) > len(tokens())


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "chat_template", "tokenize"])
def test_what_the_server_tells_a_template_cannot_be_replaced(tmp_path: Path, name: str) -> None:
    engine = StubEngine(tokenizer=tokenizer_with(tmp_path, TEMPLATE))  # type: ignore[arg-type]
    body = {"messages": HELLO, "chat_template_kwargs": {name: "{{ 7 * 7 }}"}}
    answer = post("/v1/chat/completions", body, engine=engine)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")


def test_a_variable_is_text_and_no_template(tmp_path: Path) -> None:
    shown = prompt_of(
        tokenizer_with(tmp_path, TEMPLATE), "/v1/chat/completions", chat_template_kwargs={"persona": "{{ 7 * 7 }}"}
    )
    assert shown.startswith("{{ 7 * 7 }}/")


@pytest.mark.parametrize(("path", "field"), [("/v1/chat/completions", "error"), ("/v1/messages", "error")])
def test_a_template_gets_the_time_that_the_setting_gives_it(tmp_path: Path, path: str, field: str) -> None:
    def refused(timeout_s: float) -> tuple[httpx.Response, float]:
        engine = StubEngine(tokenizer=tokenizer_with(tmp_path, ENDLESS, template_timeout=timeout_s))  # type: ignore[arg-type]
        start_s = time.monotonic()
        answer = post(path, {"messages": HELLO, "max_tokens": 1}, engine=engine)
        return answer, time.monotonic() - start_s

    answer, took_s = refused(0.05)
    assert answer.status_code == 400
    assert "--template-timeout" in answer.json()[field]["message"]
    assert took_s < 0.4
    answer, took_s = refused(0.5)
    assert answer.status_code == 400
    assert took_s > 0.5


def test_a_prompt_that_a_template_makes_is_as_long_as_the_setting_allows(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, "{{ 'a' * 50 }}", max_prompt_chars=49)
    engine = StubEngine(tokenizer=tokenizer)  # type: ignore[arg-type]
    answer = post("/v1/chat/completions", {"messages": HELLO}, engine=engine)
    assert answer.status_code == 400
    assert "--max-prompt-chars" in answer.json()["error"]["message"]
