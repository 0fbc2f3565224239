"""How models write calls of tools as JSON: Hermes, Llama 3, Mistral, and a plain list for models that know no form.

Knows nothing of grammars; what is read here is written there. Text that looks like a call and turns out to be none is
content, as it stands.
"""

import re
from collections.abc import Sequence

from chairlift.server.tools.json_text import CallBody, JsonValue
from chairlift.server.tools.scanning import Scanner

HERMES_START, HERMES_END = "<tool_call>", "</tool_call>"
LLAMA_TAG = "<|python_tag|>"
MISTRAL_START, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"

_BETWEEN = re.compile(r"(\[CALL_ID\][\w-]*)?(\[ARGS\])?\s*")
"""What newer models of Mistral write between a name and its arguments."""
_MAX_BETWEEN = 100


class JsonCallScanner(Scanner):
    """What the formats share: one call as an object with its name and its arguments."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__(names)
        self._body: CallBody | None = None
        self._raw = ""

    def open_body(self, marker: str) -> None:
        """A call follows; ``marker`` stood before it and is content again if it is none."""
        index = -1

        def start(name: str) -> None:
            nonlocal index
            index = self.put_call(name)

        self._raw = marker
        self._body = CallBody(
            start,
            lambda text: self.put_arguments(index, text),
            self.names,
            needs_known_name=self.takes_only_known,
        )
        self.state = self.in_body

    def in_body(self) -> bool:
        """State: within the object."""
        body = self._body
        if body is None or (not self.buffer and not self.is_final):
            return False
        end = body.take(self.buffer)
        if not body.is_started:
            self._raw += self.buffer[:end]
        self.buffer = self.buffer[end:]
        if body.is_complete or (body.is_started and (body.has_failed or self.is_final)):
            self.state = self.after_call
        elif body.has_failed or self.is_final:
            self.put_text(self._raw)
            self.state = self.after_text
        else:
            return False
        self._body = None
        self._raw = ""
        return True

    def after_call(self) -> bool:
        """State: behind a call."""
        raise NotImplementedError

    def after_text(self) -> bool:
        """State: behind what turned out to be no call; all the rest is text, unless a format looks for more calls."""
        if not self.buffer:
            return False
        self.put_text(self.buffer)
        self.buffer = ""
        return True


class HermesScanner(JsonCallScanner):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` anywhere in the text: Hermes, Qwen 2.5, Qwen 3."""

    def begin(self) -> bool:
        """State: text."""
        if self.take_text_until(HERMES_START) is None:
            return False
        self.open_body(HERMES_START)
        return True

    after_text = begin

    def after_call(self) -> bool:
        """State: the end marker follows; if something else does, that is text."""
        if not self.skip_space():
            return False
        if self.take_optional(HERMES_END) is None or self.drop_cut(HERMES_END):
            return False
        self.state = self.begin
        return True


class LlamaScanner(JsonCallScanner):
    """``{"name": ..., "parameters": {...}}`` as the whole answer, several with semicolons between them: Llama 3.

    An answer in JSON that has no name, or nothing to call it with, is content.
    """

    def begin(self) -> bool:
        """State: nothing but white space was read."""
        text = self.buffer.lstrip()
        if not text or (not self.is_final and len(text) < len(LLAMA_TAG) and LLAMA_TAG.startswith(text)):
            return False
        space = self.buffer[: len(self.buffer) - len(text)]
        marker = LLAMA_TAG if text.startswith(LLAMA_TAG) else ""
        if marker or text.startswith("{"):
            self.buffer = text[len(marker) :]
            self.open_body(space + marker)
        else:
            self.state = self.after_text
        return True

    def after_call(self) -> bool:
        """State: another call may follow."""
        if not self.skip_space():
            return False
        if self.buffer[0] in ";,":
            self.buffer = self.buffer[1:]
            return True
        self.state = self.begin if self.buffer[0] in "{<" else self.after_text
        return True


class ListScanner(JsonCallScanner):
    """``[{"name": ..., "parameters": {...}}, ...]`` as the whole answer: what a grammar makes of any model."""

    list_marker = ""

    def begin(self) -> bool:
        """State: the list follows."""
        text = self.buffer.lstrip()
        if not text:
            return False
        if not text.startswith("["):
            self.state = self.after_text
            return True
        space = self.buffer[: len(self.buffer) - len(text)]
        self.buffer = text[1:]
        self.open_body(self.list_marker + space + "[")
        return True

    def after_call(self) -> bool:
        """State: another call, or the end of the list, follows."""
        if not self.skip_space():
            return False
        first = self.buffer[0]
        if first == ",":
            self.buffer = self.buffer[1:]
            self.open_body(",")
        else:
            self.buffer = self.buffer.removeprefix("]")
            self.state = self.after_text
        return True


class MistralScanner(ListScanner):
    """``[TOOL_CALLS]`` before a list of objects, or before ``name{...}`` or ``name[ARGS]{...}``, as newer models do."""

    list_marker = MISTRAL_START

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__(names)
        self._value: JsonValue | None = None
        self._index = -1

    def begin(self) -> bool:
        """State: text."""
        if self.take_text_until(MISTRAL_START) is None:
            return False
        self._raw = MISTRAL_START
        self.state = self.after_marker
        return True

    after_text = begin

    def after_marker(self) -> bool:
        """State: what follows tells the form."""
        text = self.buffer.lstrip()
        self._raw += self.buffer[: len(self.buffer) - len(text)]
        self.buffer = text
        if not text and not self.is_final:
            return False
        if text.startswith("["):
            self.buffer = text[1:]
            self.open_body(self._raw + "[")
        elif text.startswith("{"):
            self.open_body(self._raw)
        else:
            self.state = self.in_name
        return True

    def in_name(self) -> bool:
        """State: a name, up to the arguments."""
        head, brace, _ = self.buffer.partition("{")
        name, bracket, _ = head.partition("[")
        between = head[len(name) :]
        is_name, is_short = self.is_name(name.strip()), len(between) <= _MAX_BETWEEN
        if brace and is_name and is_short and _BETWEEN.fullmatch(between):
            self.buffer = self.buffer[len(head) :]
            self._index = self.put_call(name.strip())
            self._value = JsonValue()
            self.state = self.in_arguments
            return True
        is_open = is_name and is_short if bracket else self.may_become_name(name)
        if is_open and not brace and not self.is_final:
            return False
        self.put_text(self._raw)
        self.state = self.begin
        return True

    def in_arguments(self) -> bool:
        """State: within the arguments."""
        if self._value is None or not self.buffer:
            return False
        end = self._value.take(self.buffer, 0)
        self.put_arguments(self._index, self.buffer[:end])
        self.buffer = self.buffer[end:]
        if not self._value.is_complete:
            return False
        self._value = None
        self.state = self.begin
        return True
