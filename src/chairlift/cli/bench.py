"""``chairlift bench``: measure. Composes an engine with a workload and prints what came out.

Knows nothing of how steps run.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chairlift.benchmark.offline import OfflineMeasurement, OfflineReport, measure
from chairlift.cli.bench_compare import compare
from chairlift.cli.bench_output import write_file
from chairlift.cli.bench_serve import serve
from chairlift.cli.options import HELP_NAMES, model_argument, setting_options
from chairlift.cli.terminal import add_rows, text_table
from chairlift.errors import ConfigurationError
from chairlift.workload.lengths import WORKLOADS, WorkItem

if TYPE_CHECKING:
    from chairlift.engine.llm import LLM


@click.group(context_settings=HELP_NAMES)
def bench() -> None:
    """Measure throughput and latency."""


bench.add_command(serve)
bench.add_command(compare)


@bench.command(context_settings=HELP_NAMES)
@model_argument
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default="w1", show_default=True, help="What to run.")
@click.option(
    "--num-requests",
    "--num-prompts",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Requests in the workload.",
)
@click.option("--num-runs", type=click.IntRange(1), default=1, show_default=True, help="Runs; the median is reported.")
@click.option("--warmup/--no-warmup", default=True, show_default=True, help="Run a few requests before measuring.")
@click.option("--workload-seed", type=int, default=7, show_default=True, help="Seed of the workload.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the report as JSON; - is stdout.")
@setting_options("model", "cache", "scheduler", "policy", without=("model",))
def offline(  # noqa: PLR0913 - one parameter per flag
    model: str | None,
    workload: str,
    num_requests: int,
    num_runs: int,
    warmup: bool,
    workload_seed: int,
    json_path: str | None,
    **flags: object,
) -> None:
    """Run a workload whose requests are all there at the start, and report its throughput.

    Prefix caching is off unless asked for: the prompts are random, and a second run must not find the first one's.
    """
    from chairlift.engine.llm import LLM

    given = {name: value for name, value in flags.items() if value is not None}
    given.setdefault("enable_prefix_caching", False)
    items = WORKLOADS[workload](num_requests, workload_seed)
    with LLM(model, **given) as llm:
        _check_fits(items, llm.model_info.max_model_len)
        if warmup:
            _run(llm, [replace(item, num_output_tokens=4) for item in items[:4]])
        labels = {
            "workload": workload,
            "max_num_seqs": llm.model_info.max_num_seqs,
            "batching": llm.settings.scheduler.batching,
            "model": llm.model_info.name,
            "dtype": llm.model_info.dtype,
            "quantization": llm.model_info.quantization,
            "description": llm.model_info.description,
        }
        reports = [measure(lambda work: _run(llm, work), items, labels) for _ in range(num_runs)]
        numbers = llm.model_info.numbers
    report = sorted(reports, key=lambda one: one.output_tokens_per_s)[len(reports) // 2]
    try:
        if json_path == "-":
            click.echo(json.dumps(report.to_json()))
        elif json_path is not None:
            write_file(Path(json_path), json.dumps(report.to_json(), indent=2) + "\n")
    finally:
        _show(report, numbers)


def _check_fits(items: Sequence[WorkItem], max_model_len: int) -> None:
    longest = max(len(item.prompt_token_ids) + item.num_output_tokens for item in items)
    if longest > max_model_len:
        raise ConfigurationError(
            f"the workload has a request of {longest} tokens, but one may have {max_model_len} (--max-model-len)"
        )


def _run(llm: "LLM", items: Sequence[WorkItem]) -> OfflineMeasurement:
    from chairlift.core.sampling_params import SamplingParams

    sampling = [
        SamplingParams(temperature=0.0, max_tokens=item.num_output_tokens, ignore_eos=True, detokenize=False)
        for item in items
    ]
    llm.generate([list(item.prompt_token_ids) for item in items], sampling)
    stats = llm.last_run_stats
    assert stats is not None  # noqa: S101 - generate sets it
    return OfflineMeasurement(
        num_output_tokens=stats.num_output_tokens,
        num_prompt_tokens=stats.num_prompt_tokens,
        wall_s=stats.wall_s,
        num_steps=stats.num_steps,
        slot_utilization=stats.slot_utilization,
        num_preemptions=stats.num_preemptions,
        num_padding_tokens=stats.num_padding_tokens,
    )


def _show(report: OfflineReport, numbers: str) -> None:
    """Print a table on standard error, so that standard output can be JSON alone."""
    from rich.console import Console

    head = ("batching", "slots", "output tok/s", "total tok/s", "slots useful", "steps", "seconds")
    title = f"{report.workload}, {report.num_requests} requests, {report.model} in {numbers}"
    table = text_table(head, left=(), title=title)
    row = (
        report.batching,
        str(report.max_num_seqs),
        f"{report.output_tokens_per_s:.1f}",
        f"{report.total_tokens_per_s:.1f}",
        f"{report.slot_utilization:.1%}",
        str(report.num_steps),
        f"{report.wall_s:.1f}",
    )
    add_rows(table, [row])
    Console(stderr=True).print(table)
