"""Two tenants with more to do than the machine can, one of them with ten times as much: who is served how much?

    python -m benchmarks.claims.fairness                   # 30 s of simulated arrivals, about a minute
    python -m benchmarks.claims.fairness --seconds 10

An 8B model on an H100, from its data sheet. The quiet tenant sends more chat requests than half of the machine can
serve, the loud one ten times as many, so both soon have requests waiting for good. Service counts as the virtual
counters do it: a prompt token 1, an output token 2, over the tenant's weight. Claimed:

- with ``--tenant-order fair`` the service of the two differs in no stretch of time by more than twice

      U = longest prompt + 2 * slots * longest output

  A request is admitted for the tenant with the smaller counter, so only what is admitted at a time can carry one past
  the other: a prompt, and the outputs of those that run (Sheng et al., OSDI 2024, theorem 4.4, which has the tokens
  that fit in memory where slots times longest output stands here; the lesser of the two holds).
- Jain's index of the tokens served is at least 0.99 with ``fair`` and below 0.7 with ``none``;
- weights of 2 and 1 give service of 2 to 1 within 2 %.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.claims.chat import CHAT
from benchmarks.claims.simulated import Run, Step, parse_options, show, simulate, write_json
from chairlift.report.statistics import jain_index
from chairlift.workload.streams import Stream

QUIET_RATE_PER_S = 30.0
_TENANTS = ("loud", "quiet")
_OUTPUT_WEIGHT = 2.0
_WARM_UP_PART = 0.25
"""Until both have requests waiting."""


@dataclass(frozen=True)
class Row:
    """One run, while both tenants had requests waiting."""

    label: str
    loud_tokens: int
    quiet_tokens: int
    jain: float
    service_ratio: float
    """Weighted tokens of the loud tenant over those of the quiet one."""
    most_difference: float
    """Greatest difference of weighted tokens over weight in any stretch of time."""
    loud_ttft_p50_ms: float
    quiet_ttft_p50_ms: float


@dataclass(frozen=True)
class Figures:
    """What came out."""

    bound: float
    """What the difference may be: 2 U."""
    fair: Row
    none: Row
    weighted: Row

    @property
    def holds(self) -> bool:
        """Whether what is claimed is so."""
        is_fair = self.fair.most_difference <= self.bound and self.fair.jain >= 0.99
        return is_fair and self.none.jain < 0.7 and abs(self.weighted.service_ratio / 2 - 1) <= 0.02


def measure(seconds: float, seed: int = 0) -> Figures:
    """Let both tenants send for so many seconds."""

    def run(label: str, weight: float, order: str) -> Run:
        loud = Stream(
            name="loud",
            tenant="loud",
            weight=weight,
            duration_s=seconds,
            rate_per_s=10 * QUIET_RATE_PER_S,
            **CHAT,
        )
        quiet = Stream(name="quiet", tenant="quiet", duration_s=seconds, rate_per_s=QUIET_RATE_PER_S, **CHAT)
        return simulate(label, [loud, quiet], seed=seed, tenant_order=order)

    fair, none, weighted = run("fair", 1.0, "fair"), run("none", 1.0, "none"), run("fair, weights 2:1", 2.0, "fair")
    longest_prompt, longest_output = CHAT["prompt_tokens"].max_tokens, CHAT["output_tokens"].max_tokens
    num_outputs = min(fair.summary.max_num_seqs * longest_output, fair.summary.num_pages * fair.summary.page_size)
    bound = 2 * (longest_prompt + _OUTPUT_WEIGHT * num_outputs)
    return Figures(bound, _row(fair, seconds, 1.0), _row(none, seconds, 1.0), _row(weighted, seconds, 2.0))


def _row(run: Run, seconds: float, loud_weight: float) -> Row:
    steps = run.meter.between(_WARM_UP_PART * seconds, seconds)
    loud, quiet = (sum(step.served(tenant) for step in steps) for tenant in _TENANTS)
    loud_service, quiet_service = (sum(_service(step, tenant) for step in steps) for tenant in _TENANTS)
    return Row(
        run.summary.label,
        loud,
        quiet,
        jain_index([loud / loud_weight, quiet]) or 0.0,
        loud_service / quiet_service,
        _most_difference(steps, loud_weight),
        run.ttft_ms("loud", 50.0),
        run.ttft_ms("quiet", 50.0),
    )


def _service(step: Step, tenant: str) -> float:
    return step.prefill.get(tenant, 0) + _OUTPUT_WEIGHT * step.output.get(tenant, 0)


def _most_difference(steps: Sequence[Step], loud_weight: float) -> float:
    difference = lowest = highest = 0.0
    for step in steps:
        difference += _service(step, "loud") / loud_weight - _service(step, "quiet")
        lowest, highest = min(lowest, difference), max(highest, difference)
    return highest - lowest


def main() -> None:
    """Measure and print."""
    options = parse_options(__doc__, seconds=30, seed=0)
    found = measure(options.seconds, options.seed)
    columns = ("", "loud tokens", "quiet tokens", "Jain", "service", "most difference", "TTFT p50 loud, s", "quiet, s")
    rows = [
        (
            row.label,
            f"{row.loud_tokens:,}",
            f"{row.quiet_tokens:,}",
            f"{row.jain:.4f}",
            f"{row.service_ratio:.3f}",
            f"{row.most_difference:,.0f}",
            f"{row.loud_ttft_p50_ms / 1000:.1f}",
            f"{row.quiet_ttft_p50_ms / 1000:.1f}",
        )
        for row in (found.fair, found.none, found.weighted)
    ]
    show(f"Two tenants, {QUIET_RATE_PER_S:g} and {10 * QUIET_RATE_PER_S:g} requests per second", columns, rows)
    print(
        f"difference of service with fair: {found.fair.most_difference:,.0f} weighted tokens; bound {found.bound:,.0f}"
    )
    print("holds" if found.holds else "MISSED")
    write_json(options.json, asdict(found))


if __name__ == "__main__":
    main()
