"""How Qwen 3 Coder writes calls of tools: tags instead of JSON. Knows nothing of the other formats.

::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value, as it is
    </parameter>
    </function>
    </tool_call>
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from chairlift.server.tools.scanning import Scanner
from chairlift.server.tools.value_forms import is_json_value, is_string

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION_START, FUNCTION_END = "<function=", "</function>"
PARAMETER_START, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3CoderScanner(Scanner):
    """Turns each parameter into a member of the arguments as soon as it ends.

    Args:
        names: the tools' names.
        schemas: the parameters of each tool, which say what is text and what is JSON.
    """

    def __init__(self, names: Sequence[str] = (), schemas: Mapping[str, Any] | None = None) -> None:
        super().__init__(names)
        self._schemas = schemas or {}
        self._name = ""
        self._index = -1
        self._num_parameters = 0
        self._raw = ""

    def begin(self) -> bool:
        """State: text. Some answers leave the outer tag out."""
        marker = self.take_text_until(CALL_START, FUNCTION_START)
        if marker is None:
            return False
        self._raw = marker
        self.state = self.in_name if marker == FUNCTION_START else self.before_function
        return True

    def before_function(self) -> bool:
        """State: within the outer tag."""
        space = len(self.buffer) - len(self.buffer.lstrip())
        self._raw += self.buffer[:space]
        self.buffer = self.buffer[space:]
        if not self.buffer and not self.is_final:
            return False
        found = self.take_optional(FUNCTION_START)
        if found is None:
            return False
        if found:
            self._raw += FUNCTION_START
            self.state = self.in_name
        else:
            self.put_text(self._raw)
            self.state = self.begin
        return True

    def in_name(self) -> bool:
        """State: the function's name."""
        name, closing, rest = self.buffer.partition(">")
        if not closing:
            if self.is_final:
                self.put_text(self._raw + self.buffer)
                self.buffer = ""
                self.state = self.begin
            return False
        self._name = name.strip()
        self._num_parameters = 0
        self._index = self.put_call(self._name)
        self.put_arguments(self._index, "{")
        self.buffer = rest
        self.state = self.between_parameters
        return True

    def between_parameters(self) -> bool:
        """State: a parameter, or the end of the function, follows."""
        if not self.skip_space():
            return False
        opened = self.take_optional(PARAMETER_START)
        if opened:
            self.state = self.in_parameter
            return True
        closed = self.take_optional(FUNCTION_END)
        if not closed and (opened is None or closed is None):
            return False
        # Anything else ends the function too: what was read so far is all there is.
        if closed or not self.is_final:
            self.put_arguments(self._index, "}")
        self.state = self.after_function
        return True

    def in_parameter(self) -> bool:
        """State: a parameter's key and value."""
        place = self.buffer.find(PARAMETER_END)
        if place < 0:
            if self.is_final:
                self.buffer = ""
            return False
        key, _, value = self.buffer[:place].partition(">")
        self.buffer = self.buffer[place + len(PARAMETER_END) :]
        separator = ", " if self._num_parameters else ""
        self._num_parameters += 1
        member = f"{separator}{json.dumps(key.strip())}: {self._value(key.strip(), value)}"
        self.put_arguments(self._index, member)
        self.state = self.between_parameters
        return True

    def after_function(self) -> bool:
        """State: the outer end tag may follow."""
        if not self.skip_space():
            return False
        if self.take_optional(CALL_END) is None:
            return False
        self.state = self.begin
        return True

    def _value(self, key: str, text: str) -> str:
        text = text.removeprefix("\n").removesuffix("\n")
        schema = _properties(self._schemas.get(self._name)).get(key)
        if is_json_value(schema):
            # Models that are not held to a schema may write the text itself where JSON should stand.
            try:
                value = json.loads(text)
                if isinstance(value, str) or not is_string(schema):
                    return json.dumps(value, ensure_ascii=False, allow_nan=False)
            except (ValueError, RecursionError):
                pass
        return json.dumps(text, ensure_ascii=False)


def _properties(schema: Any) -> Mapping[str, Any]:
    properties: Any = cast("Mapping[str, Any]", schema).get("properties") if isinstance(schema, Mapping) else None
    return cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}
