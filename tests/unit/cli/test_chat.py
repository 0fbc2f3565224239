from collections.abc import Callable, Generator

import pytest

from chairlift.cli.chat import Conversation, without_controls
from chairlift.errors import EngineUnavailableError


class ScriptedBackend:
    model = "scripted"

    def __init__(self, pieces: list[object]) -> None:
        self.pieces = pieces
        self.asked: list[list[dict]] = []
        self.num_closed = 0

    def answer(self, messages: list[dict]) -> Generator[str]:
        self.asked.append([dict(message) for message in messages])
        try:
            for piece in self.pieces:
                if not isinstance(piece, str):
                    raise piece  # type: ignore[misc]
                yield piece
        finally:
            self.num_closed += 1


def typed(*lines: object) -> Callable[[], str]:
    """The user's lines, then the end of the input; exceptions are raised."""
    left = [*lines, EOFError()]

    def read_line() -> str:
        line = left.pop(0)
        if not isinstance(line, str):
            raise line  # type: ignore[misc]
        return line

    return read_line


def test_a_conversation_is_remembered_until_it_is_reset(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend(["an", "swer"])
    Conversation(backend, "be brief", typed("one", "", "two", "/reset", "three", "/exit", "never")).run()
    assert capsys.readouterr().out == "answer\n" * 3
    system = {"role": "system", "content": "be brief"}
    answer = {"role": "assistant", "content": "answer"}
    one, two, three = ({"role": "user", "content": text} for text in ("one", "two", "three"))
    assert backend.asked == [[system, one], [system, one, answer, two], [system, three]]


def test_ctrl_c_stops_the_answer_and_not_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend(["half", KeyboardInterrupt()])
    Conversation(backend, None, typed(KeyboardInterrupt(), "one", "two")).run()
    assert "half [stopped]" in capsys.readouterr().out
    assert backend.num_closed == 2
    assert backend.asked[1][1] == {"role": "assistant", "content": "half"}


def test_a_question_that_failed_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend([EngineUnavailableError("down")])
    Conversation(backend, None, typed("one", "two")).run()
    assert capsys.readouterr().err == "Error: down\n" * 2
    assert backend.asked[1] == [{"role": "user", "content": "two"}]


def test_an_answer_cannot_command_the_terminal() -> None:
    assert without_controls("a\x1b[2Jb\x07\r\n\tç\x9b👩‍🚀") == "a[2Jb\n\tç👩‍🚀"
