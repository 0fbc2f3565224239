"""Chat messages to prompt text, through the model's own Jinja template in a sandbox.

Knows nothing of tokens. The environment offers what templates on the Hugging Face hub expect.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from chairlift.errors import InvalidRequestError, ModelLoadError
from chairlift.tokenization.template_limits import LimitedEnvironment, TemplateLimits

MAX_TEMPLATE_CHARACTERS = 512 * 1024
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_RESERVED = frozenset({"messages", "add_generation_prompt", "raise_exception", "strftime_now", "namespace"})

Message = Mapping[str, Any]


class ChatTemplate:
    """One compiled template.

    Args:
        source: the Jinja text.
        origin: where the text is from, for error messages.

    Raises:
        ModelLoadError: the text is too long or no template.
    """

    def __init__(self, source: str, origin: str = "chat template") -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ModelLoadError(
                f"{origin} has {len(source)} characters, but at most {MAX_TEMPLATE_CHARACTERS} are read"
            )
        self.source = source
        self._environment = _environment()
        try:
            self._takes_parts = _loops_over_content(self._environment.parse(source))
            with self._environment.limited(TemplateLimits()):  # what is constant is computed here already
                self._template = self._environment.from_string(source)
        except (jinja2.TemplateSyntaxError, RecursionError) as error:
            raise ModelLoadError(f"{origin} is not a valid Jinja template: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
        limits: TemplateLimits | None = None,
    ) -> str:
        """Return the prompt text of a chat.

        ``continue_final_message`` leaves the last message open, so that the model goes on with it; ``variables`` are
        further names that the template may use; ``limits`` stop a template that does not end.

        Raises:
            InvalidRequestError: the template refuses the messages, or fails on them.
        """
        reserved = _RESERVED & variables.keys()
        if reserved:
            raise InvalidRequestError(f"chat template variables must not be named {', '.join(sorted(reserved))}")
        chat = [_plain_message(message, self._takes_parts) for message in messages]
        final_text = _tag_final_message(chat) if continue_final_message else ""
        try:
            with self._environment.limited(limits or TemplateLimits()):
                text = self._template.render(
                    **{"tools": None, "documents": None, **variables},
                    messages=chat,
                    add_generation_prompt=add_generation_prompt,
                )
        except (
            jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
            MemoryError,
        ) as error:  # fmt: skip
            # A template runs the messages' values through Python's operators, so it fails as Python fails.
            raise InvalidRequestError(
                f"the chat template failed on these messages: {error}", param="messages"
            ) from error
        return _cut_at_tag(text, final_text) if continue_final_message else text


def _plain_message(message: Message, takes_parts: bool) -> dict[str, Any]:
    # Clients send content=None or tool_calls=None, which templates print or trip over, while a missing key is fine.
    plain = {key: value for key, value in message.items() if value is not None}
    parts = _parts(plain.get("content"))
    if parts is not None and not takes_parts:
        plain["content"] = "\n".join(_require_text(part) for part in parts)
    return plain


def _parts(content: Any) -> list[Any] | None:
    return cast("list[Any]", content) if isinstance(content, list) else None


def _part_text(part: Any) -> str | None:
    text = cast("Message", part).get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else None


def _require_text(part: Any) -> str:
    text = _part_text(part)
    if text is None:
        kind = cast("Message", part).get("type") if isinstance(part, Mapping) else type(part).__name__
        raise InvalidRequestError(f"message content of type {kind!r} is not served, only text", param="messages")
    return text


def _tag_final_message(chat: list[dict[str, Any]]) -> str:
    """Append the tag to the last message's text, and return that text without it."""
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUE_TAG
        return content
    parts = list(_parts(content) or ())
    for index in reversed(range(len(parts))):
        text = _part_text(parts[index])
        if text is not None:
            parts[index] = {**parts[index], "text": text + _CONTINUE_TAG}
            chat[-1]["content"] = parts
            return text
    raise InvalidRequestError("continue_final_message needs a last message with text content", param="messages")


def _cut_at_tag(text: str, final_text: str) -> str:
    position = text.rfind(_CONTINUE_TAG.strip())
    if position < 0 or final_text.strip() not in text:
        raise InvalidRequestError(
            "continue_final_message is set, but the chat template does not print the last message as it is",
            param="continue_final_message",
        )
    # A tag without its space was stripped by the template together with the spaces before it.
    is_stripped = not text.startswith(_CONTINUE_TAG, position)
    return text[:position].rstrip() if is_stripped else text[:position]


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether the template takes message content as a list of parts, rather than as a string only."""
    return any(_names_content(loop.iter) for loop in tree.find_all(nodes.For))


def _names_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


class _GenerationBlocks(Extension):
    """Accepts ``{% generation %}`` around assistant text, which training code uses, and prints what is inside."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> LimitedEnvironment:
    environment = LimitedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols])
    filters = cast("dict[str, Any]", environment.filters)  # pyright: ignore[reportUnknownMemberType]
    filters["tojson"] = _to_json
    names = cast("dict[str, Any]", environment.globals)  # pyright: ignore[reportUnknownMemberType]
    names["raise_exception"] = _raise_exception
    names["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which models have never seen.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format_text: str) -> str:
    return datetime.datetime.now().strftime(format_text)  # noqa: DTZ005 - templates mean the local date
