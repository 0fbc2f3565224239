import asyncio
import io
from collections.abc import AsyncIterator, Sequence

import pytest

from chairlift.cli.generate import LineWriter, numbered
from chairlift.cli.jsonl import OutputLine, parse_line
from chairlift.cli.line_answers import answer_lines
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.outputs import ChoiceDelta
from chairlift.errors import EngineUnavailableError, InvalidRequestError
from tests.unit.server.stub_engine import StubEngine, letters


def answer(lines: list[bytes], engine: StubEngine | None = None, *, window: int = 2, **defaults: object) -> list:
    answers: list[OutputLine] = []
    numbered_lines = list(enumerate(lines, 1))
    asyncio.run(answer_lines(engine or StubEngine(), numbered_lines, answers.append, defaults, window=window))
    return answers


def test_answers_keep_the_order_of_the_lines_whichever_ends_first() -> None:
    async def longer_first(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        for _ in range(100 - prompt[0]):
            await asyncio.sleep(0)
        yield ChoiceDelta(0, str(prompt[0]), (1,), 1, 0, "stop")

    lines = [b'{"prompt": [%d], "id": "p%d"}' % (n, n) for n in range(20)]
    answers = answer(lines, StubEngine(script=longer_first), window=8)
    assert [line.id for line in answers] == [f"p{n}" for n in range(20)]
    assert [line.outputs[0].text for line in answers] == [str(n) for n in range(20)]


def test_never_more_lines_in_work_than_the_window() -> None:
    running = most = 0

    async def counted(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        async for delta in letters(prompt, sampling):
            yield delta
        running -= 1

    assert len(answer([b'{"prompt": "x"}'] * 30, StubEngine(script=counted), window=4)) == 30
    assert most == 4


def test_a_bad_line_is_answered_by_its_error_and_hurts_no_other() -> None:
    answers = answer(
        [b'{"prompt": "x", "n": 2}', b"{", b'{"prompt": "x", "temperature": -1, "id": 7}', b'{"prompt": "y"}']
    )
    assert [line.error is None for line in answers] == [True, False, False, True]
    assert [output.text for output in answers[0].outputs] == ["abcdefghijklmnop", "bcdefghijklmnopq"]
    assert (answers[2].line, answers[2].id) == (3, 7)
    assert "temperature" in answers[2].error


def test_the_line_wins_over_the_flags() -> None:
    engine = StubEngine()
    answer([b'{"prompt": "x", "max_tokens": 2}', b'{"prompt": "x"}'], engine, max_tokens=5, temperature=0.5)
    assert [submitted["sampling"].max_tokens for submitted in engine.submitted] == [2, 5]
    assert {submitted["sampling"].temperature for submitted in engine.submitted} == {0.5}


def test_messages_go_through_the_chat_template() -> None:
    engine = StubEngine()
    answer([b'{"messages": [{"role": "user", "content": "x"}]}'], engine)
    assert engine.submitted[0]["prompt"] == [258, 120, 257, 259]


def test_an_engine_that_dies_ends_everything_and_leaves_nothing_running() -> None:
    async def dying(prompt: Sequence[int], sampling: SamplingParams) -> AsyncIterator[ChoiceDelta]:
        if prompt == [1]:
            raise EngineUnavailableError("dead")
        await asyncio.Event().wait()
        yield ChoiceDelta(0, "", (), 0)

    engine = StubEngine(script=dying)
    with pytest.raises(EngineUnavailableError):
        answer([b'{"prompt": [1]}', b'{"prompt": [2]}'], engine, window=5)
    assert all(stream.num_aborts for stream in engine.streams)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"prompt": "x", "messages": []}', b'{"prompt": 5}', b'{"prompt": "x", "tempr": 1}', b"\xff"],
)
def test_lines_that_are_no_prompts_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_line(text)


def test_line_numbers_count_empty_lines() -> None:
    assert [number for number, _ in numbered(io.BytesIO(b"a\n\n  \nb\nc"))] == [1, 4, 5]


def test_the_writer_reports_bad_lines_by_number() -> None:
    target, reports, advances = io.BytesIO(), [], []
    writer = LineWriter(target, reports.append, lambda: advances.append(1))
    writer.write(OutputLine(1, outputs=[], num_prompt_tokens=3))
    writer.write(OutputLine(4, error="no"))
    assert target.getvalue() == b'{"line":1,"outputs":[],"num_prompt_tokens":3}\n{"line":4,"error":"no"}\n'
    assert (reports, len(advances), writer.num_errors) == (["line 4: no"], 2, 1)
