"""``chairlift calibrate``: time steps of the real engine on this machine, and write a latency model for ``simulate``.

Knows nothing of how steps run; the grid and the fit are the simulator's.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chairlift.cli.options import HELP_NAMES, model_argument, setting_options, settings_from
from chairlift.errors import ConfigurationError
from chairlift.report.text import printable
from chairlift.simulator.calibration import Calibration, Limits, choose_cells, fit_overhead
from chairlift.simulator.fit import TimedStep, fit_steps
from chairlift.simulator.latency.measured import MeasuredLatency
from chairlift.simulator.latency.model import MachineFacts
from chairlift.simulator.logged_steps import read_steps

if TYPE_CHECKING:
    from chairlift.engine.build import BuiltEngine
    from chairlift.engine.messages import ModelInfo

POOR_MEAN, POOR_P95 = 0.15, 0.5
"""Errors on steps that were held out above which a model is worth little: a plan made with it would be off as far."""

_OVERHEAD_STEPS = 24
_OVERHEAD_PROMPT_TOKENS = 8


@click.command(context_settings=HELP_NAMES)
@model_argument
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JSON to write.")
@click.option(
    "--thoroughness", type=click.IntRange(1, 3), default=2, show_default=True, help="1 is a coarse grid, 3 a fine one."
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Timed steps per cell.")
@click.option("--max-seconds", type=float, default=300.0, show_default=True, help="Begin no further cell after this.")
@click.option(
    "--from-log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Fit to the steps of a decision log that chairlift serve wrote, instead of timing any.",
)
@click.option(
    "--executor",
    metavar="torch",
    help="What computes the steps. The toy model has no steps that are worth a latency model.  [default: torch]",
)
@setting_options("model", "cache", "scheduler", without=("model", "executor", "fake_step_ms"))
def calibrate(
    model: str | None,
    output: Path,
    thoroughness: int,
    repeats: int,
    max_seconds: float,
    from_log: Path | None,
    **flags: object,
) -> None:
    """Time steps of MODEL on this machine and fit a latency model to them.

    The steps are set up for the timing: so many decodes with so much context, so long a chunk behind so much of its
    prompt, and both together. Give the settings that you would serve with; simulate takes its defaults from them.
    """
    if not output.parent.is_dir():
        raise ConfigurationError(f"--output {output} cannot be written: there is no folder {output.parent}")
    if not max_seconds > 0:
        raise ConfigurationError(f"--max-seconds must be above 0, got {max_seconds:g}")
    if from_log is not None:
        _fit_log(from_log, output)
        return
    settings = settings_from({"model": model, "enable_prefix_caching": False, **_given(flags)})

    if settings.model.executor != "torch":
        raise ConfigurationError(
            f"--executor {settings.model.executor} cannot be calibrated: a step of the toy model takes --fake-step-ms, "
            "whatever it holds, and it reads no KV that nobody wrote, as timed steps do; calibrate times torch's steps"
        )

    from chairlift.engine.build import build_engine, locate_model

    built = build_engine(settings, locate_model(settings))
    info = built.runner.info
    limits = Limits(
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_model_len=info.max_model_len,
        num_pages=info.num_pages,
        page_size=info.page_size,
        num_host_pages=built.num_host_pages,
    )
    try:
        overheads = _time_overhead(built, info)
        steps = _time_steps(built, limits, info.vocab_size, (thoroughness, repeats, max_seconds))
    finally:
        built.executor.close()
    facts = MachineFacts(
        name=f"{info.name} in {info.numbers}, measured",
        max_model_len=info.max_model_len,
        num_kv_tokens=info.num_pages * info.page_size,
        kv_bytes_per_token=built.page_bytes // info.page_size,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
    )
    _fit(facts, info.page_size, steps, overheads, output)


def _fit_log(log: Path, output: Path) -> None:
    from chairlift.engine.decision_log_file import read_entries

    found = read_steps(read_entries(log))
    scheduler, cache = found.scheduler, found.cache
    page_size, page_bytes = cache["page_size"], cache.get("page_bytes")
    facts = MachineFacts(
        name=f"as served in {log.name}",
        max_model_len=scheduler["max_model_len"],
        num_kv_tokens=cache["num_pages"] * page_size,
        kv_bytes_per_token=page_bytes // page_size if page_bytes else None,
        max_num_seqs=scheduler["max_num_seqs"],
        max_num_batched_tokens=scheduler["max_num_batched_tokens"],
    )
    _fit(facts, page_size, found.some_steps(), found.overheads, output)


def _fit(
    facts: MachineFacts,
    page_size: int,
    steps: Sequence[TimedStep],
    overheads: Sequence[tuple[int, int]],
    output: Path,
) -> None:
    """Fit, write and say how good it is."""
    coefficients, error = fit_steps(steps)
    step_overhead_ns, row_overhead_ns = fit_overhead(overheads)
    copied_ns, kv_bytes = coefficients.copied_page_ns, facts.kv_bytes_per_token
    facts = replace(
        facts,
        host_bytes_per_s=kv_bytes * page_size * 1e9 / copied_ns if copied_ns and kv_bytes else None,
        step_overhead_ns=step_overhead_ns,
        row_overhead_ns=row_overhead_ns,
    )
    MeasuredLatency(facts, coefficients, error).write(output)
    click.echo(
        f"{len(steps)} steps; error of the fit {error.mean:.1%} on average, {error.p95:.1%} at p95; held out "
        f"{error.held_out_mean:.1%} and {error.held_out_p95:.1%}; t = c + a*tokens + b*context alone "
        f"{error.three_term_mean:.1%}; {step_overhead_ns / 1e6:.2f} ms + {row_overhead_ns / 1e3:.1f} us per row "
        f"between steps; written to {printable(str(output))}"
    )
    if error.held_out_mean > POOR_MEAN or error.held_out_p95 > POOR_P95:
        click.echo(
            f"warning: the fit is poor: on steps that were held out it is off by {error.held_out_mean:.0%} on average "
            f"and {error.held_out_p95:.0%} at p95, above {POOR_MEAN:.0%} or {POOR_P95:.0%}. What simulate says with "
            "it is off as far; a machine that is busy otherwise makes for such fits, so try again when it is quiet, "
            "with --thoroughness 3 or more --repeats",
            err=True,
        )


def _given(flags: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value is not None}


def _time_steps(built: "BuiltEngine", limits: Limits, vocab_size: int, how: tuple[int, int, float]) -> list[TimedStep]:
    thoroughness, repeats, max_seconds = how
    calibration = Calibration(built.executor, limits, vocab_size)
    cells = choose_cells(limits, thoroughness=thoroughness)
    # Every third cell first: whoever stops early still has the whole range.
    ordered = [cell for part in range(3) for cell in cells[part::3]]
    steps: list[TimedStep] = []
    end_s = time.monotonic() + max_seconds
    with click.progressbar(ordered, label="timing steps", file=sys.stderr) as bar:
        for cell in bar:
            if time.monotonic() > end_s:
                break
            steps.append(calibration.time(cell, repeats))
    return steps


def _time_overhead(built: "BuiltEngine", info: "ModelInfo") -> list[tuple[int, int]]:
    """Run the engine itself on a few decodes, and see how long its steps take beside what the executor reports."""
    from chairlift.core.sampling_params import SamplingParams
    from chairlift.engine.messages import AddRequest, Choice

    runner = built.runner
    samples: list[tuple[int, int]] = []
    number = 1
    sampling = SamplingParams(temperature=0.0, max_tokens=_OVERHEAD_STEPS + 4, ignore_eos=True)
    for num_rows in sorted({1, max(1, info.max_num_seqs // 4), info.max_num_seqs}):
        for _ in range(num_rows):
            prompt = [1 + (number * 7 + place) % (info.vocab_size - 1) for place in range(_OVERHEAD_PROMPT_TOKENS)]
            runner.add(
                AddRequest(
                    choices=(Choice(number, 0),),
                    prompt_token_ids=tuple(prompt),
                    sampling=sampling,
                    stop_token_ids=frozenset(),
                ),
                time.monotonic_ns(),
            )
            number += 1
        while True:
            started_ns = time.perf_counter_ns()
            outcome = runner.step(time.monotonic_ns())
            if outcome is None:
                break
            if len(outcome.updates) == num_rows and not outcome.num_prefill_tokens:
                samples.append((num_rows, time.perf_counter_ns() - started_ns - outcome.result.duration_ns))
    runner.settle(time.monotonic_ns())
    return samples
