"""Answers that are held to a form, tools, and the endpoints that are built on them, with the clients that people have.

Case numbers are those of the list of faults of comparable engines.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.integration.server.server_process import ServerProcess, wait_until

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Looks outside.", "parameters": WEATHER},
}


@pytest.fixture(scope="module")
def tool_server() -> Iterator[ServerProcess]:
    with ServerProcess(
        "--tool-call-parser", "hermes", "--max-grammar-bytes", "20000", "--api-key", "secret"
    ) as process:
        yield process
        with httpx.Client(base_url=process.url, headers={"Authorization": "Bearer secret"}, timeout=30) as client:
            wait_until(process.is_idle, within_s=10)
            body = {"prompt": "after", "max_tokens": 4, "ignore_eos": True}
            assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 4


@pytest.fixture
def client(tool_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_server.url}/v1", api_key="secret", max_retries=0) as client:
        yield client


@pytest.fixture
def http(tool_server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"Authorization": "Bearer secret"}
    with httpx.Client(base_url=tool_server.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture
def claude(tool_server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=tool_server.url, api_key="secret", max_retries=0) as client:
        yield client


class Person(BaseModel):
    name: str
    age: int


# ------------------------------------------------------------------------------------------------ structured output


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "text"}}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "p", "schema": {"type": "object", "properties": {"t": {"type": "text"}}}},
            }
        },
        {"structured_outputs": {"regex": "["}},
        {"structured_outputs": {"grammar": "start: nobody"}},
        {"guided_json": {"uniqueItems": True}},
        {"structured_outputs": {"choice": ["x" * 30_000]}},
    ],
)
def test_b79_what_is_no_schema_expression_or_grammar_is_a_400_and_others_go_on(
    http: httpx.Client, fields: dict
) -> None:
    good = {"prompt": "good", "max_tokens": 30, "ignore_eos": True, "temperature": 0}
    expected = http.post("/v1/completions", json=good).json()["choices"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: http.post("/v1/completions", json=good).json())
        for stream in (False, True):
            answer = http.post(CHAT, json={"messages": HELLO, "max_tokens": 4, "stream": stream, **fields})
            assert answer.status_code == 400
            param = answer.json()["error"]["param"]
            assert param.partition(".")[0] in fields
        assert running.result()["choices"] == expected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 2, "maxItems": 2},
        {"type": "string", "maxLength": 8, "pattern": "^[a-z]+[0-9]$"},
        PERSON,
    ],
)
def test_b81_the_limits_of_a_schema_hold(client: Any, schema: dict, seed: int) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=500, seed=seed, extra_body={"guided_json": schema}
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content or ""), schema)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        (
            {"structured_outputs": {"regex": "[a-c]{3}-x"}},
            lambda text: text[3:] == "-x" and set(text[:3]) <= set("abc"),
        ),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
        ({"structured_outputs": {"grammar": 'root ::= "<" [0-9] ">"'}}, lambda text: text[1:2].isdigit()),
        ({"structured_outputs": {"json": json.dumps(PERSON)}}, lambda text: set(json.loads(text)) == {"name", "age"}),
        ({"guided_regex": "ab"}, lambda text: text == "ab"),
        ({"guided_choice": ["ja"]}, lambda text: text == "ja"),
        ({"guided_grammar": 'start: "q"'}, lambda text: text == "q"),
    ],
)
def test_every_form_holds_for_chat_and_completions(http: httpx.Client, fields: dict, fits) -> None:
    common = {"max_tokens": 400, "n": 2, "seed": 3, "temperature": 0.8, **fields}
    for path, prompt in ((CHAT, {"messages": HELLO}), ("/v1/completions", {"prompt": "x"})):
        choices = http.post(path, json={**prompt, **common}).json()["choices"]
        texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]
        assert len(texts) == 2
        assert [text for text in texts if not fits(text)] == []


def test_a_held_answer_repeats_with_its_seed_streams_the_same_and_has_logprobs(client: Any) -> None:
    wanted = {
        "model": "fake",
        "messages": HELLO,
        "max_tokens": 300,
        "seed": 11,
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
    }
    first = client.chat.completions.create(**wanted, logprobs=True, top_logprobs=1)
    again = client.chat.completions.create(**wanted)
    assert first.choices[0].message.content == again.choices[0].message.content
    chunks = client.chat.completions.create(**wanted, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == again.choices[0].message.content
    assert first.usage is not None
    assert first.choices[0].logprobs is not None
    assert len(first.choices[0].logprobs.content or ()) == first.usage.completion_tokens


def test_the_end_of_the_grammar_ends_the_answer_whatever_else_is_asked(http: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 50, "min_tokens": 40, "ignore_eos": True, "guided_choice": ["yes"]}
    choice = http.post(CHAT, json=body).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("yes", "stop")


NESTED = "".join(f"e{depth}: e{depth} e{depth} | e{depth + 1} | e{depth + 1} e{depth}\n" for depth in range(200))
COSTLY = f'start: "abc" e0 "!"\n{NESTED}e200: /[a-z]/\n'
"""It can be read in more ways than a step may follow, once its first three characters are there."""


def test_a_grammar_that_cannot_go_on_ends_its_own_request_with_the_reason(http: httpx.Client) -> None:
    body = {"prompt": "x", "max_tokens": 200, "structured_outputs": {"grammar": COSTLY}}
    others = {"prompt": "other", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=others) as other:
        answer = http.post("/v1/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["param"] == "structured_outputs.grammar"
        assert error["message"].startswith("the answer could not go on: structured_outputs.grammar ")
        assert "items; max is 1000" in error["message"], "the limit that it reached"
        assert "other fields" not in error["message"]
        with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as streamed:
            *pieces, done = [line.removeprefix("data: ") for line in streamed.iter_lines() if line]
        *events, last = [json.loads(piece) for piece in pieces]
        assert "".join(event["choices"][0]["text"] for event in events).startswith("abc")
        assert (streamed.status_code, last["error"], done) == (200, error, "[DONE]")
        assert [line for line in other.iter_lines() if line][-1] == "data: [DONE]", "nobody else is hurt"


def test_a_server_says_that_its_template_shows_no_tools(tool_server: ServerProcess) -> None:
    words = "--tool-call-parser hermes: the model's chat template never mentions tools"
    wait_until(lambda: any(words in line for line in tool_server.log), within_s=10)


def test_the_openai_client_parses_what_it_asked_for(client: Any) -> None:
    parsed = client.chat.completions.parse(model="fake", messages=HELLO, response_format=Person, max_tokens=2000)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    response = client.responses.parse(model="fake", input="hello", text_format=Person, max_output_tokens=2000)
    assert isinstance(response.output_parsed, Person)


# -------------------------------------------------------------------------------------------------------- tools


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_b83_a_call_is_finished_only_if_it_is_whole_streamed_or_not(client: Any, choice) -> None:
    reasons: set[str] = set()
    for max_tokens in (5, 20, 50, 60, 70, 80, 300):
        wanted = {
            "model": "fake",
            "messages": HELLO,
            "tools": [TOOL],
            "tool_choice": choice,
            "max_tokens": max_tokens,
            "temperature": 0,
            "parallel_tool_calls": False,
        }
        whole = client.chat.completions.create(**wanted).choices[0]
        name, arguments, reason = "", "", None
        for chunk in client.chat.completions.create(**wanted, stream=True):
            for call in chunk.choices[0].delta.tool_calls or ():
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            reason = chunk.choices[0].finish_reason or reason
        calls = whole.message.tool_calls or []
        assert [(call.function.name, call.function.arguments) for call in calls] == (
            [(name, arguments)] if name else []
        )
        assert reason == whole.finish_reason
        reasons.add(whole.finish_reason)
        if whole.finish_reason == "tool_calls":
            jsonschema.validate(json.loads(arguments), WEATHER)
            assert whole.message.content is None
        else:
            assert whole.finish_reason == "length"
    assert reasons == {"length", "tool_calls"}


def test_tools_that_need_not_be_called_leave_the_answer_as_it_is(client: Any) -> None:
    plain = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=20, temperature=0)
    for fields in ({"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}):
        offered = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=20, temperature=0, **fields)
        assert offered.choices[0].message.content == plain.choices[0].message.content
        assert offered.choices[0].message.tool_calls is None


def test_a_conversation_with_calls_goes_on(client: Any) -> None:
    first = client.chat.completions.create(
        model="fake", messages=HELLO, tools=[TOOL], tool_choice="required", max_tokens=300, parallel_tool_calls=False
    )
    message = first.choices[0].message
    assert message.tool_calls
    history = [*HELLO, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}]
    answer = client.chat.completions.create(model="fake", messages=history, tools=[TOOL], max_tokens=5)
    assert answer.choices[0].message.content


# ---------------------------------------------------------------------------------------------------- responses


def test_responses_whole_and_streamed_say_the_same(client: Any) -> None:
    wanted = {"model": "fake", "input": "hello", "temperature": 0, "max_output_tokens": 400}
    whole = client.responses.create(**wanted)
    assert whole.status == "completed"
    assert whole.output_text
    with client.responses.stream(**wanted) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.total_tokens == whole.usage.total_tokens
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_response_calls_tools_and_takes_what_they_return(client: Any) -> None:
    tools = [{"type": "function", **TOOL["function"]}]
    wanted = {
        "model": "fake",
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    with client.responses.stream(**wanted, input="hello", max_output_tokens=400) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert call.arguments == deltas
    jsonschema.validate(json.loads(deltas), WEATHER)
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    answer = client.responses.create(model="fake", input=history, tools=tools, max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
        {"input": []},
        {"no_such_field": 1},
    ],
)
def test_what_responses_cannot_do_is_refused(http: httpx.Client, fields: dict) -> None:
    answer = http.post("/v1/responses", json={"input": "hello", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"]


# ------------------------------------------------------------------------------------------------------ messages


def test_messages_whole_and_streamed_say_the_same(claude: Any) -> None:
    wanted = {"model": "fake", "max_tokens": 12, "messages": HELLO, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**wanted)
    with claude.messages.stream(**wanted) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "text"
    assert block.text == text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == 12
    whole_prompt = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert claude.messages.count_tokens(model="fake", messages=HELLO).input_tokens == whole_prompt


def test_messages_call_tools_and_take_what_they_return(claude: Any) -> None:
    tools = [{"name": "get_weather", "description": "Looks outside.", "input_schema": WEATHER}]
    choice = {"type": "tool", "name": "get_weather"}
    wanted = {"model": "fake", "max_tokens": 400, "tools": tools, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**wanted, tool_choice=choice, messages=HELLO)
    with claude.messages.stream(**wanted, tool_choice=choice, messages=HELLO) as stream:
        final = stream.get_final_message()
    (call,) = final.content
    assert call.type == "tool_use"
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert whole.content[0].type == "tool_use"
    assert call.input == whole.content[0].input
    history = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]},
    ]
    answer = claude.messages.create(model="fake", max_tokens=3, system="Be short.", tools=tools, messages=history)
    assert answer.stop_reason == "max_tokens"


def test_messages_are_held_to_a_schema_whole_and_streamed(claude: Any) -> None:
    wanted = {"model": "fake", "max_tokens": 400, "messages": HELLO, "extra_body": {"temperature": 0}}
    parsed = claude.messages.parse(**wanted, output_format=Person).parsed_output
    assert isinstance(parsed, Person)
    form = {"format": {"type": "json_schema", "schema": PERSON}}
    whole = claude.messages.create(**wanted, output_config=form)
    with claude.messages.stream(**wanted, output_config=form) as stream:
        text = "".join(stream.text_stream)
    assert whole.content[0].text == text
    assert whole.stop_reason == "end_turn"
    jsonschema.validate(json.loads(text), PERSON)
    counted = claude.messages.count_tokens(model="fake", messages=HELLO, output_format=Person).input_tokens
    assert counted == claude.messages.count_tokens(model="fake", messages=HELLO).input_tokens
    wrong = {"format": {"type": "json_schema", "schema": {"type": "text"}}}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema"):
        claude.messages.create(**wanted, output_config=wrong)


def test_models_are_told_to_anthropics_client_too(claude: Any, client: Any) -> None:
    (model,) = claude.models.list()
    assert (model.type, model.id, model.display_name, model.lifecycle) == ("model", "fake", "fake", "active")
    assert model.created_at.timestamp() == client.models.retrieve("fake").created
    assert claude.models.retrieve("fake") == model
    page = claude.models.list()
    assert (page.first_id, page.last_id, page.has_more) == ("fake", "fake", False)
    assert claude.messages.create(model="fake", max_tokens=1, messages=HELLO).id.startswith("msg_")


def test_messages_stop_at_a_sequence(claude: Any) -> None:
    letters = list("etaoin shrdlu")
    answer = claude.messages.create(model="fake", max_tokens=200, messages=HELLO, stop_sequences=letters)
    assert answer.stop_reason == "stop_sequence"
    assert answer.stop_sequence in letters


def test_refusals_of_messages_have_anthropics_shape(tool_server: ServerProcess, claude: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="nobody", max_tokens=3, messages=HELLO)
    assert missing.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "the model 'nobody' does not exist; this server serves 'fake'"},
    }
    image = {"type": "image", "source": {"type": "url", "url": "http://example.com/x.png"}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        claude.messages.create(model="fake", max_tokens=3, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model="fake", max_tokens=0, messages=HELLO)
    with (
        anthropic.Anthropic(base_url=tool_server.url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model="fake", max_tokens=3, messages=HELLO)


# --------------------------------------------------------------------------------------------------------- cancel


def test_a_request_is_cancelled_by_whoever_sent_it_and_by_nobody_else(tool_server: ServerProcess) -> None:
    body = {"messages": HELLO, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    key = {"Authorization": "Bearer secret"}
    with httpx.Client(base_url=tool_server.url, timeout=60) as client:
        with client.stream("POST", CHAT, json=body, headers=key) as stream:
            lines = stream.iter_lines()
            next(lines)
            name = f"/v1/requests/{stream.headers['X-Chairlift-Request-Id']}"
            assert client.delete(name).status_code == 401
            assert client.delete("/v1/requests/chatcmpl-guess", headers=key).status_code == 404
            assert client.delete(name, headers=key).json()["cancelled"] is True
            events = [line for line in lines if line]
        assert json.loads(events[-2].removeprefix("data: "))["error"]["type"] == "request_cancelled"
        assert events[-1] == "data: [DONE]"
        wait_until(lambda: client.delete(name, headers=key).status_code == 404, within_s=10)
    wait_until(tool_server.is_idle, within_s=10)
