"""From pieces of an answer to the items of a response, and to the events that tell of them.

Knows nothing of HTTP. An item is open until the next one begins::

    reasoning | message | function_call | function_call ...
    added .. deltas .. done                               each with the index of its item
"""

import secrets
from collections.abc import Iterable
from typing import TypeVar

from chairlift.server.openai.chat_pieces import make_call_id
from chairlift.server.openai.response_objects import (
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
)
from chairlift.server.tools.pieces import CallArguments, CallStart, Content, Piece, Reasoning

_Item = TypeVar("_Item", MessageItem, ReasoningItem, FunctionCallItem)


class ResponseOutput:
    """The items so far; every change is told in events, whose numbers are given where they are sent."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self._open: OutputItem | None = None

    def add(self, pieces: Iterable[Piece]) -> list[ResponseEvent]:
        """Append pieces, and return what there is to tell."""
        events: list[ResponseEvent] = []
        for piece in pieces:
            match piece:
                case Reasoning():
                    events.extend(self._add_reasoning(piece.text))
                case Content():
                    events.extend(self._add_text(piece.text))
                case CallStart():
                    events.extend(self._start_call(piece.name))
                case CallArguments():
                    events.extend(self._add_arguments(piece.text))
        return events

    def end(self, *, is_complete: bool) -> list[ResponseEvent]:
        """Close the last item; without any, there is an empty message."""
        events = [] if self.items else self._add_text("")
        return [*events, *self._close("completed" if is_complete else "incomplete")]

    def _add_reasoning(self, text: str) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        if not isinstance(self._open, ReasoningItem):
            events = self._begin(ReasoningItem(_new_id("rs"), [], "in_progress"))
            part = ReasoningText("")
            events.append(self._event("response.content_part.added", content_index=0, part=part))
            self._open_as(ReasoningItem).content.append(ReasoningText(""))
        self._open_as(ReasoningItem).content[0].text += text
        events.append(self._event("response.reasoning_text.delta", content_index=0, delta=text))
        return events

    def _add_text(self, text: str) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        if not isinstance(self._open, MessageItem):
            events = self._begin(MessageItem(_new_id("msg"), [], "in_progress"))
            events.append(self._event("response.content_part.added", content_index=0, part=OutputText("")))
            self._open_as(MessageItem).content.append(OutputText(""))
        if text:
            self._open_as(MessageItem).content[0].text += text
            events.append(self._event("response.output_text.delta", content_index=0, delta=text, logprobs=[]))
        return events

    def _start_call(self, name: str) -> list[ResponseEvent]:
        return self._begin(FunctionCallItem(_new_id("fc"), f"call_{make_call_id()}", name, "", "in_progress"))

    def _add_arguments(self, text: str) -> list[ResponseEvent]:
        self._open_as(FunctionCallItem).arguments += text
        return [self._event("response.function_call_arguments.delta", delta=text)]

    def _begin(self, item: OutputItem) -> list[ResponseEvent]:
        events = self._close("completed")
        self._open = item
        self.items.append(item)
        # What is told is how the item is now, and it will change.
        snapshot = type(item)(**{name: getattr(item, name) for name in item.__struct_fields__})
        if isinstance(snapshot, MessageItem | ReasoningItem):
            snapshot.content = []
        events.append(ResponseEvent("response.output_item.added", 0, output_index=len(self.items) - 1, item=snapshot))
        return events

    def _close(self, status: ItemStatus) -> list[ResponseEvent]:
        item = self._open
        if item is None:
            return []
        item.status = status
        events: list[ResponseEvent] = []
        match item:
            case MessageItem():
                part = item.content[0]
                events = [
                    self._event("response.output_text.done", content_index=0, text=part.text, logprobs=[]),
                    self._event("response.content_part.done", content_index=0, part=part),
                ]
            case ReasoningItem():
                part = item.content[0]
                events = [
                    self._event("response.reasoning_text.done", content_index=0, text=part.text),
                    self._event("response.content_part.done", content_index=0, part=part),
                ]
            case FunctionCallItem():
                events = [
                    self._event("response.function_call_arguments.done", arguments=item.arguments, name=item.name)
                ]
        events.append(ResponseEvent("response.output_item.done", 0, output_index=len(self.items) - 1, item=item))
        self._open = None
        return events

    def _event(self, kind: str, **fields: object) -> ResponseEvent:
        item_id = "" if self._open is None else self._open.id
        event = ResponseEvent(kind, 0, output_index=len(self.items) - 1, item_id=item_id)
        for name, value in fields.items():
            setattr(event, name, value)
        return event

    def _open_as(self, kind: type[_Item]) -> _Item:
        if not isinstance(self._open, kind):
            raise TypeError(f"no {kind.__name__} is open")
        return self._open


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
