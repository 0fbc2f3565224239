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
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from chairlift.server.tools.json_text import JsonValue
from chairlift.server.tools.scanning import Scanner
from chairlift.server.tools.tagged_parameters import ReadTools
from chairlift.server.tools.value_forms import ANY_JSON, ValueForm

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION_START, FUNCTION_END = "<function=", "</function>"
PARAMETER_START, PARAMETER_END = "<parameter=", "</parameter>"
BEHIND_PARAMETER = (PARAMETER_START, FUNCTION_END, CALL_END)
"""What may stand behind a parameter, behind white space."""

_SPACE = re.compile(r"[ \t\r\n]*")


class Qwen3CoderScanner(Scanner):
    """Turns each parameter into a member of the arguments as soon as it ends.

    Args:
        names: the tools' names.
        schemas: the parameters of each tool, which say what is text and what is JSON; as :class:`ReadTools` they are
            looked at once for all answers to a request.
    """

    def __init__(self, names: Sequence[str] = (), schemas: Mapping[str, Any] | None = None) -> None:
        super().__init__(names)
        self._tools = schemas if isinstance(schemas, ReadTools) else ReadTools(schemas or {})
        self._forms: Mapping[str, ValueForm] = {}
        """How each parameter of the call is written."""
        self._name = ""
        self._index = -1
        self._num_parameters = 0
        self._raw = ""
        self._searched = 0
        self._fallback: int | None = None
        self._json: JsonValue | None = None
        self._followed = 0

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
            return True
        return self._is_no_call()

    def in_name(self) -> bool:
        """State: the function's name."""
        name, closing, rest = self.buffer.partition(">")
        if closing and self.is_name(name.strip()):
            self._name = name.strip()
            self._raw += name + closing
            self.buffer = rest
            self.state = self.behind_name
            return True
        if not closing and not self.is_final and self.may_become_name(name.lstrip()):
            return False
        return self._is_no_call()

    def behind_name(self) -> bool:
        """State: it is a call if a parameter, or the end of the function, follows."""
        behind = self.buffer.lstrip()
        if behind.startswith(BEHIND_PARAMETER):
            self._num_parameters = 0
            self._forms = self._tools.get(self._name, {})
            self._index = self.put_call(self._name)
            self.put_arguments(self._index, "{")
            self.state = self.between_parameters
            return True
        if not self.is_final and any(marker.startswith(behind) for marker in BEHIND_PARAMETER):
            return False
        return self._is_no_call()

    def _is_no_call(self) -> bool:
        self.put_text(self._raw)
        self.state = self.begin
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
        if not closed and (opened is None or closed is None or self.drop_cut(*BEHIND_PARAMETER)):
            return False
        # Anything else ends the function too: what was read so far is all there is.
        self.put_arguments(self._index, "}")
        self.state = self.after_function
        return True

    def in_parameter(self) -> bool:
        """State: a parameter's key and value."""
        key, closing, _ = self.buffer.partition(">")
        name, start = key.strip(), len(key) + 1
        form = self._forms.get(name, ANY_JSON)
        place = self._find_end(start, is_json=form.is_json) if closing else None
        if place is None:
            if self.is_final:
                self.buffer = ""
            return False
        value = self.buffer[start:place]
        self.buffer = self.buffer[place + len(PARAMETER_END) :]
        self._searched, self._fallback, self._json = 0, None, None
        separator = ", " if self._num_parameters else ""
        self._num_parameters += 1
        self.put_arguments(self._index, f"{separator}{json.dumps(name)}: {_value(value, form)}")
        self.state = self.between_parameters
        return True

    def _find_end(self, start: int, *, is_json: bool) -> int | None:
        """Where the end tag of the value is that begins at ``start``; ``None`` if that is not known yet.

        Values may speak of end tags. One that has a line of its own is the value's, and so is one behind which the
        form goes on, as models write it that leave out line breaks; unless it stands within JSON.
        """
        place = max(start, self._searched)
        while (place := self.buffer.find(PARAMETER_END, place)) >= 0:
            is_line = self.buffer.startswith("\n", place + len(PARAMETER_END)) and self.buffer[place - 1] == "\n"
            found = is_line or self._goes_on(place + len(PARAMETER_END))
            if found is None:
                break
            if found and (is_line or not is_json or self._may_end(start, place)):
                return place
            # Nothing else is known to end here, but an answer that is over has to end somewhere.
            if self._fallback is None and (found or not self.buffer.startswith("\n", start)):
                self._fallback = place
            place += len(PARAMETER_END)
        # What was searched once is not searched again with each delta.
        self._searched = place if place >= 0 else max(start, len(self.buffer) - len(PARAMETER_END) + 1, self._searched)
        return self._fallback if self.is_final else None

    def _may_end(self, start: int, place: int) -> bool:
        """Whether a value that is to be JSON may end here: what begins like a text or like a list must be whole."""
        first = cast("re.Match[str]", _SPACE.match(self.buffer, start)).end()
        if self.buffer[first] not in '"{[':
            return True
        if self._json is None:
            self._json, self._followed = JsonValue(), first
        if not self._json.is_complete:
            self._json.take(self.buffer[self._followed : place], 0)
            self._followed = place
        return self._json.is_complete

    def _goes_on(self, place: int) -> bool | None:
        """Whether the form goes on here, behind an end tag; ``None`` if that is not certain yet."""
        place = cast("re.Match[str]", _SPACE.match(self.buffer, place)).end()
        if self.buffer.startswith(BEHIND_PARAMETER, place):
            return True
        rest = self.buffer[place : place + len(PARAMETER_START)]
        if not any(marker.startswith(rest) for marker in BEHIND_PARAMETER):
            return False
        return True if self.is_final else None

    def after_function(self) -> bool:
        """State: the outer end tag may follow."""
        if not self.skip_space():
            return False
        if self.take_optional(CALL_END) is None or self.drop_cut(CALL_END):
            return False
        self.state = self.begin
        return True


def _value(text: str, form: ValueForm) -> str:
    text = text.removeprefix("\n").removesuffix("\n")
    if form.is_json:
        # Models that are not held to a schema may write the text itself where JSON should stand.
        try:
            value = json.loads(text)
            if isinstance(value, str) or not form.is_string:
                return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)
