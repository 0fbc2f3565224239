"""How the answers to a request are held to a form, and read: grammar, tools, reasoning. Knows nothing of streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from chairlift.config.sections import AnswerSettings
from chairlift.core.sampling_params import SamplingParams
from chairlift.errors import InvalidRequestError
from chairlift.server.openai.requests import ChatBody, SamplingFields
from chairlift.server.openai.structure import structured_part
from chairlift.server.openai.structure_fields import NamedToolChoice, ToolDefinition
from chairlift.server.tools.grammars import (
    MAX_FORCED_CALLS,
    Tool,
    calls_or_answer,
    forced_calls,
    free_answer,
    held_answer,
    reasoning_rule,
)
from chairlift.server.tools.reader import ReadingPlan
from chairlift.server.tools.reasoning import THINK_END, THINK_START, Opening, find_opening
from chairlift.server.tools.table import PLAIN_LIST, ToolFormat, find_reasoning_parser, find_tool_format
from chairlift.server.tools.tagged_parameters import ReadTools
from chairlift.structured.sources import Part, quote_text, whole


class AnswerCodec(Protocol):
    """What is asked of a tokenizer here."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""
        ...

    @property
    def chat_template_text(self) -> str:
        """The model's chat templates."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """The tools of a request that may be called, and how many calls must and may be made."""

    tools: Sequence[Tool]
    is_forced: bool
    max_calls: int | None


def template_variables(body: ChatBody) -> dict[str, Any]:
    """What a chat template is told beside the messages."""
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    if body.tools and body.tool_choice != "none":
        variables["tools"] = [_for_template(tool) for tool in body.tools]
    return variables


def hold_completion(body: SamplingFields, sampling: SamplingParams) -> SamplingParams:
    """Sampling parameters of a text completion with its grammar, if it asks for one."""
    found = structured_part(body)
    return sampling if found is None else replace(sampling, grammar=whole(*found))


def plan_answer(
    body: ChatBody, sampling: SamplingParams, prompt: str, codec: AnswerCodec, settings: AnswerSettings
) -> tuple[SamplingParams, ReadingPlan]:
    """Sampling parameters with the grammar of a chat request, and how its answers are read.

    Raises:
        InvalidRequestError: the fields contradict each other, or ask for what this model cannot do.
    """
    template = codec.chat_template_text
    reasoning_parser = find_reasoning_parser(settings.reasoning_parser, template)
    opening = None if reasoning_parser is None else find_opening(prompt, reasoning_parser)
    wanted, found = find_tools(body), structured_part(body)
    style = _tool_format(wanted, settings.tool_call_parser, template)
    markers = [*(style.markers if style else ()), *((THINK_START, THINK_END) if opening else ())]
    if any(_special_id(marker, codec) is not None for marker in markers):
        # The reader has to see them. The end token is left out of the text in any case.
        sampling = replace(sampling, skip_special_tokens=False)
    scanner = None
    if wanted is not None and style is not None:
        names = [tool.name for tool in wanted.tools]
        read = ReadTools({tool.name: tool.parameters for tool in wanted.tools})
        make_scanner = style.scanner
        scanner = lambda: make_scanner(names, read)  # noqa: E731
    plan = ReadingPlan(
        opening,
        scanner,
        max_calls=None if wanted is None else wanted.max_calls,
        shows_reasoning=body.include_reasoning is not False,
        is_forced=wanted is not None and wanted.is_forced,
        # The form of an answer may look like a call, and what is one is held to the names of the tools.
        takes_only_known=found is not None,
    )
    return _with_grammar(found, sampling, wanted, style, _reasoning_lark(opening, codec)), plan


def find_tools(body: ChatBody) -> ToolRequest | None:
    """The tools that a request may call; ``None`` if there are none, or none is to be called.

    Raises:
        InvalidRequestError: a tool is chosen that is not there, or two have one name.
    """
    choice = body.tool_choice
    if not body.tools:
        if choice == "required" or isinstance(choice, NamedToolChoice):
            raise InvalidRequestError("tool_choice asks for a call, but there are no tools", param="tool_choice")
        return None
    if choice == "none":
        return None
    tools = [
        Tool(
            tool.function.name,
            tool.function.parameters or {},
            tool.function.strict is True,
            param=f"tools[{place}].function.parameters",
        )
        for place, tool in enumerate(body.tools)
    ]
    if len({tool.name for tool in tools}) < len(tools):
        raise InvalidRequestError("two tools have the same name", param="tools")
    max_calls = 1 if body.parallel_tool_calls is False else None
    if isinstance(choice, NamedToolChoice):
        named = [tool for tool in tools if tool.name == choice.function.name]
        if not named:
            raise InvalidRequestError(
                f"tool_choice names '{choice.function.name[:100]}', which is none of the tools", param="tool_choice"
            )
        return ToolRequest(named, is_forced=True, max_calls=1)
    return ToolRequest(tools, is_forced=choice == "required", max_calls=max_calls)


def _tool_format(wanted: ToolRequest | None, parser: str, template: str) -> ToolFormat | None:
    if wanted is None:
        return None
    style = find_tool_format(parser, template)
    if style is None and not wanted.is_forced:
        raise InvalidRequestError(
            "tools with tool_choice auto need a model whose chat template shows how it calls them, or "
            "--tool-call-parser; tool_choice required, or the name of a tool, works with any model",
            param="tools",
        )
    return style or PLAIN_LIST


def _with_grammar(
    found: tuple[Part, str] | None,
    sampling: SamplingParams,
    wanted: ToolRequest | None,
    style: ToolFormat | None,
    reasoning: Any,
) -> SamplingParams:
    quote, reasoning_text = reasoning
    if wanted is None or style is None:
        return sampling if found is None else replace(sampling, grammar=held_answer(found[0], reasoning_text, found[1]))
    if not wanted.is_forced and found is None:
        if style.free is None or not any(tool.is_strict for tool in wanted.tools):
            return sampling
        free = style.free(wanted.tools, wanted.max_calls, quote)
        return replace(sampling, grammar=free_answer(free, reasoning_text, "tools"))
    lark = style.grammar(wanted.tools, wanted.max_calls or MAX_FORCED_CALLS, quote)
    if not wanted.is_forced and found is not None:
        return replace(sampling, grammar=calls_or_answer(lark, found[0], reasoning_text, found[1]))
    if found is not None:
        raise InvalidRequestError(f"{found[1]} and a tool_choice that forces a call exclude each other", param=found[1])
    return replace(sampling, grammar=forced_calls(lark, reasoning_text, "tools"))


def _reasoning_lark(opening: Opening | None, codec: AnswerCodec) -> tuple[Any, str | None]:
    def quote(marker: str) -> str:
        token_id = _special_id(marker, codec)
        return quote_text(marker) if token_id is None else f"<[{token_id}]>"

    text = None if opening is None or opening == "none" else reasoning_rule(opening, quote)
    return quote, text


def _special_id(marker: str, codec: AnswerCodec) -> int | None:
    ids = codec.encode(marker, False)
    return ids[0] if len(ids) == 1 and ids[0] in codec.special_ids else None


def _for_template(tool: ToolDefinition) -> Mapping[str, Any]:
    known = dict.fromkeys(type(tool).model_fields, True) | {"function": set(type(tool.function).model_fields)}
    return tool.model_dump(include=known, exclude_none=True)
