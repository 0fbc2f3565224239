"""The body of POST /v1/messages, and the chat request that it amounts to. Knows nothing of answers."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from chairlift.errors import InvalidRequestError
from chairlift.server.openai.no_effect import no_effect
from chairlift.server.openai.requests import MAX_ITEMS, Body, ChatBody
from chairlift.server.openai.structure_fields import JsonSchema, Options, Part


class Block(Part):
    """A piece of a turn: text, a call of a tool, what it returned, or thinking."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = no_effect("what a tool returned says so itself")
    thinking: str | None = None


class Turn(Part):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(fail_fast=True, max_length=MAX_ITEMS)]


class MessagesTool(Part):
    """A function that the model may call."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessagesToolChoice(Part):
    """Whether tools may, must, or must not be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Options):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = no_effect("max_tokens limits all of the answer")
    display: str | None = no_effect("thinking is answered as it is")


class OutputFormat(Options):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: JsonSchema = Field(alias="schema")


class OutputConfig(Options):
    """What the answer is to be like."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = no_effect("every answer gets the same")
    task_budget: dict[str, Any] | None = no_effect("max_tokens limits all of the answer")


class RequestMetadata(Options):
    """Who asks."""

    user_id: str | None = None


class MessagesBody(Body):
    """POST /v1/messages."""

    model: str | None = Field(None, description="The served model's name; absent takes it.")
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS)]
    max_tokens: int = Field(ge=1, description="Output tokens at most.")
    system: str | list[Block] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = Field(
        None, description="enabled and disabled are told to the chat template, which knows better for adaptive."
    )
    output_config: OutputConfig | None = Field(
        None, description="format holds the answer to a JSON schema, as in chat; effort has no effect."
    )
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = no_effect("there is one")


class CountBody(Body):
    """POST /v1/messages/count_tokens."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS)]
    system: str | list[Block] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = Field(None, description="Nothing of it is part of a prompt.")


def to_chat(body: MessagesBody | CountBody) -> ChatBody:
    """The chat request that this is.

    Raises:
        InvalidRequestError: a block or a tool is of a kind that is not served.
    """
    values: dict[str, Any] = {"messages": _messages(body), "model": body.model}
    if isinstance(body, MessagesBody):
        values |= {
            "max_tokens": body.max_tokens,
            "stop": body.stop_sequences,
            "stream": body.stream,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "user": None if body.metadata is None else body.metadata.user_id,
            "response_format": _response_format(body.output_config),
        }
    if body.tools:
        values["tools"] = [_tool(tool, place) for place, tool in enumerate(body.tools)]
        values |= _tool_choice(body.tool_choice)
    if body.thinking is not None and body.thinking.type != "adaptive":
        values["chat_template_kwargs"] = {"enable_thinking": body.thinking.type == "enabled"}
    return ChatBody.model_validate({name: value for name, value in values.items() if value is not None})


def _response_format(config: OutputConfig | None) -> dict[str, Any] | None:
    if config is None or config.format is None:
        return None
    return {"type": "json_schema", "json_schema": {"schema": config.format.schema_, "strict": True}}


def _tool(tool: MessagesTool, place: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise InvalidRequestError(
            f"tools of type '{tool.type[:40]}' are not served, only functions", param=f"tools[{place}].type"
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema or {}, "strict": tool.strict}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _tool_choice(choice: MessagesToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    values: dict[str, Any] = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    if choice.type == "tool":
        values["tool_choice"] = {"type": "function", "function": {"name": choice.name or ""}}
    else:
        values["tool_choice"] = {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    return values


def _messages(body: MessagesBody | CountBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text(body.system, "system")})
    for place, turn in enumerate(body.messages):
        messages.extend(_turn(turn, f"messages[{place}].content"))
    return messages


def _turn(turn: Turn, param: str) -> list[dict[str, Any]]:
    """One turn may hold what several tools returned, each of which is a message of its own and comes first."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    returned: list[dict[str, Any]] = []
    message: dict[str, Any] = {"role": turn.role}
    texts: list[str] = []
    for place, block in enumerate(turn.content):
        match block.type:
            case "text":
                texts.append(block.text or "")
            case "thinking":
                message["reasoning_content"] = message.get("reasoning_content", "") + (block.thinking or "")
            case "redacted_thinking":
                pass
            case "tool_use":
                function = {"name": block.name or "", "arguments": json.dumps(block.input or {}, ensure_ascii=False)}
                call = {"id": block.id or "", "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
            case "tool_result":
                text = _text(block.content or "", f"{param}[{place}].content")
                returned.append({"role": "tool", "tool_call_id": block.tool_use_id or "", "content": text})
            case _:
                raise InvalidRequestError(
                    f"content of type '{block.type[:40]}' is not served, only text and tools",
                    param=f"{param}[{place}].type",
                )
    message["content"] = "\n".join(texts)
    has_more = texts or len(message) > 2 or not returned
    return [*returned, message] if has_more else returned


def _text(content: str | list[Block], param: str) -> str:
    if isinstance(content, str):
        return content
    for place, block in enumerate(content):
        if block.type != "text":
            raise InvalidRequestError(
                f"content of type '{block.type[:40]}' is not served, only text", param=f"{param}[{place}].type"
            )
    return "\n".join(block.text or "" for block in content)
