"""Steps that a serving engine ran, out of its decision log: what each held and how long it took.

Knows nothing of files. Fitted to these, a latency model knows what serving costs on that machine, the processes beside
the engine included.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chairlift.core.decision_log import Entry, read_configs
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.step_plan import Chunk, NewRequest, PageCopy, StepPlan
from chairlift.errors import ConfigurationError
from chairlift.simulator.fit import TimedStep
from chairlift.simulator.latency.model import StepShape
from chairlift.simulator.shapes import ShapeTracker
from chairlift.workload.faults import in_words

_SAMPLING = SamplingParams()
_MOST_STEPS = 4000
_NUM_WARM_UP = 2
"""First steps after a start compile and touch memory for the first time."""


@dataclass(slots=True)
class LoggedSteps:
    """What a log says about the machine. ``overheads`` are rows that sampled, and ns until the next step began."""

    scheduler: dict[str, Any] = field(default_factory=dict[str, Any])
    cache: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: list[TimedStep] = field(default_factory=list[TimedStep])
    overheads: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def some_steps(self) -> Sequence[TimedStep]:
        """Return evenly chosen steps, as many as are quickly fitted."""
        return self.steps[:: -(-len(self.steps) // _MOST_STEPS)] if self.steps else []


class _Run:
    """Follows one scheduler, from its start."""

    def __init__(self, found: LoggedSteps) -> None:
        self._found = found
        self._shapes = ShapeTracker()
        self._planned: dict[int, tuple[StepShape, int]] = {}
        self._last_end: tuple[int, int] | None = None
        """Rows that sampled in the last step, and when it ended, if the next one can follow at once."""
        self._num_steps = 0

    def take(self, entry: Entry) -> None:
        """Take note of an entry; those that are neither plan nor result say nothing about steps."""
        if entry.get("kind") == "plan" and "error" not in entry:
            self.plan(entry)
        elif entry.get("kind") == "commit":
            self.commit(entry)

    def plan(self, entry: Entry) -> None:
        """A step was planned, or there was nothing to plan."""
        described = entry.get("plan")
        if described is None:
            self._last_end = None
            return
        if self._last_end is not None:
            rows, end_ns = self._last_end
            self._found.overheads.append((rows, max(0, entry["t"] - end_ns)))
            self._last_end = None
        self._planned[described["step"]] = (self._shapes.take(_read_plan(described)), entry["t"])

    def commit(self, entry: Entry) -> None:
        """A step's result came."""
        shape, started_ns = self._planned.pop(entry["step"])
        self._num_steps += 1
        if self._num_steps > _NUM_WARM_UP and entry["ns"] > 0:
            self._found.steps.append(TimedStep(shape, entry["ns"]))
            if not self._planned:
                self._last_end = (shape.num_sampled, started_ns + entry["ns"])


def read_steps(entries: Iterable[Entry]) -> LoggedSteps:
    """Collect the steps of a log.

    Raises:
        ConfigurationError: it is no decision log, or has no steps.
    """
    found = LoggedSteps()
    run: _Run | None = None
    for number, entry in enumerate(entries, start=1):
        kind = entry.get("kind")
        if kind == "start":
            found.scheduler, found.cache = (asdict(config) for config in read_configs(entry))
            run = _Run(found)
            continue
        if run is None:
            raise ConfigurationError("this is no decision log: it does not begin with the scheduler's settings")
        if kind == "fail_all":
            run = _Run(found)
        try:
            run.take(entry)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(f"entry {number} of the decision log does not fit: {in_words(error)}") from error
    if not found.steps:
        raise ConfigurationError("the decision log has no steps")
    return found


def _read_plan(described: Entry) -> StepPlan:
    return StepPlan(
        step=described["step"],
        epoch=described["epoch"],
        num_tokens=described["tokens"],
        num_decodes=described["decodes"],
        new=tuple(
            NewRequest(request_id, (), num_prompt, num_computed, (), _SAMPLING, 0)
            for request_id, _, num_prompt, num_computed, _ in described.get("new", ())
        ),
        ended=tuple(described.get("ended", ())),
        decodes_joined=tuple(described.get("joined", ())),
        decodes_left=tuple(described.get("left", ())),
        chunks=tuple(
            Chunk(request_id, start, length, bool(samples), padding)
            for request_id, start, length, samples, padding in described.get("chunks", ())
        ),
        swapped_out=tuple(PageCopy(*pair) for pair in described.get("swapped_out", ())),
        swapped_in=tuple(PageCopy(*pair) for pair in described.get("swapped_in", ())),
    )
