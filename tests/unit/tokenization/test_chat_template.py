"""Chat templates: what hub templates expect, and nothing more."""

import datetime
from typing import Any

import pytest

from chairlift.errors import InvalidRequestError, ModelLoadError
from chairlift.tokenization.chat_template import MAX_TEMPLATE_CHARACTERS, ChatTemplate

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[/]{% endfor %}"
PARTS = (
    "{% for m in messages %}{% for part in m['content'] %}<{{ part.type }}:{{ part.text }}>{% endfor %};{% endfor %}"
)
USER = {"role": "user", "content": "Hi"}


def render(
    source: str, messages: list[dict[str, Any]], *, generate: bool = False, go_on: bool = False, **names: Any
) -> str:
    template = ChatTemplate(source)
    return template.render(messages, add_generation_prompt=generate, continue_final_message=go_on, variables=names)


def test_a_chat_becomes_the_prompt_the_model_was_trained_on() -> None:
    answer = {"role": "assistant", "content": "Hello"}
    assert render(CHATML, [USER, answer], generate=True) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_blocks_take_their_line_with_them() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc", []) == "a\nb\nc"


def test_tojson_escapes_nothing_for_html_and_keeps_order() -> None:
    value = {"b": "<é'&>", "a": [1, None]}
    assert render("{{ value | tojson }}", [], value=value) == '{"b": "<é\'&>", "a": [1, null]}'
    assert render("{{ value | tojson(indent=2) }}", [], value=[1]) == "[\n  1\n]"


def test_templates_may_break_loops_name_the_date_and_mark_generated_text() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", []) == "01"
    year = datetime.datetime.now(datetime.UTC).year
    assert render("{{ strftime_now('%Y') }}", []) in {str(year + shift) for shift in (-1, 0, 1)}
    assert render("{% generation %}{{ 1 + 1 }}{% endgeneration %}", []) == "2"
    assert (
        render("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", [])
        == "3"
    )


def test_tools_and_documents_are_there_even_if_not_given() -> None:
    assert render("{{ tools is none }} {{ documents is none }} {{ other is defined }}", []) == "True True False"
    assert render("{{ tools[0].name }}", [], tools=[{"name": "search"}]) == "search"


def test_a_template_that_refuses_is_a_bad_request() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}", [USER])
    assert caught.value.http_status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[3].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].missing.deeper }}",
        "{{ 1 / 0 }}",
        "{{ messages | tojson(indent='x', separators=3) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_bad_request(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="the chat template failed on these messages"):
        render(source, [dict(USER)])


def test_a_broken_template_is_refused_at_start() -> None:
    with pytest.raises(ModelLoadError, match=r"template\.jinja is not a valid Jinja template"):
        ChatTemplate("{% for %}", "template.jinja")
    with pytest.raises(ModelLoadError, match=f"at most {MAX_TEMPLATE_CHARACTERS}"):
        ChatTemplate("x" * (MAX_TEMPLATE_CHARACTERS + 1))


def test_variables_cannot_take_the_place_of_messages() -> None:
    with pytest.raises(InvalidRequestError, match="messages, raise_exception"):
        ChatTemplate("{{ messages }}").render(
            [USER],
            add_generation_prompt=False,
            continue_final_message=False,
            variables={"messages": [], "raise_exception": 1},
        )


def test_absent_and_null_fields_are_alike() -> None:
    source = "{{ messages[0].tool_calls is defined }}"
    assert render(source, [{**USER, "tool_calls": None}]) == render(source, [USER]) == "False"


def test_text_parts_become_text_for_templates_that_know_only_text() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert render(TRIMMING, [parts]) == "[user]a\nb[/]"
    assert render(PARTS, [parts]) == "<text:a><text:b>;"
    with pytest.raises(InvalidRequestError, match="content of type 'image_url' is not served"):
        render(TRIMMING, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (CHATML, "Sure: ", "<|im_start|>assistant\nSure: "),
        (CHATML, "", "<|im_start|>assistant\n"),
        (TRIMMING, "  Sure: ", "[assistant]Sure:"),
        (PARTS, [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}], "<text:a><text:b "),
    ],
)
def test_the_final_message_is_left_open(source: str, content: Any, expected: str) -> None:
    message = {"role": "assistant", "content": content}
    text = render(source, [USER if source is not PARTS else message, message], go_on=True)
    assert text.endswith(expected)
    assert message == {"role": "assistant", "content": content}


def test_only_printed_text_can_be_continued() -> None:
    with pytest.raises(InvalidRequestError, match="needs a last message with text"):
        render(CHATML, [], go_on=True)
    with pytest.raises(InvalidRequestError, match="needs a last message with text"):
        render(CHATML, [{"role": "assistant", "content": None}], go_on=True)
    with pytest.raises(InvalidRequestError, match="does not print the last message"):
        render("{{ messages[0].role }}", [USER], go_on=True)
