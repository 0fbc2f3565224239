"""Readers of public traces, chosen by what a file's first line looks like.

Knows nothing of what is done with the requests.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from chairlift.errors import ConfigurationError
from chairlift.workload.traces.azure import AzureTrace
from chairlift.workload.traces.decision_log import DecisionLogTrace
from chairlift.workload.traces.mooncake import MooncakeTrace
from chairlift.workload.traces.reading import Trace, open_text
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
    for reader in READERS.values():
        if reader.fits(first_line):
            return reader(path)
    raise ConfigurationError(f"trace {path} begins with {first_line[:80]!r}; known formats: {', '.join(READERS)}")
