from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel, ValidationError

from chairlift.config.sections import ServerSettings
from chairlift.errors import RequestTooLongError
from chairlift.server.openai.requests import MAX_ITEMS, ChatBody, CompletionBody, DetokenizeBody
from tests.unit.server.stub_engine import StubEngine, post, request

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


def refused(path: str, body: object, *, status: int = 400, **options: object) -> dict:
    response = post(path, body, **options)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "-3", "1e999", '"0.5"', "true", "[]"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
def test_b51_numbers_that_are_none_are_refused_by_name(field: str, number: str) -> None:
    error = refused(COMPLETIONS, f'{{"prompt": "x", "{field}": {number}}}')
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize("ids", [[1, 2, 999_999], [-1], [2**63], [2**200]])
def test_b53_token_ids_out_of_range_are_refused(ids: list[int]) -> None:
    error = refused(COMPLETIONS, {"prompt": ids, "echo": True})
    assert "[0, 262)" in error["message"]
    assert str(next(i for i in ids if not 0 <= i < 262)) in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": "x", "max_tokens": "3"}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 3.0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": True}, "max_tokens"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "seed": 2**64}, "seed"),
        ({"prompt": "x", "stop": 5}, "stop"),
        ({"prompt": "x", "stop": ["a", 5]}, "stop[1]"),
        ({"prompt": "x", "stop": [""]}, "stop"),
        ({"prompt": "x", "stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"prompt": "x", "stream": "yes"}, "stream"),
        ({"prompt": "x", "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"prompt": "x", "priority": 2**31}, "priority"),
        ({"prompt": "x", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "x", "cache_salt": "s" * 1025}, "cache_salt"),
        ({"prompt": "x", "user": 5}, "user"),
        ({"prompt": "x", "min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "logprobs": -1}, "logprobs"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": "x", "prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"prompt": "x", "top_logprobs": 2}, "top_logprobs"),
        ({"prompt": "x", "logit_bias": {"5": 100.5}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"5": "1"}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"-5": 1}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"five": 1}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"prompt": "x", "allowed_token_ids": []}, "allowed_token_ids"),
        ({"prompt": "x", "bad_words": [" "]}, "bad_words"),
        ({"prompt": "x", "bad_words": ["x"] * 1025}, "bad_words"),
        ({"prompt": "x", "bad_words": ["x" * 1025]}, "bad_words"),
        ({"prompt": "x", "best_of": 1, "n": 2}, "best_of"),
        ({"prompt": "x", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": "x", "best_of": 17}, "best_of"),
        ({"prompt": "x", "stop": ["x"] * 65}, "stop"),
        ({"prompt": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"prompt": "x", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"prompt": "x", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens"),
        ({"prompt": "x", "truncation_side": "middle"}, "truncation_side"),
        ({"prompt": "x", "service_tier": "gold"}, "service_tier"),
        ({}, "prompt"),
    ],
)
def test_wrong_fields_are_refused_by_name(body: dict, param: str) -> None:
    assert refused(COMPLETIONS, body)["param"] == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([*HELLO, {"content": "x"}], "messages[1].role"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
    ],
)
def test_wrong_messages_are_refused_by_place(messages: list, param: str) -> None:
    assert refused(CHAT, {"messages": messages})["param"] == param


@pytest.mark.parametrize("text", ["", "{", "nul", '{"prompt": "\\ud800"}', '{"prompt": "x",}', b"\xff"])
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    assert "not valid JSON" in refused(COMPLETIONS, text)["message"]


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "5"])
def test_a_body_that_is_no_object_is_refused(text: str) -> None:
    assert "object" in refused(COMPLETIONS, text)["message"]


def test_an_error_quotes_little_of_a_large_value() -> None:
    error = refused(COMPLETIONS, {"prompt": "x", "temperature": "€" * 5000})
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "end"),
        ("tools", [{"type": "function"}]),
    ],
)
def test_fields_that_would_change_the_answer_are_refused(field: str, value: object) -> None:
    error = refused(COMPLETIONS, {"prompt": "x", field: value})
    assert error["param"] == field
    assert "not supported" in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", None),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("logit_bias", {}),
        ("best_of", 1),
        ("bad_words", []),
        ("allowed_token_ids", None),
        ("tools", []),
        ("tools", None),
        ("tool_choice", "none"),
        ("response_format", {"type": "text"}),
        ("metadata", {"a": "b"}),
        ("store", True),
        ("user", "u"),
        ("temperature", None),
        ("max_tokens", None),
        ("stream_options", None),
        ("n", None),
    ],
)
def test_fields_that_ask_for_nothing_are_accepted(field: str, value: object) -> None:
    assert post(COMPLETIONS, {"prompt": "x", field: value}).status_code == 200


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    error = refused(CHAT, {"messages": HELLO, "temprature": 0})
    assert error["param"] == "temprature"
    assert "'temperature'" in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_b26_an_unknown_model_is_not_found(path: str) -> None:
    body = {"model": "no-such", "prompt": "x", "messages": HELLO, "tokens": [1]}
    fields = {CHAT: {"model", "messages"}, "/detokenize": {"model", "tokens"}}.get(path, {"model", "prompt"})
    error = refused(path, {name: body[name] for name in fields}, status=404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'no-such'" in error["message"]


def test_n_and_prompts_have_limits_that_are_settings() -> None:
    server = ServerSettings(max_choices=3, max_prompts=2)
    assert "--max-choices is 3" in refused(COMPLETIONS, {"prompt": "x", "n": 4}, server=server)["message"]
    assert "--max-prompts is 2" in refused(COMPLETIONS, {"prompt": ["x"] * 3}, server=server)["message"]
    assert post(COMPLETIONS, {"prompt": ["x"] * 2, "n": 3}, server=server).status_code == 200


def test_a_body_that_is_announced_as_too_large_is_refused() -> None:
    error = refused(COMPLETIONS, {"prompt": "x" * 2000}, status=413, server=ServerSettings(max_body_bytes=1000))
    assert "--max-body-bytes is 1000" in error["message"]


def test_a_body_of_unknown_size_is_refused_while_it_arrives() -> None:
    num_sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal num_sent
        while num_sent < 1000:
            num_sent += 1
            yield b"x" * 400

    server = ServerSettings(max_body_bytes=1000)
    response = request("POST", COMPLETIONS, server=server, content=endless())
    assert response.status_code == 413
    assert num_sent <= 4


def test_what_is_refused_never_reaches_the_engine() -> None:
    engine = StubEngine()
    refused(COMPLETIONS, {"prompt": ["good", "good"], "temperature": -1}, engine=engine)
    refused(COMPLETIONS, {"prompt": [[1], [999]]}, engine=engine)
    assert engine.submitted == []


@pytest.mark.parametrize("body", [{"prompt": "x", "y" * 10_000: 1}, {"prompt": "x", "model": "y" * 10_000}])
def test_an_error_quotes_only_the_beginning_of_what_is_long(body: dict) -> None:
    response = post(COMPLETIONS, body)
    assert response.status_code in (400, 404)
    assert "yyy…'" in response.text
    assert len(response.text) < 500


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionBody, '{"prompt": [1, %s]}'),
        (CompletionBody, '{"prompt": ["a", %s]}'),
        (CompletionBody, '{"prompt": [[1, %s]]}'),
        (CompletionBody, '{"prompt": [[1], %s]}'),
        (CompletionBody, '{"prompt": "x", "stop": [%s]}'),
        (CompletionBody, '{"prompt": "x", "stop_token_ids": [%s]}'),
        (ChatBody, '{"messages": [%s]}'),
        (ChatBody, '{"messages": [{"role": "user", "content": [%s]}]}'),
        (ChatBody, '{"messages": [{"role": "user", "tool_calls": [%s]}]}'),
        (DetokenizeBody, '{"tokens": [%s]}'),
    ],
)
def test_a_body_of_wrong_items_costs_one_error_and_not_one_each(model: type[BaseModel], body: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(body % ",".join(["true"] * 100))
    assert caught.value.error_count() == 1


def test_a_long_value_is_quoted_by_its_beginning() -> None:
    error = refused(COMPLETIONS, {"prompt": "x", "user": [1] * 100_000})
    assert error["message"].startswith("user: Input should be a valid string, got [1, 1, 1, ")
    assert len(error["message"]) < 200
    assert len(refused(COMPLETIONS, {"prompt": "x", "n": 10**4000})["message"]) < 200
    assert len(refused(f"/{'x' * 5000}", {}, status=404)["message"]) < 200


@pytest.mark.parametrize(
    ("model", "body", "item"),
    [
        (CompletionBody, '{"prompt": [%s]}', "[1]"),
        (CompletionBody, '{"prompt": "x", "stop_token_ids": [%s]}', "1"),
        (ChatBody, '{"messages": [%s]}', '{"role": "user", "content": "x"}'),
    ],
)
def test_items_beyond_the_most_are_not_even_made(model: type[BaseModel], body: str, item: str) -> None:
    """What comes after them is wrong too, but nobody looks at it any more."""
    with pytest.raises(ValidationError, match=f"at most {MAX_ITEMS} items"):
        model.model_validate_json(body % ",".join([*[item] * (MAX_ITEMS + 1), '"wrong"']))


def test_a_prompt_beyond_the_model_length_is_too_long_whatever_its_ids_are() -> None:
    assert refused(COMPLETIONS, {"prompt": [-1] * 3000, "max_tokens": 0})["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x"}, "prompt"),
        (CHAT, {"messages": HELLO}, "messages"),
        ("/v1/responses", {"input": "x"}, "input"),
        ("/v1/embeddings", {"input": "x"}, "input"),
    ],
)
def test_what_the_engine_says_of_a_prompt_is_said_of_the_field_that_the_client_sent(
    path: str, body: dict, param: str
) -> None:
    engine = StubEngine(refuse=lambda prompt: RequestTooLongError("too long", param="prompt"))
    assert refused(path, body, engine=engine)["param"] == param


def test_a_list_beyond_the_most_is_refused_with_both_numbers() -> None:
    error = refused("/v1/embeddings", {"input": [""] * (MAX_ITEMS + 9)})
    assert error["param"] == "input"
    assert error["message"] == f"input has {MAX_ITEMS + 9} items, but a request may have {MAX_ITEMS} there"
