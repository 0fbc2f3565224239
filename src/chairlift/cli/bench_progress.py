"""Progress of a benchmark in the terminal. Knows nothing of what is measured.

It draws twice a second at most and only when something happened: drawing takes the time of the event loop that also
looks at what arrives.
"""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from chairlift.benchmark.clock import NS_PER_S, Clock
from chairlift.benchmark.records import CallRecord
from chairlift.cli.terminal import plain

_PERIOD_NS = 500_000_000


class ProgressBar:
    """A line before the first run and a bar for each, on standard error; the line alone where that is no terminal.

    Args:
        console: where to draw.
        clock: the benchmark's clock.
        num_requests: requests of a run; unknown if absent.
        start_line: what to print when the first run begins.
        is_shown: whether to draw bars at all.
    """

    def __init__(
        self,
        console: Console,
        clock: Clock,
        num_requests: int | None,
        *,
        start_line: str | None = None,
        is_shown: bool = True,
    ) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        )
        is_shown = is_shown and console.is_terminal
        self._progress = Progress(*columns, console=console, auto_refresh=False, disable=not is_shown)
        self._console = console
        self._clock = clock
        self._num_requests = num_requests
        self._start_line = start_line

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.refresh()
        self._progress.stop()

    def watch(self, number: int) -> "RunWatch":
        """Begin with a run, and return what is to be told about it."""
        if self._start_line is not None:
            self._console.print(plain(self._start_line), soft_wrap=True)
            self._start_line = None
        task = self._progress.add_task(f"run {number}", total=self._num_requests, said="")
        self._progress.refresh()
        return RunWatch(self._progress, task, self._clock)


class RunWatch:
    """Counts what happens in a run and draws it."""

    def __init__(self, progress: Progress, task: TaskID, clock: Clock) -> None:
        self._progress = progress
        self._task = task
        self._clock = clock
        self._start_ns = self._drawn_ns = clock.now_ns()
        self._num_sent = self._num_ended = self._num_failed = self._num_tokens = self._num_done = 0

    def sent(self, record: CallRecord) -> None:
        """Count a request that goes out."""
        del record
        self._num_sent += 1
        self._draw()

    def ended(self, record: CallRecord) -> None:
        """Count a request that has ended. The bar counts conversations as one."""
        if record.sent_ns:
            self._num_ended += 1
        self._num_done += record.turn == 0
        self._num_failed += not record.is_ok
        self._num_tokens += record.tally.num_tokens
        self._draw()

    def _draw(self) -> None:
        now_ns = self._clock.now_ns()
        if now_ns - self._drawn_ns < _PERIOD_NS:
            return
        self._drawn_ns = now_ns
        speed = self._num_tokens * NS_PER_S / (now_ns - self._start_ns)
        failed = f", {self._num_failed} failed" if self._num_failed else ""
        said = f"{self._num_sent - self._num_ended} on their way{failed}, {speed:.0f} tok/s"
        self._progress.update(self._task, completed=self._num_done, said=said, refresh=True)
