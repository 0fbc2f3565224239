"""``chairlift bench serve``: measure a server with OpenAI's API from outside.

Knows nothing of how it is measured; it reads what to do, does it and shows what came out.
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from chairlift.cli.bench_options import load_options
from chairlift.cli.bench_output import check_writable, show_result, write_result
from chairlift.cli.options import HELP_NAMES
from chairlift.errors import ConfigurationError
from chairlift.report.statistics import PERCENTS

if TYPE_CHECKING:
    from chairlift.benchmark.plan import LoadPlan
    from chairlift.benchmark.probe import Dialect
    from chairlift.benchmark.result import BenchResult
    from chairlift.benchmark.runner import FinishedRun
    from chairlift.benchmark.session import Rounds, Session, Target

_METRICS = "ttft,tpot,itl,e2el"
_INTERRUPTED_STATUS = 130
_OUTSIDE_LOAD = frozenset(
    {"json_path", "report_path", "label", "save_detailed", "progress", "percentile_metrics", "metric_percentiles"}
)
"""Flags that change nothing about what is measured."""


@click.command(context_settings=HELP_NAMES)
@click.option("--base-url", required=True, help="Address of the server, as http://127.0.0.1:8000; may end in /v1.")
@click.option("--model", help="Model to ask for.  [default: the server's first one]")
@click.option(
    "--backend",
    type=click.Choice(["openai", "openai-chat"]),
    help="Completions or chat.  [default: openai-chat for mt-bench, custom and conversations]",
)
@click.option("--endpoint", help="Path of the endpoint, if it is another than OpenAI's.")
@click.option("--api-key", metavar="VARIABLE", help="Environment variable with the API key.")
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="NAME[=VARIABLE]",
    help="Send requests in turn in this tenant's name: with the API key in the variable, else as user. Repeatable.",
)
@click.option(
    "--prompts",
    type=click.Choice(["auto", "ids", "text"]),
    default="auto",
    show_default=True,
    help="Random prompts as token ids or as words; auto asks the server.",
)
@click.option("--vocab-size", type=click.IntRange(256), help="Token ids are below this.  [default: what is accepted]")
@click.option("--ignore-eos", is_flag=True, help="Ask for answers of exactly the length that is wanted.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="Of every request.")
@click.option("--extra-body", metavar="JSON", help="Further fields of every request, as a JSON object.")
@click.option(
    "--continuous-usage/--no-continuous-usage",
    default=True,
    help="Ask for token counts in every chunk, where the server has them.  [default: on]",
)
@click.option(
    "--request-timeout", type=click.FloatRange(0, min_open=True), default=600.0, show_default=True,
    help="Seconds without a sign of life after which a request has failed.",
)  # fmt: skip
@click.option("--num-runs", type=click.IntRange(1), default=1, show_default=True, help="Runs, for their spread.")
@click.option("--num-warmups", type=click.IntRange(0), default=0, show_default=True, help="Requests before measuring.")
@load_options
@click.option(
    "--percentile-metrics",
    default=_METRICS,
    show_default=True,
    help="Latencies to show; there are pause and queue too.",
)
@click.option("--metric-percentiles", default="", help="Percentiles beside 50, 90, 95 and 99, as 75,99.9.")
@click.option("--label", help="Name in comparisons and reports.  [default: the model]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the result as JSON; - is stdout.")
@click.option("--save-detailed", is_flag=True, help="With --json: every request with the moments of its chunks.")
@click.option("--report", "report_path", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page.")
@click.option("--progress/--no-progress", default=True, help="A bar while it runs.  [default: on in a terminal]")
def serve(**flags: Any) -> int:
    """Put a load on any server with OpenAI's API, and report throughput and latencies.

    Ctrl-C ends the run and shows what there is by then. The status is 1 if no request was answered.
    """
    from rich.console import Console

    from chairlift.benchmark.clock import SystemClock
    from chairlift.benchmark.session import Rounds, Session
    from chairlift.benchmark.summary import summarize
    from chairlift.cli.bench_load import read_plan
    from chairlift.cli.bench_progress import ProgressBar

    metrics, percents = _metrics(flags["percentile_metrics"]), _percents(flags["metric_percentiles"])
    keys, tenants = _tenants(flags)
    plan = read_plan(flags, tenants)
    target = _target(flags, keys, plan)
    check_writable(flags)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    console, clock = Console(stderr=True), SystemClock()
    rounds = Rounds(num_runs=flags["num_runs"], num_warmups=flags["num_warmups"])
    runs_said = "" if rounds.num_runs == 1 else f", {rounds.num_runs} times"
    line = f"Sending {plan.describe()}, to {target.base_url}{runs_said}"
    with ProgressBar(console, clock, plan.num_requests, start_line=line, is_shown=flags["progress"]) as bar:
        session = Session(target, plan, clock, watch=bar.watch)
        dialect, finished = _run(session, rounds)
    runs = [summarize(run, plan.workload.streams, percents) for run in finished]
    result = _result(flags, dialect, runs, started_at)
    try:
        write_result(flags, result, percents)
    finally:
        show_result(console, result, metrics, percents)
    return _status(finished)


def _metrics(text: str) -> list[str]:
    from chairlift.benchmark.table import METRIC_NAMES

    names = [name for name in text.replace(",", " ").split() if name]
    unknown = [name for name in names if name not in METRIC_NAMES]
    if unknown:
        raise ConfigurationError(
            f"--percentile-metrics has no {', '.join(unknown)}; there are {', '.join(METRIC_NAMES)}"
        )
    return names


def _percents(text: str) -> tuple[float, ...]:
    try:
        given = {float(part) for part in text.replace(",", " ").split()}
    except ValueError:
        given = {-1.0}
    if not all(0 < percent <= 100 for percent in given):
        raise ConfigurationError(f"--metric-percentiles takes numbers in (0, 100], as 75,99.9; got {text!r}")
    return tuple(sorted({*PERCENTS, *given}))


def _tenants(flags: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the keys by tenant, and the tenants in whose names requests go out in turn."""
    from chairlift.config.load import read_secret

    keys: dict[str, str] = {}
    names: list[str] = []
    if flags["api_key"] is not None:
        keys[""] = read_secret(flags["api_key"], "--api-key")
    for text in flags["tenants"]:
        name, equals, variable = text.partition("=")
        if not name or name in names or (equals and not variable):
            raise ConfigurationError(f"--tenant takes NAME or NAME=VARIABLE, each name once; got {text!r}")
        names.append(name)
        if variable:
            keys[name] = read_secret(variable, f"--tenant {name}")
    return keys, names


def _target(flags: Mapping[str, Any], keys: Mapping[str, str], plan: "LoadPlan") -> "Target":
    from chairlift.benchmark.session import Target
    from chairlift.benchmark.wire import UsageStyle
    from chairlift.cli.bench_load import is_chat_load

    url: str = flags["base_url"]
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"--base-url must begin with http:// or https://, got {url!r}")
    backend: str | None = flags["backend"]
    if plan.has_ids and backend == "openai-chat":
        raise ConfigurationError("the file has prompts of token ids, which --backend openai-chat cannot ask")
    is_chat = is_chat_load(flags) and not plan.has_ids if backend is None else backend == "openai-chat"
    return Target(
        base_url=url,
        is_chat=is_chat,
        model=flags["model"],
        path=flags["endpoint"],
        keys=keys,
        prompts=flags["prompts"],
        vocab_size=flags["vocab_size"],
        usage=UsageStyle.EACH_CHUNK if flags["continuous_usage"] else UsageStyle.AT_THE_END,
        timeout_s=flags["request_timeout"],
        fields={
            "ignores_eos": flags["ignore_eos"],
            "temperature": flags["temperature"],
            "extra": _extra(flags["extra_body"]),
        },
    )


def _extra(text: str | None) -> dict[str, Any]:
    from chairlift.benchmark.probe import check_wire

    if text is None:
        return {}
    try:
        extra: object = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--extra-body is not JSON: {error}") from None
    if not isinstance(extra, dict):
        raise ConfigurationError(f"--extra-body must be a JSON object, got {text}")
    fields = cast("dict[str, Any]", extra)
    check_wire(fields)
    return fields


def _run(session: "Session", rounds: "Rounds") -> "tuple[Dialect, list[FinishedRun]]":
    async def measure() -> "tuple[Dialect, list[FinishedRun]]":
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        measuring = asyncio.ensure_future(session.measure(rounds, stop))

        def interrupt() -> None:
            stop.set()
            loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends everything
            if not session.is_measuring:
                measuring.cancel()

        with contextlib.suppress(NotImplementedError, ValueError):  # Windows, or not the main thread
            loop.add_signal_handler(signal.SIGINT, interrupt)
        return await measuring

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(measure())
    except asyncio.CancelledError:
        raise click.Abort from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the faster loop where there is one; ``None`` is Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _result(flags: Mapping[str, Any], dialect: "Dialect", runs: Sequence[Any], started_at: str) -> "BenchResult":
    import chairlift
    from chairlift.benchmark.result import BenchResult

    settings = {
        name: _plain(value)
        for name, value in sorted(flags.items())
        if name not in _OUTSIDE_LOAD and name != "base_url" and value not in (None, (), False)
    }
    return BenchResult(
        label=flags["label"] or dialect.wire.model,
        started_at=started_at,
        version=chairlift.__version__,
        target={"base_url": flags["base_url"], **dialect.to_json()},
        settings=settings,
        runs=runs,
    )


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Path):
        return str(value)
    return "inf" if value == float("inf") else value


def _status(finished: "Sequence[FinishedRun]") -> int:
    if any(run.is_interrupted for run in finished) or not finished:
        return _INTERRUPTED_STATUS
    return 0 if any(record.is_ok for run in finished for record in run.records) else 1
