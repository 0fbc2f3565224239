"""Readers of public traces, chosen by what a file's first line looks like.

Knows nothing of what is done with the requests.
"""

import csv
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from chairlift.config.quoting import quoted
from chairlift.errors import ConfigurationError
from chairlift.workload.faults import in_words
from chairlift.workload.items import MAX_CONTENT_ID, MAX_OUTPUT_TOKENS, WorkRequest
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


_DAMAGED = (OSError, EOFError, UnicodeDecodeError, zlib.error)
"""What reading a file raises that is cut off, not what its name says, or overwritten in the middle."""
_LATEST_NS = 10**18
"""Arrivals have to be within thirty years of the first one: times are kept in 64 bits, also after some waiting."""


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
            for request in self._trace.requests(lap):
                call: WorkRequest | None = request
                while call is not None:
                    _check(call)
                    call = call.follow_up
                yield request

    @contextmanager
    def _blaming_the_file(self) -> Generator[None]:
        try:
            yield
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise ConfigurationError(f"{self._complaint}: {in_words(error)}") from error
        except (csv.Error, *_DAMAGED) as error:
            raise ConfigurationError(f"{self._complaint}: {in_words(error)}") from error


def _check(request: WorkRequest) -> None:
    """Refuse what no simulation can work with. Prompts that are just too long are refused when they arrive."""
    prompt, output = request.num_prompt_tokens, request.num_output_tokens
    if type(prompt) is not int or type(output) is not int or min(prompt, output) < 1:
        raise ValueError(
            f"tokens of a prompt ({quoted(prompt)}) and an answer ({quoted(output)}) must be whole numbers from 1 on"
        )
    if output > MAX_OUTPUT_TOKENS:
        raise ValueError(f"an answer has {quoted(output)} tokens, and one may have {MAX_OUTPUT_TOKENS}")
    if not 0 <= request.arrival_ns <= _LATEST_NS:
        raise ValueError(f"arrivals must be in [0, {_LATEST_NS / 1e9:g}] s, and one is at {request.arrival_ns / 1e9:g}")
    tier, tenant = cast("object", request.tier), cast("object", request.tenant)  # of a log that anybody wrote
    if not isinstance(tier, int | None) or not isinstance(tenant, str | None):
        raise ValueError(f"tier {tier!r} must be a whole number, and tenant {tenant!r} a name")
    if request.runs and sum(run.num_tokens for run in request.runs) != prompt:
        raise ValueError(f"hash ids and block_tokens do not fit the {prompt} tokens of a prompt")
    for run in request.runs:
        if type(run.num_tokens) is not int or run.num_tokens < 1:
            raise ValueError(f"a block has {run.num_tokens!r} tokens, and must have a whole number of them from 1 on")
        if type(run.content_id) is not int or not 0 <= run.content_id <= MAX_CONTENT_ID:
            raise ValueError(f"a hash id must be in [0, {MAX_CONTENT_ID}), also when the trace is read again")


def open_trace(path: Path) -> Trace:
    """Find out a trace's format and return its reader.

    Raises:
        ConfigurationError: the file cannot be read, or is of no known format; the message lists those there are.
    """
    try:
        with open_text(path) as file:
            first_line = file.readline()
    except (ValueError, *_DAMAGED) as error:
        raise ConfigurationError(f"trace {path} cannot be read: {in_words(error)}") from None
    for name, reader in READERS.items():
        if reader.fits(first_line):
            return _Checked(reader(path), f"trace {path}, which looks like {name}, has lines that do not fit, or none")
    raise ConfigurationError(
        f"trace {path} begins with {first_line[:80]!r}; known formats: {', '.join(READERS)}; "
        "a trace of your own is JSON lines with input_length and output_length, and timestamp (ms) where known"
    )
