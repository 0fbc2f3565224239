import json
from pathlib import Path

import pytest

from benchmarks import performance_page
from tests.docs.pages import ROOT


@pytest.mark.parametrize("name", performance_page.PAGES)
def test_tables_are_what_the_files_of_results_say(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert performance_page.filled(text, performance_page.RESULTS) == text, "run make performance-page"


def test_a_table_of_engines_has_ratios_and_reasons(tmp_path: Path) -> None:
    run = {"output_tok_s": 100.0, "total_tok_s": 250.0}
    engines = {
        "chairlift": {
            "configuration": "default",
            "precision": "q4",
            "version": "1",
            "num_requests": 128,
            "rounds": [run],
        },
        "vllm": {"configuration": "f32", "precision": "f32", "version": "2", "num_requests": 128, "rounds": [run, {}]},
        "openvino": {"cannot_run": "a traceback\nno such instruction"},
    }
    speeds = {"chairlift": 100.0, "vllm": 40.0, "openvino": None, "llamacpp": None, "transformers_static": None}
    record = {"w1": speeds, "machine": "a machine", "date": "2026-01-01", "details": {"w1": {"engines": engines}}}
    (tmp_path / "peers.json").write_text(json.dumps(record), encoding="utf-8")
    table = performance_page.peers_w1(tmp_path)
    assert "a machine, 2026-01-01" in table
    assert "| vLLM, CPU build 2 | f32 (f32) | 128 | 40 | 100 | 2.50 |" in table
    assert "no such instruction" in table
    assert "llama.cpp" not in table


def test_filling_again_changes_nothing(tmp_path: Path) -> None:
    page = "before\n\n<!-- begin peers -->\n<!-- end peers -->\n\nafter\n"
    once = performance_page.filled(page, tmp_path)
    assert "make bench-peers" in once
    assert performance_page.filled(once, tmp_path) == once
