import gzip
import json
from pathlib import Path
from random import Random

import pytest

from chairlift.errors import ConfigurationError
from chairlift.workload.items import ContentRun, WorkRequest, compact_prompt, distinct_prompt
from chairlift.workload.traces import open_trace
from chairlift.workload.traces.reading import Lap, Trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.4799600,3180,8
2023-11-17 18:17:03.9799610,110,27
"""
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n0,156,156,0.0\n"
TAU = """task_id,trial,call,prompt_tokens,output_tokens,new_tokens_since_prev_call,output_is_tool_call
0,0,0,3705,22,3705,0
0,0,1,3742,109,14,0
0,0,2,3700,26,56,1
0,1,0,3700,5,3700,0
"""
RATES = """client,timestamp_s,rate_rps,iat_cv,pattern,shape,scale
1,0,0.5,1.0,Gamma,1.0,2.0
2,0,0.25,6.7,Gamma,0.0223217,73.0
1,600,1.0,30.0,Weibull,0.3,0.01
3,1800,0.01,1.0,Gamma,1.0,1.0
"""
LENGTHS = """client,window_start_s,field,est_requests,mean,p1,p5,p10,p25,p50,p75,p90,p95,p99,p99.9,max
1,0,input_tokens,100,50,10,20,30,40,50,60,70,80,90,95,100
1,0,output_tokens,100,5,1,1,1,1,1,1,1,1,1,1,1
1,600,input_tokens,100,50,500,500,500,500,500,500,500,500,500,500,500
1,600,output_tokens,100,5,2,2,2,2,2,2,2,2,2,2,2
2,0,input_tokens,100,50,900,900,900,900,900,900,900,900,900,900,900
2,0,output_tokens,100,5,3,3,3,3,3,3,3,3,3,3,3
2,0,reason_ratio,100,0.5,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1
"""


def read(trace: Trace, **lap: object) -> list[WorkRequest]:
    return list(trace.requests(Lap(Random(1), **lap)))  # type: ignore[arg-type]


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_azure_has_lengths_and_times_across_midnight(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "azure.csv.gz", AZURE))
    assert trace.has_arrivals
    found = [(r.arrival_ns, r.num_prompt_tokens, r.num_output_tokens) for r in read(trace)]
    assert found == [(0, 4808, 10), (500_000_000, 3180, 8), (86_400_000_001_000, 110, 27)]


def test_a_rate_stretches_the_arrivals_and_a_start_cuts_them(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "azure.csv", AZURE))
    own_rate = 3 / 86_400.000001
    faster = read(trace, rate_per_s=2 * own_rate)
    assert [r.arrival_ns for r in faster] == pytest.approx([0, 250_000_000, 43_200_000_000_500], abs=1)
    assert [r.arrival_ns for r in read(trace, start_s=0.1)] == [400_000_000, 86_399_900_001_000]


def test_mooncake_blocks_become_runs_of_512_tokens_and_ticks_are_spread(tmp_path: Path) -> None:
    rows = [
        {"timestamp": t, "input_length": 1100, "output_length": 9, "hash_ids": [0, 7, 20 + n]}
        for n, t in enumerate([0, 0, 0, 3000, 9000])
    ]
    trace = open_trace(written(tmp_path / "m.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows)))
    found = read(trace)
    assert found[0].runs == (ContentRun(1, 512), ContentRun(2, 512), ContentRun(3, 76))
    assert found[1].runs == (ContentRun(1, 512), ContentRun(2, 512), ContentRun(4, 76))
    times = [request.arrival_ns for request in found]
    assert times == sorted(times)
    assert len({*times[:3]}) == 3
    assert all(0 <= t < 3e9 for t in times[:3])
    assert times[3:] == [3_000_000_000, 9_000_000_000]
    assert [r.arrival_ns for r in read(trace)] == times


def test_a_second_pass_over_mooncake_shares_nothing_with_the_first(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]}
    trace = open_trace(written(tmp_path / "m.jsonl", json.dumps(row)))
    first, second = read(trace)[0], read(trace, number=1)[0]
    assert not {run.content_id for run in first.runs} & {run.content_id for run in second.runs}


def test_lines_of_ones_own_need_neither_times_nor_hashes(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "own.jsonl", '{"input_length": 5, "output_length": 2}\n'))
    assert not trace.has_arrivals
    assert read(trace) == [WorkRequest(0, 5, 2)]


def test_vidur_has_lengths_alone_and_no_empty_prompt(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "v.csv.gz", VIDUR))
    assert not trace.has_arrivals
    assert read(trace) == [WorkRequest(0, 3772, 54), WorkRequest(0, 1, 156)]


def test_tau_bench_calls_follow_each_other_and_repeat_what_was_said(tmp_path: Path) -> None:
    first, other = read(open_trace(written(tmp_path / "t.csv.gz", TAU)))
    assert first.runs == (ContentRun(1, 3683), ContentRun(2, 22))
    second = first.follow_up
    assert second is not None
    assert second.runs == (*first.runs, ContentRun(3, 37))
    assert second.num_prompt_tokens == sum(run.num_tokens for run in second.runs) == 3742
    # A shorter prompt was cut somewhere, so only what everybody begins with is the same.
    third = second.follow_up
    assert third is not None
    assert third.runs == (ContentRun(1, 3683), ContentRun(4, 17))
    assert third.follow_up is None
    assert other.runs[0] == ContentRun(1, 3683)
    assert other.runs[1].content_id > 4


def servegen(folder: Path) -> Trace:
    written(folder / "x_lengths.csv", LENGTHS)
    return open_trace(written(folder / "x_rates.csv", RATES))


def test_servegen_windows_have_as_many_requests_as_their_rates_say(tmp_path: Path) -> None:
    found = read(servegen(tmp_path))
    times_s = [request.arrival_ns / 1e9 for request in found]
    assert times_s == sorted(times_s)
    first = [r for r, t in zip(found, times_s, strict=True) if t < 600]
    # Client 1 has 300, client 2 has 150, whose gaps have a shape that would give other rates on their own.
    assert [sum(r.num_output_tokens == tokens for r in first) for tokens in (1, 3)] == [300, 150]
    assert all(10 <= r.num_prompt_tokens <= 100 for r in first if r.num_output_tokens == 1)
    second = [r for r, t in zip(found, times_s, strict=True) if 600 <= t < 1200]
    assert len(second) == 600
    assert {r.num_prompt_tokens for r in second} == {500}
    # Client 3 has no lengths and borrows those of another.
    assert len([t for t in times_s if t >= 1800]) == 6


def test_servegen_scales_its_clients_to_a_rate_and_starts_with_a_window(tmp_path: Path) -> None:
    trace = servegen(tmp_path)
    own = len(read(trace))
    assert len(read(trace, rate_per_s=2 * own / 2400)) == pytest.approx(2 * own, abs=3)
    late = read(trace, start_s=700)
    assert len([r for r in late if r.arrival_ns < 600e9]) == 600


def test_either_file_of_servegen_names_the_pair(tmp_path: Path) -> None:
    expected = read(servegen(tmp_path))
    assert read(open_trace(tmp_path / "x_lengths.csv")) == expected


def test_files_of_no_known_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"known formats: azure, mooncake.*your own .* input_length"):
        open_trace(written(tmp_path / "x.csv", "a,b,c\n"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        open_trace(tmp_path / "absent.csv")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        open_trace(written(tmp_path / "x.csv.gz", "").with_name("y.csv.gz"))
    (tmp_path / "z.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        open_trace(tmp_path / "z.csv.gz")


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,1\n",
        '{"input_length": 5, "output_length": 2, "hash_ids": ["x"]}\n',
        '{"timestamp": 1e400, "input_length": 5, "output_length": 2}\n',
        '{"input_length": 5, "output_length": 2}\n{"input_le',
        '{"input_length": 5, "output_length": 2}\n3\n',
        '{"input_length": 5.5, "output_length": 2}\n',
        '{"input_length": 5, "output_length": 2.5}\n',
        '{"input_length": 600, "output_length": 2, "hash_ids": [1.5, 2.5]}\n',
        '{"input_length": 600, "output_length": 2, "hash_ids": [1, 2], "block_tokens": 0}\n',
        '{"timestamp": -1, "input_length": 5, "output_length": 2}\n',
        '{"input_length": 5, "output_length": 2}\n{"timestamp": 9, "input_length": 5, "output_length": 2}\n',
        '{"timestamp": 9, "input_length": 5, "output_length": 2}\n{"input_length": 5, "output_length": 2}\n',
        '{"timestamp": 1e16, "input_length": 5, "output_length": 2}\n',
        '{"input_length": 5, "output_length": 2}\n' + "[" * 100_000,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97," + "9" * 200_000 + ",1\n",
        '{"kind":"start"}\n{"kind":"add","id":1,"t":0,"prompt":"5"}\n{"kind":"plan","plan":{"chunks":[[1,0,5,1,0]]}}\n',
        '{"kind":"start"}\n{"kind":"add","id":1,"t":0,"prompt":5,"tier":"x"}\n'
        '{"kind":"plan","plan":{"chunks":[[1,0,5,1,0]]}}\n',
    ],
)
def test_lines_that_do_not_fit_are_the_files_fault(tmp_path: Path, text: str) -> None:
    trace = open_trace(written(tmp_path / "broken.trace", text))
    with pytest.raises(ConfigurationError, match=r"broken\.trace, which looks like [\w ]+, has lines that do not fit"):
        read(trace)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"input_length": 5}', "line 2: the field output_length is missing"),
        ('{"input_length": 5, "output_length": 2} 3', "line 2: no JSON: Extra data at character 40"),
        ("[5, 2]", "line 2: a value has another form than the format says"),
        ('{"input_length": -5, "output_length": 2}', "line 2: input_length must be at least 0, got -5"),
        ('{"input_length": "5", "output_length": 2}', "line 2: input_length must be a whole number, got '5'"),
        ('{"input_length": 5, "output_length": %s}' % ("9" * 5000), "line 2: a number has too many digits"),
        (
            '{"input_length": 5, "output_length": 2147483648}',
            "an answer has 2147483648 tokens, and one may have 2147483647",
        ),
        ('{"input_length": 5, "output_length": 2.5}', "line 2: output_length must be a whole number, got 2.5"),
    ],
)
def test_what_does_not_fit_is_said_in_words(tmp_path: Path, line: str, words: str) -> None:
    good = '{"input_length": 5, "output_length": 2}\n'
    with pytest.raises(ConfigurationError, match="has lines that do not fit") as caught:
        read(open_trace(written(tmp_path / "broken.jsonl", f"{good}{line}\n")))
    assert caught.value.message.endswith(f": {words}")


def test_a_column_that_holds_no_number_is_said_in_words(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,many,2\n"
    with pytest.raises(ConfigurationError, match="line 2: a whole number is expected, got many"):
        read(open_trace(written(tmp_path / "broken.csv", text)))


HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
NOON = "2023-11-16 12:00:00"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEAD}{NOON},10,5,7\n", "line 2: more columns than the 3 of the head"),
        (f"{HEAD}{NOON},10\n", "line 2: fewer columns than the 3 of the head"),
        (f"{HEAD}{NOON},-5,10\n", "line 2: ContextTokens must be at least 0, got -5"),
        (f"{HEAD}{NOON},10,5\nnoon,10,5\n", "line 3: a time is expected, got noon"),
        (f"{HEAD}{NOON}+05:00,10,5\n{NOON},10,5\n", "line 3: either all times have an offset from UTC, or none has"),
        (HEAD, "there is a head and no request behind it"),
        (
            f"{HEAD}{NOON},10,5\n2022-11-16 12:00:00,10,5\n",
            "request 1 comes 365 days after the one before it in time, request 2; 31 are possible",
        ),
        ("num_prefill_tokens,num_decode_tokens\n10,-5\n", "line 2: num_decode_tokens must be at least 0, got -5"),
        ("num_prefill_tokens,num_decode_tokens\n10.0,5\n", "line 2: a whole number is expected, got 10.0"),
        (
            "task_id,trial,call,prompt_tokens,output_tokens\n0,0,0,7,-1\n",
            "line 2: output_tokens must be at least 0, got -1",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=r"broken\.csv, which looks like") as caught:
        read(open_trace(written(tmp_path / "broken.csv", text)))
    assert caught.value.message.endswith(f": {words}")


@pytest.mark.parametrize(
    ("rates", "lengths", "words"),
    [
        ("0.5", "1,2,3,4,5,6,7,8,9,10,9", "line 2 of x_lengths.csv: quantiles of lengths must grow"),
        ("0.5", "1,2,3,4,5,6,7,8,9,10,nan", "line 2 of x_lengths.csv: quantiles of lengths must grow"),
        ("-1", "1,2,3,4,5,6,7,8,9,10,11", r"line 2 of x_rates.csv: rate_rps must be in \[0, 100000\], got -1"),
        ("0.5", None, "x_lengths.csv has a head and no lengths behind it"),
    ],
)
def test_what_is_wrong_with_the_tables_of_servegen_is_said(
    tmp_path: Path, rates: str, lengths: str | None, words: str
) -> None:
    head = LENGTHS.partition("\n")[0]
    rows = [] if lengths is None else [f"1,0,{field}_tokens,1,10,{lengths}" for field in ("input", "output")]
    written(tmp_path / "x_lengths.csv", "\n".join([head, *rows]))
    path = written(tmp_path / "x_rates.csv", f"{RATES.partition(chr(10))[0]}\n1,0,{rates},1,Gamma,1,1\n")
    with pytest.raises(ConfigurationError, match=words):
        read(open_trace(path))


def test_prompts_and_answers_of_no_tokens_have_one(tmp_path: Path) -> None:
    found = read(open_trace(written(tmp_path / "z.csv", f"{HEAD}{NOON},0,0\n")))
    assert found == [WorkRequest(0, 1, 1)]


def test_a_damaged_archive_is_the_files_fault(tmp_path: Path) -> None:
    whole = gzip.compress(AZURE.encode() + b"".join(b"2023-11-17 18:17:03,%d,%d\n" % (n * n, n) for n in range(5000)))
    path = tmp_path / "t.csv.gz"
    for damaged in (whole[:15], whole[:20] + b"\xff" * 20 + whole[40:]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigurationError, match=r"t\.csv\.gz cannot be read"):
            open_trace(path)
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:middle] + b"\xff" * 20 + whole[middle + 20 :]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigurationError, match=r"t\.csv\.gz, which looks like azure, has lines that do not fit"):
            read(open_trace(path))


def test_lines_of_azure_may_be_in_any_order(tmp_path: Path) -> None:
    first, *lines = AZURE.splitlines()
    shuffled = "\n".join([first, lines[1], lines[2], lines[0]])
    found = read(open_trace(written(tmp_path / "a.csv", shuffled)))
    assert found == read(open_trace(written(tmp_path / "b.csv", AZURE)))


def test_what_no_hash_id_stands_for_is_shared_with_nobody(tmp_path: Path) -> None:
    row = json.dumps({"input_length": 1100, "output_length": 9, "hash_ids": [7]})
    found = read(open_trace(written(tmp_path / "m.jsonl", f"{row}\n{row}\n")))
    assert [request.runs for request in found] == [(ContentRun(1, 512), ContentRun(0, 588))] * 2
    assert len(compact_prompt(found[0])) == 1100
    one, other = (distinct_prompt(request, number, 1000) for number, request in enumerate(found))
    assert one[:512] == other[:512]
    assert one[512:] != other[512:]


def test_hash_ids_of_single_blocks_are_equal_prefixes_only_behind_equal_ones(tmp_path: Path) -> None:
    ids = [[1, 2, 3, 4, 5], [1, 7, 3, 4, 5], [1, 2, 3, 4, 5], [2**63, -7]]
    rows = [json.dumps({"input_length": 512 * len(row), "output_length": 3, "hash_ids": row}) for row in ids]
    first, second, third, fourth = read(open_trace(written(tmp_path / "m.jsonl", "\n".join(rows))))
    assert first.runs == third.runs
    shared = [one == other for one, other in zip(first.runs, second.runs, strict=True)]
    assert shared == [True, False, False, False, False]
    assert {run.content_id for run in fourth.runs} == {10, 11}
