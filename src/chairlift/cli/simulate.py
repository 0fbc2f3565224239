"""``chairlift simulate``: run a workload through the scheduler without a model, on simulated time.

Knows nothing of how steps are decided or timed; it reads what to run, runs it and prints what came out.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from chairlift.cli.options import HELP_NAMES, setting_options, settings_from
from chairlift.cli.terminal import add_rows, print_line, text_table
from chairlift.config.sizes import parse_bytes
from chairlift.errors import ConfigurationError
from chairlift.simulator.latency.catalogue import DEFAULT, find_latency_model
from chairlift.simulator.latency.model import ConstantLatency, LatencyModel
from chairlift.simulator.setup import SimulatedEngine, machine_defaults, set_up
from chairlift.simulator.simulation import Simulation
from chairlift.simulator.summary import RunSummary, summarize
from chairlift.simulator.table import COLUMNS, refusal_warnings, table_rows
from chairlift.simulator.variants import Variant, combine, parse_compare, parse_sweep
from chairlift.workload.streams import Stream, Workload
from chairlift.workload.workload_file import parse_stream, parse_trace_option, read_workload

_LONGEST_GUESS_TOKENS = 8192
_SIZES = ("kv_cache_memory", "swap_space")
"""Settings that are sizes of memory."""
_SERVER_LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens", "max_ttft_ms")
"""What the server checks before the scheduler is asked."""


@click.command(context_settings=HELP_NAMES)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="FILE[,KEY=VALUE...]",
    help="Trace to serve, with the keys of a stream: name, tier, tenant, rate, num_requests, slo ... May be repeated.",
)
@click.option(
    "--workload",
    "workload_path",
    type=click.Path(path_type=Path),
    help="TOML file with several streams, which say everything themselves.",
)
@click.option("--output-lengths", help="Serve requests of these output lengths, all there at the start: 20,45,210.")
@click.option("--num-requests", type=click.IntRange(1), help="Requests of each stream that does not say.")
@click.option("--rate", type=float, help="Requests per second of each stream that does not say.")
@click.option("--burstiness", type=float, help="Coefficient of variation of gaps between arrivals; 1 is Poisson.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests alive at a time, each replaced when it ends.")
@click.option("--slo", help="Objective of each stream that does not say: TTFT/TPOT in ms, or a published one's name.")
@click.option("--workload-seed", type=int, help="Seed of everything drawn.  [default: 0]")
@click.option(
    "--latency-model",
    metavar="FILE|MODEL@DEVICE[xN]",
    help=f"JSON of chairlift calibrate, or sheets such as llama-3.1-70b@h100x4.  [default: {DEFAULT}; one step per "
    "millisecond with --output-lengths]",
)
@click.option("--compare", help="Runs to compare, such as fcfs,deadline+fair,fcfs+no-tiers,preemption-mode=swap.")
@click.option("--sweep", help="Setting to vary, such as max_num_seqs=8,16,32,64; the report shows the knee.")
@click.option("--jump/--no-jump", default=True, help="Jump stretches in which nothing is decided.  [default: on]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the numbers as JSON; - is stdout.")
@click.option("--report", "report_path", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page.")
@click.option(
    "--max-model-len", type=click.IntRange(2), help="Prompt plus output tokens at most; the model's if absent."
)
@setting_options("cache", "scheduler", "policy", "queue", without=_SERVER_LIMITS)
def simulate(  # noqa: PLR0913 - one parameter per flag
    traces: tuple[str, ...],
    workload_path: Path | None,
    output_lengths: str | None,
    latency_model: str | None,
    compare: str | None,
    sweep: str | None,
    jump: bool,
    json_path: str | None,
    report_path: Path | None,
    **options: Any,
) -> None:
    """Serve a workload on a machine that is not there, with the very scheduler that serves on real ones.

    Settings that are not given are those that the latency model's machine would be set up with.
    """
    common = {
        name: options.pop(name)
        for name in ("num_requests", "rate", "burstiness", "concurrency", "slo", "workload_seed")
    }
    workload = _read_workload(traces, workload_path, output_lengths, common)
    latency: LatencyModel = (
        ConstantLatency()
        if latency_model is None and output_lengths is not None
        else find_latency_model(latency_model or DEFAULT)
    )
    given = {name: value for name, value in options.items() if value is not None}
    setting, swept = ("", []) if sweep is None else parse_sweep(sweep)
    compared = [] if compare is None else parse_compare(compare)
    variants = combine(compared, swept)
    axis = _numbers(setting, swept) if report_path is not None else ("", ())
    _require_folders(report_path, None if json_path == "-" else json_path)
    # All of them first: what is wrong with the last one should not come out after the others have run.
    prepared = [_prepare(variant, workload, latency, given) for variant in variants]
    runs = [_run(variant.label, *parts, jumps=jump) for variant, parts in zip(variants, prepared, strict=True)]
    try:
        _write_files(json_path, report_path, workload, runs, (axis, compared))
    finally:
        _show(runs)  # also if there is no more room on the disk for what was simulated for an hour


def _write_files(
    json_path: str | None,
    report_path: Path | None,
    workload: Workload,
    runs: Sequence[RunSummary],
    varied: tuple[tuple[str, tuple[float, ...]], Sequence[Variant]],
) -> None:
    if json_path is not None:
        record = runs[0].to_json() if len(runs) == 1 else {"runs": [run.to_json() for run in runs]}
        text = json.dumps(record, indent=2) + "\n"
        if json_path == "-":
            click.echo(text, nl=False)
        else:
            _write(Path(json_path), text)
    if report_path is not None:
        _report(report_path, workload, runs, *varied)


def _read_workload(
    traces: Sequence[str], path: Path | None, output_lengths: str | None, common: Mapping[str, Any]
) -> Workload:
    if (bool(traces) + (path is not None) + (output_lengths is not None)) != 1:
        raise ConfigurationError("give exactly one of --trace, --workload and --output-lengths")
    seed = common["workload_seed"]
    if path is not None:
        beside = [name for name, value in common.items() if value is not None and name != "workload_seed"]
        if beside:
            flags = ", ".join("--" + name.replace("_", "-") for name in beside)
            raise ConfigurationError(f"{flags} cannot be given beside --workload, whose streams say it")
        workload = read_workload(path)
        return workload if seed is None else replace(workload, seed=seed)
    names = {
        "num_requests": "num_requests",
        "rate": "rate",
        "burstiness": "burstiness_cv",
        "concurrency": "concurrency",
    }
    defaults = {key: common[name] for name, key in {**names, "slo": "slo"}.items() if common[name] is not None}
    streams: list[Stream] = []
    if output_lengths is not None:
        table = {"name": "lengths", "output_lengths": output_lengths, **defaults}
        streams.append(parse_stream(table, Path(), "--output-lengths"))
    for number, text in enumerate(traces, start=1):
        streams.append(parse_trace_option(text, number, defaults))
    return Workload(tuple(streams), seed or 0)


def _prepare(
    variant: Variant, workload: Workload, latency: LatencyModel, given: Mapping[str, object]
) -> tuple[Workload, SimulatedEngine]:
    values = machine_defaults(latency.facts, {**given, **dict(variant.values)})
    settings = settings_from(values)
    if not variant.has_tiers:
        workload = workload.without_tiers()
    longest = max((max(stream.output_lengths, default=0) + 1 for stream in workload.streams), default=0)
    engine = set_up(
        settings,
        latency,
        longest_tokens=longest if longest > 1 else _LONGEST_GUESS_TOKENS,
        tenants=workload.tenants(),
    )
    return workload, engine


def _run(label: str, workload: Workload, engine: SimulatedEngine, *, jumps: bool) -> RunSummary:
    started_s = time.perf_counter()
    try:
        finished = Simulation(engine, workload, jumps=jumps).run()
    except OverflowError:
        raise ConfigurationError(
            f"{label}: the simulation passes year 292, behind which there is no time; see to the latency model and to "
            "the lengths of the workload"
        ) from None
    return summarize(finished, engine, workload, label=label, wall_s=time.perf_counter() - started_s)


def _numbers(setting: str, swept: Sequence[Variant]) -> tuple[str, tuple[float, ...]]:
    """What a sweep goes over and its values, as a report needs them: sizes of memory are numbers of GiB."""
    if setting in _SIZES:
        return f"{setting}, GiB", tuple(parse_bytes(variant.label, setting=setting) / 2**30 for variant in swept)
    values: list[float] = []
    for variant in swept:
        try:
            values.append(float(variant.label))
        except ValueError:
            raise ConfigurationError(f"a report needs numbers to sweep over, got {variant.label!r}") from None
    return setting, tuple(values)


def _report(
    path: Path,
    workload: Workload,
    runs: Sequence[RunSummary],
    swept: tuple[str, tuple[float, ...]],
    compared: Sequence[Variant],
) -> None:
    from chairlift.simulator.report.page import Sweep, render_page

    setting, values = swept
    sweep = None
    if values:
        labels = [variant.label for variant in compared] or ["run"]
        size = len(values)
        groups = tuple((label, tuple(runs[i * size : (i + 1) * size])) for i, label in enumerate(labels))
        sweep = Sweep(setting, values, groups)
    title = "Simulation of " + ", ".join(stream.name for stream in workload.streams)
    _write(path, render_page(title, runs, sweep))


def _require_folders(*paths: Path | str | None) -> None:
    """Say so before the simulation, and not after it, if there is no place for a file."""
    for path in paths:
        if path is not None and not Path(path).parent.is_dir():
            raise ConfigurationError(f"{path} cannot be written: {os.strerror(errno.ENOENT)}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def _show(runs: Sequence[RunSummary]) -> None:
    """Print a table on standard error, so that standard output can be JSON alone."""
    from rich.console import Console

    # A file or a pipe has no width of its own, and a table of so many columns no use for 80.
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 200)
    table = text_table(COLUMNS, left=("run", "stream"), title=f"{runs[0].machine}; times in milliseconds")
    for run in runs:
        add_rows(table, table_rows(run))
        table.add_section()
    console.print(table)
    for run in runs:
        jain = "" if run.jain_index is None else f", Jain index {run.jain_index:.4f}"
        print_line(
            console,
            f"{run.label}: {run.simulated_s:.1f} s simulated in {run.wall_s:.1f} s, {run.num_steps} steps "
            f"({run.num_jumped_steps} jumped), {run.slot_utilization:.1%} of slots useful, "
            f"mean batch {run.mean_batch:.1f}{jain}",
        )
        for warning in refusal_warnings(run):
            print_line(console, f"warning: {warning}", style="yellow")
