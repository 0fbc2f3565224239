"""``chairlift chat``: the conversation in the terminal. Knows nothing of who answers."""

import sys
import unicodedata
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from chairlift.cli.options import HELP_NAMES, model_argument, setting_options, settings_from
from chairlift.cli.sampling_options import sampling_options, take_sampling

if TYPE_CHECKING:
    from chairlift.cli.chat_backends import ChatBackend

_HELP = "Ctrl-C stops an answer; /reset forgets the conversation; /exit or Ctrl-D leaves."


@click.command(context_settings=HELP_NAMES)
@model_argument
@click.option("--base-url", help="Talk to the server at this address, such as http://127.0.0.1:8000.")
@click.option("--api-key", help="Key for that server; better as CHAIRLIFT_API_KEY in the environment.")
@click.option("--system", help="System message at the beginning of the conversation.")
@sampling_options
@setting_options("model", "cache", "scheduler", "policy", without=("model",))
def chat(model: str | None, base_url: str | None, api_key: str | None, system: str | None, **flags: Any) -> None:
    """Talk to MODEL: loaded here, or at --base-url, where MODEL is the name the server knows it by."""
    sampling = take_sampling(flags)
    settings = settings_from({"model": model, "api_key": api_key, **flags})

    from chairlift.cli.chat_backends import open_backend
    from chairlift.observability.logging import configure_logging

    configure_logging("warning")
    with open_backend(settings, base_url, sampling) as backend:
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            import_module("readline")  # gives the prompt editing and a history

            click.echo(f"{backend.model}. {_HELP}")
        Conversation(backend, system, _prompt if is_terminal else _read_line).run()


class Conversation:
    """Turns of user and assistant. ``read_line`` gives the user's next line and raises ``EOFError`` at the end."""

    def __init__(self, backend: "ChatBackend", system: str | None, read_line: Callable[[], str]) -> None:
        self._backend = backend
        self._system = system
        self._read_line = read_line
        self._messages: list[dict[str, Any]] = []
        self._reset()

    def run(self) -> None:
        """Talk until the user leaves."""
        while True:
            try:
                line = self._read_line().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                click.echo(f"\n{_HELP}")
                continue
            if line == "/exit":
                return
            if line == "/reset":
                self._reset()
            elif line:
                self._take_turn(line)

    def _reset(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def _take_turn(self, line: str) -> None:
        """One question and its answer. What was said before Ctrl-C stays; a question that failed is forgotten."""
        from chairlift.errors import ChairliftError

        question = {"role": "user", "content": line}
        pieces: list[str] = []
        try:
            self._print_answer([*self._messages, question], pieces)
        except KeyboardInterrupt:
            click.echo(" [stopped]")
        except ChairliftError as error:
            click.echo(f"Error: {error.message}", err=True)
            return
        self._messages += [question, {"role": "assistant", "content": "".join(pieces)}]

    def _print_answer(self, messages: list[dict[str, Any]], pieces: list[str]) -> None:
        answer = self._backend.answer(messages)
        try:
            for piece in answer:
                pieces.append(piece)
                click.echo(without_controls(piece), nl=False)
                sys.stdout.flush()
        finally:
            answer.close()
        click.echo()


def without_controls(text: str) -> str:
    """Text without control characters, so that an answer cannot send commands to the terminal; its marks stay."""
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")


def _prompt() -> str:
    return input("> ")


def _read_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
