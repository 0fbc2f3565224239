"""Reading calls and reasoning: wherever a text is cut into deltas, the same comes of it."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chairlift.server.tools.pieces import Assembled, Piece
from chairlift.server.tools.reader import AnswerReader, ReadingPlan
from chairlift.server.tools.reasoning import Opening
from chairlift.server.tools.table import PLAIN_LIST, TOOL_FORMATS

NAMES = ["f", "get_weather"]
SCHEMAS = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}

FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
        *("<function=f>", "<parameter=a>", "</parameter>", "</function>", "<function=", "<tool", "</", "[TOOL", "<"),
        *('{"name": "f", "arguments": {"a": 1}}', '{"name": "get_weather", "parameters": {"x": ["}", {}]}}'),
        *('{"arguments": {"q": "\\"{"}, "name": "f"}', '{"name": "f"}', '{"name": "f", "arguments": "{\\"a\\": 1}"}'),
        *('{"name": "nobody", "parameters": {}}', '{"answer": 42}', '{"name": 3}', "{", "}", "[", "]", ",", ";", '"'),
        *(" ", "\n", "  \n\n", "text", "Hello, wörld", "\\", ":", "null", "f", "{}", '{"name"'),
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=12).map("".join)
FORMATS = st.sampled_from([*TOOL_FORMATS.values(), PLAIN_LIST])
OPENINGS: st.SearchStrategy[Opening | None] = st.sampled_from([None, "inside", "possible", "none"])


def assembled(pieces: Sequence[Piece]) -> Assembled:
    whole = Assembled()
    whole.add(pieces)
    return whole


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=30), style=FORMATS, opening=OPENINGS)
def test_any_split_of_a_text_gives_what_the_whole_gives(text: str, cuts: list[int], style, opening) -> None:
    plan = ReadingPlan(opening, lambda: style.scanner(NAMES, SCHEMAS))
    at_once = AnswerReader(plan)
    expected = assembled(at_once.read(text, is_final=True))
    piecewise = AnswerReader(plan)
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    pieces = [piece for start, end in pairwise(places) for piece in piecewise.read(text[start:end])]
    pieces.extend(piecewise.read("", is_final=True))
    assert assembled(pieces) == expected
    assert piecewise.finish_reason("stop") == at_once.finish_reason("stop")


@given(text=TEXTS, style=FORMATS, opening=OPENINGS)
def test_every_character_alone_gives_what_the_whole_gives(text: str, style, opening) -> None:
    plan = ReadingPlan(opening, lambda: style.scanner(NAMES, SCHEMAS))
    expected = assembled(AnswerReader(plan).read(text, is_final=True))
    reader = AnswerReader(plan)
    pieces = [piece for character in text for piece in reader.read(character)]
    pieces.extend(reader.read("", is_final=True))
    assert assembled(pieces) == expected


@given(text=st.text(alphabet="abc <{[\n", max_size=60), style=FORMATS)
def test_text_without_calls_is_not_changed(text: str, style) -> None:
    reader = AnswerReader(ReadingPlan(None, lambda: style.scanner(NAMES, SCHEMAS)))
    read = assembled(reader.read(text, is_final=True))
    assert not read.calls
    assert read.content == text
