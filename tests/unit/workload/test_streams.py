from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import mean, stdev

import pytest

from chairlift.errors import ConfigurationError
from chairlift.workload.arrivals import RampPoint, ramp, rate_at, renewals, window_arrivals
from chairlift.workload.distributions import Fixed, Lognormal, Quantiles, Uniform, parse_lengths
from chairlift.workload.items import ContentRun, WorkRequest, compact_prompt, distinct_prompt
from chairlift.workload.slo import Slo, named_slos, parse_slo
from chairlift.workload.streams import Stream, Workload
from chairlift.workload.workload_file import parse_trace_option, read_workload


def gaps_s(times_ns: list[int]) -> list[float]:
    return [(later - earlier) / 1e9 for earlier, later in pairwise([0, *times_ns])]


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(cv: float) -> None:
    gaps = gaps_s(list(islice(renewals(5.0, Random(1), burstiness_cv=cv), 40_000)))
    assert mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert stdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.08)


def test_a_ramp_has_its_rates_where_they_were_set() -> None:
    points = [RampPoint(0, 2.0), RampPoint(100, 20.0)]
    assert rate_at(points, 50) == 11.0
    times = [t / 1e9 for t in islice(ramp(points, Random(1)), 3000)]
    assert len([t for t in times if t < 50]) == pytest.approx(50 * 6.5, rel=0.12)
    assert len([t for t in times if 100 <= t < 150]) == pytest.approx(1000, rel=0.1)
    with pytest.raises(ConfigurationError, match="never come"):
        ramp([RampPoint(0, 1.0), RampPoint(9, 0.0)], Random(1))


@pytest.mark.parametrize(("pattern", "shape"), [("Gamma", 1e-4), ("Gamma", 0.5), ("Weibull", 0.2)])
def test_arrivals_of_a_window_stay_in_it_whatever_the_shape(pattern: str, shape: float) -> None:
    found = list(window_arrivals(50, 1000, 500, pattern=pattern, shape=shape, rng=Random(1)))
    assert len(found) == 50
    assert found == sorted(found)
    assert 1000 <= found[0] <= found[-1] <= 1500


def test_lengths_follow_their_distributions() -> None:
    rng = Random(1)
    assert Fixed(7).draw(rng) == 7
    assert {Uniform(2, 4).draw(rng) for _ in range(100)} == {2, 3, 4}
    drawn = sorted(Lognormal(100, 1.0, 400).draw(rng) for _ in range(4001))
    assert drawn[2000] == pytest.approx(100, rel=0.1)
    assert drawn[-1] == 400
    quantiles = Quantiles([(0.5, 10.0), (0.9, 50.0), (1.0, 90.0)])
    drawn = sorted(quantiles.draw(rng) for _ in range(4001))
    assert drawn[0] == drawn[1900] == 10
    assert drawn[3600] == pytest.approx(50, abs=3)
    assert drawn[-1] <= 90
    assert parse_lengths({"median": 5, "sigma": 1}, "x") == Lognormal(5.0, 1.0)
    assert parse_lengths({"low": 1, "high": 2}, "x") == Uniform(1, 2)
    for wrong in (0, -1, "many", {"low": 3, "high": 2}, {"median": 5}, {"mean": 5}):
        with pytest.raises(ConfigurationError, match="must be a number of tokens"):
            parse_lengths(wrong, "x")


def test_prompts_are_compact_and_real_ones_share_what_the_compact_ones_share() -> None:
    one = WorkRequest(0, 6, 1, (ContentRun(5, 4), ContentRun(9, 2)))
    other = WorkRequest(0, 7, 1, (ContentRun(5, 4), ContentRun(8, 3)))
    assert list(compact_prompt(one)) == [5, 5, 5, 5, 9, 9]
    assert compact_prompt(one).itemsize == 4  # type: ignore[union-attr]
    assert compact_prompt(WorkRequest(0, 3, 1)) == bytearray(3)
    real, real_other = distinct_prompt(one, 0, 1000), distinct_prompt(other, 1, 1000)
    assert real[:4] == real_other[:4]
    assert real[4:] != real_other[4:6]
    alone = [distinct_prompt(WorkRequest(0, 8, 1), number, 1000) for number in range(50)]
    assert len({tuple(tokens[:4]) for tokens in alone}) == 50


def test_streams_are_merged_by_time_and_seeded_one_by_one() -> None:
    a = Stream(name="a", output_tokens=Uniform(1, 99), rate_per_s=3.0, num_requests=50)
    b = Stream(name="b", output_tokens=Uniform(1, 99), rate_per_s=7.0, duration_s=10.0)
    found = list(Workload((a, b), 5).arrivals())
    assert [r.arrival_ns for r in found] == sorted(r.arrival_ns for r in found)
    assert sum(r.stream == 0 for r in found) == 50
    assert all(r.arrival_ns <= 10e9 for r in found if r.stream == 1)
    assert list(Workload((a, b), 5).arrivals()) == found
    assert list(Workload((a, b), 6).arrivals()) != found
    # A stream draws the same whoever else there is.
    assert [r for r in found if r.stream == 0] == list(Workload((a,), 5).arrivals())


def test_lengths_and_traces_are_read_again_until_there_are_enough(tmp_path: Path) -> None:
    lengths = Stream(name="x", output_lengths=(3, 1), num_requests=5)
    assert [r.num_output_tokens for r in Workload((lengths,)).arrivals()] == [3, 1, 3, 1, 3]
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,1,1\n2023-01-01 00:00:04,2,2\n")
    twice = Stream(name="t", trace=path, num_requests=4)
    assert [r.arrival_ns / 1e9 for r in Workload((twice,)).arrivals()] == [0, 4, 6, 10]


def test_a_trace_keeps_its_times_unless_others_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"2023-01-01 00:00:{second:02},1,1\n" for second in range(0, 60, 2))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)

    def times_s(**fields: object) -> list[float]:
        stream = Stream(name="t", trace=path, **fields)  # type: ignore[arg-type]
        return [r.arrival_ns / 1e9 for r in Workload((stream,)).arrivals()]

    assert times_s() == list(range(0, 60, 2))
    assert times_s(rate_per_s=30 / 58 * 2) == pytest.approx([t / 2 for t in range(0, 60, 2)])
    assert len(set(gaps_s([int(t * 1e9) for t in times_s(rate_per_s=0.5, burstiness_cv=1.0)]))) > 20
    closed = Workload((Stream(name="t", trace=path, concurrency=3),))
    assert times_s(concurrency=3) == []
    assert [r.arrival_ns for r in closed.closed_loops()[0]] == [0] * 30


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of trace, output_lengths and output_tokens"),
        ({"output_tokens": Fixed(1)}, "has no end"),
        ({"output_tokens": Fixed(1), "duration_s": 5.0}, "never end"),
        ({"output_lengths": (1, 0)}, "below 1"),
        ({"output_lengths": (1,), "rate_per_s": 0.0}, "positive rate"),
        ({"output_lengths": (1,), "concurrency": 2, "rate_per_s": 1.0}, "neither rate nor ramp"),
    ],
)
def test_streams_that_cannot_work_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Stream(name="x", **fields)


def test_objectives_are_met_or_not_and_come_by_name() -> None:
    slo = Slo(500, 30)
    assert slo.is_met(500_000_000, 30e6)
    assert not slo.is_met(500_000_001, 1)
    assert not slo.is_met(0, 30.1e6)
    assert slo.is_met(0, None)
    assert named_slos()["mlperf-llama3.1-8b-interactive"] == slo
    assert parse_slo("500/30", "x") == parse_slo("mlperf-llama3.1-8b-interactive", "x") == slo
    assert parse_slo("/30", "x") == Slo(None, 30)
    assert parse_slo({"ttft_ms": 5}, "x") == Slo(5.0)
    for wrong in ("fast", {"ttft": 5}, 7):
        with pytest.raises(ConfigurationError):
            parse_slo(wrong, "x")


def test_a_workload_file_says_everything(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(
        """
seed = 9
[[stream]]
name = "chat"
trace = "t.csv"
rate = 4
tier = 0
tenant = "c"
weight = 2.0
slo = { ttft_ms = 500, tpot_ms = 30 }
ttft_deadline_ms = 800
[[stream]]
name = "batch"
prompt_tokens = { median = 1500, sigma = 0.8, max = 8000 }
output_tokens = { low = 50, high = 400 }
ramp = [[0, 1.0], [60, 4.0]]
num_requests = 40
tier = 1
"""
    )
    workload = read_workload(path)
    chat, batch = workload.streams
    assert workload.seed == 9
    assert chat.trace == tmp_path / "t.csv"
    assert (chat.rate_per_s, chat.tenant, chat.slo, chat.ttft_deadline_ms) == (4.0, "c", Slo(500.0, 30.0), 800.0)
    assert batch.ramp == (RampPoint(0, 1.0), RampPoint(60, 4.0))
    assert batch.prompt_tokens == Lognormal(1500.0, 0.8, 8000)
    assert workload.tenants().by_name["c"].weight == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[stream]]\nname = 'x'\ntraec = 'y'", "did you mean trace"),
        ("[[stream]]\noutput_lengths = ['a']", "whole numbers"),
        ("[[stream]]\noutput_lengths = [1]\ntier = 'x'", "whole number"),
        ("[[stream]]\noutput_lengths = [1]\nramp = [1]", "seconds, rate"),
        ("[stream]\nname = 'x'", r"\[\[stream\]\] tables"),
        ("stream = [{ name = 'x', output_lengths = [1] }, 7]", r"\[\[stream\]\] tables"),
        ("", "and has: nothing"),
        ("seed = 'x'\n[[stream]]\noutput_lengths = [1]", "must be a whole number, got 'x'"),
        ("[[stream]]\noutput_lengths = [inf]", "whole numbers"),
        ("[[stream]]\noutput_lengths = [1.5]", "whole numbers"),
        ("[[stream]]\nnum_requests = 1\noutput_tokens = { median = 5, sigma = nan }", "sigma in"),
        ("[[stream]]\nnum_requests = 1\noutput_tokens = { median = 5, sigma = 1e9 }", "sigma in"),
        ("[[stream]]\nnum_requests = 1\noutput_tokens = { median = 5, sigma = 1, max = -4 }", "lengths in"),
        ("[[stream]]\nnum_requests = 1\noutput_tokens = { low = 5, high = inf }", "lengths in"),
        ("[[stream]]\nnum_requests = 1\noutput_tokens = { low = 5, high = 4 }", "lengths in"),
        ("[[stream]]\nnum_requests = 1\noutput_tokens = { low = 5, high = 9, most = 3 }", "lengths in"),
        ("[[stream]]\noutput_lengths = [1]\nslo = { ttft_ms = 'x' }", "numbers from 0 on"),
        ("[[stream]]\noutput_lengths = [1]\nslo = { ttft_ms = nan }", "numbers from 0 on"),
        ("seed = ", "cannot be read"),
        ("seed = 1" + "0" * 5000, "w.toml cannot be read: a number has too many digits"),
        ("seed = " + "[" * 20_000, "w.toml cannot be read: nested too deeply"),
        ("[[stream]]\noutput_lengths = [1]\ntier = 0x1" + "0" * 5000, "tier of stream 1 .* got a number of too many"),
        ("[[stream]]\noutput_lengths = [1]\nramp = [[0, 0x1" + "0" * 5000 + "]]", r"must be \[\[seconds, rate\]"),
        ("[[stream]]\nnum_requests = 1\noutput_tokens = 0x1" + "0" * 5000, "is a number of too many digits, but must"),
        ("[[stream]]\nname = 'x'\noutput_lengths = [2_147_483_648]", "'x' has an output length of 2147483648 tokens"),
        ("[[stream]]\nname='x'\noutput_lengths=[1]\n[[stream]]\nname='x'\noutput_lengths=[1]", "names of their own"),
    ],
)
def test_workload_files_with_mistakes_are_refused_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "w.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_workload(path)


def test_a_trace_on_the_command_line_takes_the_keys_of_a_stream() -> None:
    stream = parse_trace_option(
        "x/t.csv.gz,name=a,tier=2,rate=1.5,num-requests=7,slo=500/30", 1, {"tier": 1, "rate": 9}
    )
    assert (stream.name, stream.tier, stream.rate_per_s, stream.num_requests) == ("a", 2, 1.5, 7)
    assert parse_trace_option("x/azure.csv.gz", 1, {"rate": 9.0}).rate_per_s == 9.0
    assert parse_trace_option("x/azure.csv.gz", 1).name == "azure"
    with pytest.raises(ConfigurationError, match="not of the form"):
        parse_trace_option("x.csv,fast", 1)
    with pytest.raises(ConfigurationError, match="did you mean tier"):
        parse_trace_option("x.csv,teir=1", 1)


@pytest.mark.parametrize(
    "option",
    ["rate=nan", "rate=1e-300", "rate=inf", "rate=0", "burstiness_cv=1e300", "tier=99999999999999999999", "weight=0",
     "max_kv_pages=0", "slo=-1/nan", "num_requests=1e3", "think_s=-1"],
)  # fmt: skip
def test_numbers_that_nothing_can_hold_are_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option.partition('=')[0]} of --trace 1"):
        parse_trace_option(f"x.csv,{option}", 1)
