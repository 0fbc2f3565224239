"""Offline throughput: all requests present at the start, one number at the end.

Knows nothing of what runs them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from chairlift.workload.lengths import WorkItem


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineMeasurement:
    """What one run took. ``num_output_tokens`` are those that requests asked for and got, never thrown-away ones."""

    num_output_tokens: int
    num_prompt_tokens: int
    wall_s: float
    num_steps: int
    slot_utilization: float
    num_preemptions: int
    num_padding_tokens: int


RunWorkload = Callable[[Sequence[WorkItem]], OfflineMeasurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineReport:
    """A measurement with what it was measured on; its dictionary is the JSON that ``bench offline`` writes."""

    workload: str
    num_requests: int
    max_num_seqs: int
    batching: str
    model: str
    dtype: str
    quantization: str
    """Of the weights: ``none``, ``stored`` (as the file has them), ``int8`` or ``q4``."""
    description: str
    """What the engine says of its numbers, kernels and memory."""
    output_tokens_per_s: float
    total_tokens_per_s: float
    slot_utilization: float
    num_output_tokens: int
    num_prompt_tokens: int
    num_steps: int
    num_preemptions: int
    num_padding_tokens: int
    wall_s: float

    def to_json(self) -> dict[str, object]:
        """Return plain values by name."""
        return asdict(self)


def measure(run: RunWorkload, items: Sequence[WorkItem], labels: Mapping[str, object]) -> OfflineReport:
    """Run the workload once and report it. ``labels`` are the report's fields that say what was measured."""
    taken = run(items)
    wall_s = max(taken.wall_s, 1e-9)
    fields: dict[str, object] = {
        **labels,
        "num_requests": len(items),
        "output_tokens_per_s": taken.num_output_tokens / wall_s,
        "total_tokens_per_s": (taken.num_output_tokens + taken.num_prompt_tokens) / wall_s,
        **asdict(taken),
    }
    return OfflineReport(**fields)  # pyright: ignore[reportArgumentType] - labels are the fields named above
