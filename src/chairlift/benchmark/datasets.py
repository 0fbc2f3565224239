"""Prompts from files: MT-bench's questions, and JSON lines of one's own.

Knows nothing of lengths in tokens: how long a prompt is, the server says.

A line may have one of these, and ``max_tokens`` (or ``output_tokens``)::

    {"prompt": "text, or a list of token ids"}
    {"question": "text"}
    {"messages": [{"role": "user", "content": "..."}]}
    {"turns": ["first question", "asked after its answer"]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec

from chairlift.benchmark.calls import Exchange
from chairlift.benchmark.prompts import TextScale, make_text
from chairlift.benchmark.wire import Prompt
from chairlift.errors import ConfigurationError
from chairlift.workload.traces.reading import open_text

_FORMS = "prompt, question, messages, turns or conversations"
_USERS = frozenset({"human", "user"})

Row = Mapping[str, Any]


def read_exchanges(path: Path) -> list[Exchange]:
    """Read a file of JSON lines, or of one JSON list; compressed ones too.

    Raises:
        ConfigurationError: it cannot be read, or a line is of no known form.
    """
    exchanges = [_exchange(row, f"{path}: line {number}") for number, row in _rows(path)]
    if not exchanges:
        raise ConfigurationError(f"{path} has no prompts")
    return exchanges


def make_conversations(
    count: int, num_turns: int, num_turn_tokens: int, scale: TextScale, rng: Random
) -> list[Exchange]:
    """Make conversations of random words, each turn as long as the others; answers are what the server says."""
    return [Exchange(tuple(make_text(num_turn_tokens, scale, rng) for _ in range(num_turns))) for _ in range(count)]


def _rows(path: Path) -> Sequence[tuple[int, Row]]:
    try:
        with open_text(path) as file:
            text = file.read()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    number = 1
    rows: list[tuple[int, Any]] = []
    try:
        if text.lstrip().startswith("["):
            rows = list(enumerate(cast("list[Any]", msgspec.json.decode(text)), start=1))
        else:
            for number, line in enumerate(text.split("\n"), start=1):
                if line.strip():
                    rows.append((number, msgspec.json.decode(line)))
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path}: line {number} is not JSON: {error}") from None
    for number, row in rows:
        if not isinstance(row, dict):
            raise ConfigurationError(f"{path}: line {number} is not a JSON object")
    return rows


def _exchange(row: Row, place: str) -> Exchange:
    limit = row.get("max_tokens", row.get("output_tokens"))
    if limit is not None and not (isinstance(limit, int) and limit >= 1):
        raise ConfigurationError(f"{place}: max_tokens must be a whole number of at least 1, got {limit!r}")
    try:
        found = _read_form(row)
    except (AttributeError, IndexError, KeyError, TypeError):
        found = None
    if found is None or not all(map(_is_prompt, found.turns)) or not found.turns:
        raise ConfigurationError(f"{place} must have {_FORMS}, and text in it")
    return Exchange(found.turns, found.history, limit)


def _read_form(row: Row) -> Exchange | None:
    if "prompt" in row:
        prompt: Any = row["prompt"]
        return Exchange((tuple(cast("list[int]", prompt)) if isinstance(prompt, list) else prompt,))
    if "question" in row:
        return Exchange((row["question"],))
    if "turns" in row:
        return Exchange(tuple(row["turns"]))
    if "messages" in row:
        *history, last = row["messages"]
        return Exchange((last["content"],), tuple(history)) if last.get("role", "user") == "user" else None
    if "conversations" in row:
        return Exchange(tuple(part["value"] for part in row["conversations"] if part["from"] in _USERS))
    return None


def _is_prompt(prompt: Prompt) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    return bool(prompt) and isinstance(prompt, tuple) and all(type(token) is int and token >= 0 for token in prompt)
