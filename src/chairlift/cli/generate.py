"""``chairlift generate``: files in and out, progress and status. Knows nothing of how lines are answered."""

import asyncio
import io
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from chairlift.cli.options import HELP_NAMES, model_argument, setting_options, settings_from
from chairlift.cli.sampling_options import sampling_options, take_sampling
from chairlift.cli.terminal import plain

if TYPE_CHECKING:
    from chairlift.cli.jsonl import OutputLine
    from chairlift.config.settings import Settings

_LINES_PER_SLOT = 2
"""Lines in work at once for each slot: enough that no slot waits for the next line."""


@click.command(context_settings=HELP_NAMES)
@model_argument
@click.option(
    "-i", "--input", "source", type=click.File("rb"), default="-", help="File to read; standard input if absent."
)
@click.option(
    "-o", "--output", "target", type=click.File("wb"), default="-", help="File to write; standard output if absent."
)
@sampling_options
@setting_options("model", "cache", "scheduler", "policy", without=("model",))
def generate(model: str | None, source: IO[bytes], target: IO[bytes], **flags: Any) -> int:
    """Answer prompts with MODEL: JSON lines in, JSON lines out, in the same order.

    An input line has "prompt" (text or token ids) or "messages", and may have an "id" and sampling fields such as
    "max_tokens" or "temperature" that win over the flags. A bad line is answered by a line with an "error" and named
    on standard error; the status is then 1.
    """
    sampling = take_sampling(flags)
    settings = settings_from({"model": model, **flags})
    return asyncio.run(_run(settings, source, target, sampling))


async def _run(settings: "Settings", source: IO[bytes], target: IO[bytes], sampling: dict[str, Any]) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from chairlift.cli.line_answers import answer_lines
    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.observability.logging import configure_logging

    configure_logging("warning")
    engine = AsyncEngine(settings)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        await engine.start()
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("prompts", total=_count_lines(source))
            writer = LineWriter(
                target,
                lambda said: progress.console.print(plain(said), soft_wrap=True),
                lambda: progress.advance(task),
            )
            window = _LINES_PER_SLOT * settings.scheduler.max_num_seqs
            await answer_lines(engine, numbered(source), writer.write, sampling, window=window)
    finally:
        await engine.stop(0.0)
    return 1 if writer.num_errors else 0


class LineWriter:
    """Writes answers, and reports those that are errors."""

    def __init__(self, target: IO[bytes], report: Callable[[str], None], advance: Callable[[], None]) -> None:
        import msgspec

        self.num_errors = 0
        self._target = target
        self._report = report
        self._advance = advance
        self._encode = msgspec.json.Encoder().encode

    def write(self, answer: "OutputLine") -> None:
        """Write one answer at once, so that a reader of a pipe need not wait for the rest."""
        self._target.write(self._encode(answer) + b"\n")
        self._target.flush()
        if answer.error is not None:
            self.num_errors += 1
            self._report(f"line {answer.line}: {answer.error}")
        self._advance()


def numbered(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1; empty ones are left out."""
    return ((number, line) for number, line in enumerate(source, 1) if line.strip())


def _count_lines(source: IO[bytes]) -> int | None:
    """How many prompts a file has; ``None`` for a pipe, which can be read only once."""
    try:
        start = source.tell()
        count = sum(1 for line in source if line.strip())
        source.seek(start)
    except (OSError, io.UnsupportedOperation):
        return None
    return count
