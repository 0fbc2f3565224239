"""Telling a model's reasoning, ``<think>...</think>`` before the answer, from the answer.

Knows nothing of tools. Whether the reasoning has begun already is seen in the prompt: many templates open it, some
close it at once to switch it off.
"""

from typing import Literal

from chairlift.server.tools.scanning import length_held

THINK_START, THINK_END = "<think>", "</think>"

Opening = Literal["inside", "possible", "none"]
"""Where the answer begins: within the reasoning, where reasoning may begin, or behind it."""


def find_opening(prompt: str, parser: str) -> Opening:
    """Where an answer to this prompt begins.

    ``deepseek_r1`` models reason without saying so; others begin with the tag, if the prompt does not end with it.
    """
    text = prompt.rstrip()
    if text.endswith(THINK_END):
        return "none"
    if text.endswith(THINK_START) or parser == "deepseek_r1":
        return "inside"
    return "possible"


class ReasoningSplitter:
    """Splits text that comes in pieces into reasoning and the rest; white space around reasoning is left out."""

    def __init__(self, opening: Opening) -> None:
        self._state = {"inside": "inside", "possible": "begin", "none": "done"}[opening]
        self._buffer = ""
        self._held_space = ""
        self._is_leading = True

    def read(self, text: str, *, is_final: bool = False) -> tuple[str, str]:
        """Take more text; return what is certain to be reasoning and what is certain not to be."""
        self._buffer += text
        reasoning = ""
        if self._state == "begin":
            self._find_start(is_final=is_final)
        if self._state == "inside":
            reasoning = self._take_reasoning(is_final=is_final)
        if self._state == "behind":
            self._buffer = self._buffer.lstrip()
            if self._buffer:
                self._state = "done"
        answer = ""
        if self._state == "done":
            answer, self._buffer = self._buffer, ""
        return reasoning, answer

    def _find_start(self, *, is_final: bool) -> None:
        begun = self._buffer.lstrip()
        if begun.startswith(THINK_START):
            self._buffer = begun[len(THINK_START) :]
            self._state = "inside"
        elif is_final or not THINK_START.startswith(begun):
            self._state = "done"

    def _take_reasoning(self, *, is_final: bool) -> str:
        place = self._buffer.find(THINK_END)
        if place >= 0:
            text, self._buffer = self._buffer[:place], self._buffer[place + len(THINK_END) :]
            self._state = "behind"
        else:
            cut = len(self._buffer) - (0 if is_final else length_held(self._buffer, THINK_END))
            text, self._buffer = self._buffer[:cut], self._buffer[cut:]
        if self._is_leading:
            text = text.lstrip()
            self._is_leading = not text
        text = self._held_space + text
        kept = text.rstrip()
        self._held_space = "" if self._state == "behind" else text[len(kept) :]
        return kept
