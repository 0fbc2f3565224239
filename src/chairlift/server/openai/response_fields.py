"""The body of POST /v1/responses, and the chat request that it amounts to. Knows nothing of answers.

Nothing is stored here, so a conversation is sent whole each time.
"""

from typing import Annotated, Any, Literal, cast

from pydantic import Field

from chairlift.errors import InvalidRequestError
from chairlift.server.openai.no_effect import no_effect
from chairlift.server.openai.requests import MAX_ITEMS, Body, ChatBody
from chairlift.server.openai.structure_fields import JsonSchema, Options, Part


class ResponseTool(Part):
    """An entry of ``tools``: a function."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseToolChoice(Part):
    """A ``tool_choice`` that names one function."""

    type: Literal["function"]
    name: str


class TextFormat(Part):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: JsonSchema | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Options):
    """What the answer's text is like."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Options):
    """How much the model thinks."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: str | None = no_effect("the reasoning itself is answered")
    generate_summary: str | None = no_effect("the reasoning itself is answered")


class ItemPart(Part):
    """A piece of an item's text."""

    type: str
    text: str | None = None


class InputItem(Part):
    """A turn, a call of a tool, what it returned, or what the model thought."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ItemPart] | None = None


class ResponseBody(Body):
    """POST /v1/responses."""

    model: str | None = Field(None, description="The served model's name; absent takes it.")
    input: str | Annotated[list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = Field(None, description="Comes first, as the system's turn.")
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    previous_response_id: None = Field(None, description="Nothing is stored, so there is none.")
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    user: str | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = None
    priority: int | None = None
    metadata: dict[str, str] | None = Field(None, description="Repeated in the answer.")
    stream_options: dict[str, Any] | None = no_effect("the usage is always there")
    include: list[str] | None = no_effect("there is nothing more to include")


def to_chat(body: ResponseBody) -> ChatBody:
    """The chat request that this is.

    Raises:
        InvalidRequestError: an item or a tool is of a kind that is not served.
    """
    values: dict[str, Any] = {"messages": _messages(body)}
    for name in ("model", "stream", "temperature", "top_p", "seed", "user", "service_tier", "priority"):
        if (value := getattr(body, name)) is not None:
            values[name] = value
    values["max_completion_tokens"] = body.max_output_tokens
    values["parallel_tool_calls"] = body.parallel_tool_calls
    values["tools"] = [_tool(tool, place) for place, tool in enumerate(body.tools or ())] or None
    choice = body.tool_choice
    values["tool_choice"] = (
        {"type": "function", "function": {"name": choice.name}} if isinstance(choice, ResponseToolChoice) else choice
    )
    if body.text is not None and body.text.format is not None:
        values["response_format"] = _response_format(body.text.format)
    if body.reasoning is not None:
        values["reasoning_effort"] = body.reasoning.effort
    return ChatBody.model_validate(values)


def _response_format(chosen: TextFormat) -> dict[str, Any]:
    if chosen.type != "json_schema":
        return {"type": chosen.type}
    return {"type": chosen.type, "json_schema": {"name": chosen.name, "schema": chosen.schema_}}


def _tool(tool: ResponseTool, place: int) -> dict[str, Any]:
    if tool.type != "function":
        raise InvalidRequestError(
            f"tools of type '{tool.type[:40]}' are not served, only functions", param=f"tools[{place}].type"
        )
    function = tool.model_dump(include={"name", "description", "parameters", "strict"}, exclude_none=True)
    if "name" not in function:
        raise InvalidRequestError("a function needs a name", param=f"tools[{place}].name")
    return {"type": "function", "function": function}


def _messages(body: ResponseBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for place, item in enumerate(body.input):
        _append(messages, item, f"input[{place}]")
    return messages


def _append(messages: list[dict[str, Any]], item: InputItem, param: str) -> None:
    """What the assistant said, thought and called in a row is one turn of it."""
    match item.type:
        case "message":
            if item.role is None:
                raise InvalidRequestError(f"{param}.role is missing", param=f"{param}.role")
            text = _text(item.content, f"{param}.content")
            if item.role == "assistant":
                _add_text(_assistant_turn(messages), "content", text)
            else:
                messages.append({"role": item.role, "content": text})
        case "reasoning":
            _add_text(
                _assistant_turn(messages), "reasoning_content", _text(item.content or item.summary, f"{param}.content")
            )
        case "function_call":
            function = {"name": item.name or "", "arguments": item.arguments or "{}"}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            _assistant_turn(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            text = _text(item.output, f"{param}.output")
            messages.append({"role": "tool", "tool_call_id": item.call_id or "", "content": text})


def _assistant_turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _add_text(message: dict[str, Any], name: str, text: str) -> None:
    message[name] = cast("str", message.get(name) or "") + text


def _text(content: str | list[ItemPart] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for place, part in enumerate(content):
        if part.text is None:
            raise InvalidRequestError(
                f"content of type '{part.type[:40]}' is not served, only text", param=f"{param}[{place}]"
            )
        texts.append(part.text)
    return "\n".join(texts)
