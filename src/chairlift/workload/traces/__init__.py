"""Readers of public traces, chosen by what a file's first line looks like.

Knows nothing of what is done with the requests.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from chairlift.errors import ConfigurationError
from chairlift.workload.items import WorkRequest
from chairlift.workload.traces.azure import AzureTrace
from chairlift.workload.traces.decision_log import DecisionLogTrace
from chairlift.workload.traces.mooncake import MooncakeTrace
from chairlift.workload.traces.reading import Lap, Trace, open_text
from chairlift.workload.traces.servegen import ServeGenTrace
from chairlift.workload.traces.tau_bench import TauBenchTrace
from chairlift.workload.traces.vidur import VidurTrace


class _Reader(Protocol):
    fits: Callable[[str], bool]

    def __call__(self, path: Path) -> Trace: ...


READERS: dict[str, _Reader] = {
    "azure": AzureTrace,
    "mooncake": MooncakeTrace,
    "servegen": ServeGenTrace,
    "vidur": VidurTrace,
    "tau-bench": TauBenchTrace,
    "decision log": DecisionLogTrace,
}
"""Formats by name."""


class _Checked:
    """A trace whose lines are read as they come: what is wrong with one is the file's fault, and said so."""

    def __init__(self, trace: Trace, complaint: str) -> None:
        self._trace = trace
        self._complaint = complaint

    @property
    def has_arrivals(self) -> bool:
        with self._blaming_the_file():
            return self._trace.has_arrivals

    def requests(self, lap: Lap) -> Iterator[WorkRequest]:
        with self._blaming_the_file():
            yield from self._trace.requests(lap)

    @contextmanager
    def _blaming_the_file(self) -> Generator[None]:
        try:
            yield
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, OSError, EOFError) as error:
            raise ConfigurationError(f"{self._complaint}: {error!r}") from error


def open_trace(path: Path) -> Trace:
    """Find out a trace's format and return its reader.

    Raises:
        ConfigurationError: the file cannot be read, or is of no known format; the message lists those there are.
    """
    try:
        with open_text(path) as file:
            first_line = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"trace {path} cannot be read: {error}") from None
    for name, reader in READERS.items():
        if reader.fits(first_line):
            return _Checked(reader(path), f"trace {path}, which looks like {name}, has lines that do not fit, or none")
    raise ConfigurationError(f"trace {path} begins with {first_line[:80]!r}; known formats: {', '.join(READERS)}")
