"""What is shown of runs: tables, the page, and the bar while they last."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from chairlift.benchmark.html import curve_plots, render_result
from chairlift.benchmark.records import CallRecord
from chairlift.benchmark.result import BenchResult
from chairlift.benchmark.summary import BenchRun, summarize
from chairlift.benchmark.table import TOTALS, error_rows, latency_head, latency_rows, totals_rows
from chairlift.cli.bench_output import show_result
from chairlift.cli.bench_progress import ProgressBar
from chairlift.report.statistics import PERCENTS
from chairlift.workload.distributions import Fixed
from chairlift.workload.slo import Slo
from chairlift.workload.streams import Stream
from tests.scripted_server import Asked, Script, steady
from tests.unit.benchmark.test_runner import execute

STREAMS = [
    Stream(
        name=name, prompt_tokens=Fixed(5), output_tokens=Fixed(4), num_requests=3, tenant=name[0], slo=Slo(ttft_ms=150)
    )
    for name in ("chat", "<batch>")
]


@pytest.fixture(scope="module")
def run() -> BenchRun:
    """Six requests: all of chat's are answered, of the others only the first one."""
    count = iter(range(6))

    def script(asked: Asked) -> Script:
        number = next(count)
        if number > 3:
            return Script([(0.01, b'{"error": "[bold]full"}')], status=503)
        return steady(4, 0.1 + 0.01 * number, 0.02)

    finished, _ = execute(STREAMS, script)
    return summarize(finished, STREAMS, (*PERCENTS, 99.9))


def test_curves_are_named_as_the_streams_are(run: BenchRun) -> None:
    names = ("_chat", "$\\frac{1$", "\x1b[1m")
    streams = [replace(stream, name=name) for stream, name in zip([*run.streams, run.streams[0]], names, strict=True)]
    text = curve_plots([replace(run, streams=streams)])
    for name in ("_chat", "$\\frac{1$", "\\x1b[1m"):
        assert f">{name}</text>" in text


def result(run: BenchRun) -> BenchResult:
    target = {
        "base_url": "http://server",
        "model": "m",
        "endpoint": "/v1/completions",
        "prompts": "text",
        "usage": "never",
    }
    return BenchResult(label="mine", started_at="now", version="1", target=target, settings={"seed": 0}, runs=[run])


def test_tables_have_all_groups_and_every_number(run: BenchRun) -> None:
    rows = list(totals_rows([run]))
    assert [row[1] for row in rows] == ["all", "chat", "<batch>", "tenant <", "tenant c"]
    assert all(len(row) == len(TOTALS) for row in rows)
    assert (rows[0][2], rows[0][3]) == ("4 of 6", "2")
    head = latency_head((*PERCENTS, 99.9))
    assert head[-2:] == ("p99.9", "max")
    latencies = list(latency_rows([run], ["ttft", "itl"]))
    assert all(len(row) == len(head) for row in latencies)
    assert latencies[0][:5] == ("1", "all", "TTFT", "115.0", "110.0")
    assert latencies[1][:4] == ("1", "all", "ITL", "20.0")
    assert list(error_rows([run])) == [("1", "HTTP 503", "2", "[bold]full")]


def test_the_page_needs_nothing_else_and_shows_no_text_as_markup(run: BenchRun) -> None:
    page = render_result(result(run), (*PERCENTS, 99.9))
    assert page == render_result(result(run), (*PERCENTS, 99.9))
    assert page.count("<svg") == 2
    assert "<batch>" not in page
    assert "&lt;batch&gt;" in page
    assert not re.search(r"<(script|link|img)|url\(http|(src|href)=[\"']?http", page)
    assert "HTTP 503" in page


def test_the_terminal_shows_errors_as_they_are(run: BenchRun, capsys: pytest.CaptureFixture[str]) -> None:
    show_result(Console(file=io.StringIO()), result(run), ["ttft"], (*PERCENTS, 99.9))
    said = capsys.readouterr().err
    assert "[bold]full" in said
    assert "4 of 6" in said
    assert "of a core" in said


class TickingClock:
    """A second passes with each look."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        self._now_ns += 1_000_000_000
        return self._now_ns

    def cpu_ns(self) -> int:
        return 0

    async def sleep_until(self, at_ns: int) -> None:
        raise AssertionError(at_ns)


def test_the_bar_counts_what_is_on_its_way_and_what_failed() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    with ProgressBar(console, TickingClock(), 3) as bar:
        watch = bar.watch(1)
        records = [CallRecord(number=n, stream=0, tier=0, tenant="", due_ns=0, sent_ns=1) for n in range(3)]
        for record in records:
            watch.sent(record)
        records[0].fail("connect")
        watch.ended(records[0])
    assert "1/3" in text.getvalue()
    assert "2 on their way, 1 failed" in text.getvalue()


def test_where_there_is_no_terminal_there_is_one_line_and_no_bar() -> None:
    line = "Sending 3 requests, 2 per second, to http://[::1]:8000/" + "x" * 100
    text = io.StringIO()
    with ProgressBar(Console(file=text), TickingClock(), 3, start_line=line) as bar:
        assert text.getvalue() == ""
        bar.watch(1).sent(CallRecord(number=0, stream=0, tier=0, tenant="", due_ns=0))
        bar.watch(2)
    assert text.getvalue() == f"{line}\n"
