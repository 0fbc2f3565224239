"""Builds small simulations and keeps their plans. Knows nothing of pytest."""

from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.core.step_plan import StepPlan
from chairlift.simulator.latency.model import ConstantLatency, LatencyModel, MachineFacts, StepShape, StepTime
from chairlift.simulator.setup import SimulatedEngine
from chairlift.workload.streams import Stream, Workload


class SizedLatency:
    """Steps take longer the more they hold, so that arrivals fall at uneven places."""

    facts = MachineFacts(name="sized", max_model_len=400, num_kv_tokens=1000, kv_bytes_per_token=100)

    def time(self, shape: StepShape, page_size: int) -> StepTime:
        """One ms, and some more for rows and context."""
        copy_ns = 5000 * page_size * (shape.num_pages_out + shape.num_pages_in)
        rows_ns = 20_000 * shape.num_rows + 10 * (shape.num_decode_context_tokens + shape.num_chunk_pairs)
        return StepTime(1_000_000 + rows_ns + copy_ns, copy_ns)


class PlanLog:
    """Keeps every plan."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def planned(self, plan: StepPlan) -> None:
        """Keep it."""
        self.plans.append(plan)


def small_engine(
    *,
    num_pages: int = 64,
    page_size: int = 4,
    num_host_pages: int = 0,
    depth: int = 1,
    prefix_caching: bool = True,
    latency: LatencyModel | None = None,
    **scheduler: object,
) -> SimulatedEngine:
    """An engine with few slots and pages."""
    settings: dict = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 400, **scheduler}
    return SimulatedEngine(
        SchedulerConfig(**settings),
        CacheConfig(
            num_pages=num_pages,
            page_size=page_size,
            num_host_pages=num_host_pages,
            page_bytes=100 * page_size,
            host_bytes_per_s=1e9,
            enable_prefix_caching=prefix_caching,
        ),
        latency or SizedLatency(),
        depth,
    )


def lengths_workload(*lengths: int, num_requests: int | None = None) -> Workload:
    """Requests of these output lengths, all there at the start."""
    return Workload((Stream(name="lengths", output_lengths=lengths, num_requests=num_requests),))


__all__ = ["ConstantLatency", "PlanLog", "SizedLatency", "lengths_workload", "small_engine"]
