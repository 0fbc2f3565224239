import argparse
import json
import sys
from pathlib import Path

from benchmarks import performance_page, tasks
from benchmarks.peers import __main__ as peers
from benchmarks.peers.catalogue import OURS, PEERS
from benchmarks.peers.models import FORMS
from benchmarks.peers.rounds import Contender, alternate
from benchmarks.tasks import Requests

REQUESTS = Requests("w1", [([1, 2, 3], 2)])


def contender(script: str, engine: str = "vllm", configuration: str = "f32") -> Contender:
    return Contender(
        engine, engine, configuration, "f32", lambda requests, file: [sys.executable, "-c", script, str(file)]
    )


def printing(output_tok_s: float) -> str:
    return f"import json; print('warm'); print(json.dumps({{'output_tok_s': {output_tok_s}, 'wall_s': 1.0}}))"


def test_a_run_reads_the_last_line_of_figures_and_gets_the_requests() -> None:
    script = (
        "import json, sys; given = json.load(open(sys.argv[1])); "
        "print(json.dumps({'output_tok_s': len(given['requests']), 'wall_s': 1.0, 'precision': 'q4'}))"
    )
    run = contender(script).run(REQUESTS, 60)
    assert (run.output_tok_s, run.precision, run.cannot_run) == (1, "q4", None)


def test_a_report_of_bench_offline_is_read_too() -> None:
    report = {
        "output_tokens_per_s": 5.0,
        "total_tokens_per_s": 9.0,
        "wall_s": 1.0,
        "num_requests": 1,
        "dtype": "float32",
    }
    report |= {"quantization": "q4", "description": "a model in 4 bits"}
    run = contender(f"print({json.dumps(json.dumps(report))})").run(REQUESTS, 60)
    assert (run.output_tok_s, run.total_tok_s, run.precision) == (5.0, 9.0, "float32, q4 weights")


def test_what_dies_or_takes_too_long_is_a_reason_and_no_error() -> None:
    dead = contender("raise SystemExit('no such instruction')").run(REQUESTS, 60)
    assert dead.output_tok_s is None
    assert "no such instruction" in str(dead.cannot_run)
    slow = contender("import time; time.sleep(60)").run(REQUESTS, 0.5)
    assert "0.5 s" in str(slow.cannot_run)


def test_every_second_round_goes_backwards_and_medians_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    names = ("a", "b")
    both = [contender(f"open({str(log)!r}, 'a').write({name!r}); {printing(7)}", name) for name in names]
    assert list(alternate([(one, REQUESTS) for one in both], 3, 60)) == [1, 2, 3]
    assert log.read_text(encoding="utf-8") == "abbaab"
    assert both[0].output_tok_s == 7


def options(tmp_path: Path) -> argparse.Namespace:
    return argparse.Namespace(
        num_requests=4, peer_requests=["vllm=2"], scout_requests=1, timeout_s=60, traces=None, rounds=1,
        output=tmp_path / "peers.json",
    )  # fmt: skip


def test_the_fastest_configuration_goes_into_the_rounds_and_the_file_has_them_all(tmp_path: Path) -> None:
    comparison = peers.Comparison("w1", options(tmp_path))
    comparison.enter(contender(printing(30), OURS, "default"))
    slow, fast, broken = (
        contender(printing(10)),
        contender(printing(20), "vllm", "int8"),
        contender("raise SystemExit(1)"),
    )
    comparison.choose([slow, fast, broken])
    comparison.missing["openvino"] = "no such instruction"
    assert [one.configuration for one in comparison.chosen] == ["default", "int8"]
    assert len(comparison.requests("vllm").items) == 2
    assert len(comparison.requests(OURS).items) == 4
    for _ in alternate([(one, REQUESTS) for one in comparison.chosen], 1, 60):
        peers.write(comparison, comparison.options)
    record = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    none = {"openvino": None, "llamacpp": None, "transformers_static": None}
    assert record["w1"] == {"chairlift": 30.0, "vllm": 20.0, **none}
    assert {"machine", "date"} <= record.keys()
    engines = record["details"]["w1"]["engines"]
    assert engines["vllm"]["configurations"]["int8"]["output_tok_s"] == 20
    assert engines["openvino"] == {"cannot_run": "no such instruction"}
    assert "| 20 |" in performance_page.peers_w1(tmp_path)


def test_lists_of_engines_tasks_and_forms_agree() -> None:
    assert list(performance_page.ENGINES) == [OURS, *PEERS]
    assert list(performance_page.TASKS) == [name.replace("-", "_") for name in tasks.NUM_REQUESTS]
    assert {one.form for peer in PEERS.values() for one in peer.configurations} <= set(FORMS)
