"""The command that times a real executor, and the simulation that uses what it wrote."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chairlift.cli.main import cli
from chairlift.simulator.latency.measured import read_measured
from tests.equivalence.tiny_models import save_tiny_model


def test_a_real_executor_runs_every_step_of_the_grid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = save_tiny_model(tmp_path / "model", "llama")
    output = tmp_path / "cpu.json"
    result = CliRunner().invoke(
        cli,
        [
            "calibrate", str(source.path), "-o", str(output), "--thoroughness", "1", "--repeats", "1",
            "--dtype", "float32", "--num-threads", "1", "--max-num-seqs", "4", "--max-num-batched-tokens", "64",
            "--kv-cache-memory", "4MiB", "--swap-space", "1MiB",
        ],
        catch_exceptions=False,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "error of the fit" in result.output
    assert "no token can be drawn" not in caplog.text
    measured = read_measured(output)
    assert measured.facts.max_num_seqs == 4
    assert measured.facts.max_num_batched_tokens == 64
    assert measured.facts.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    assert measured.facts.step_overhead_ns > 0
    assert min(measured.coefficients.knot_ns) >= 0
    assert measured.error is not None
    assert measured.error.num_steps > 15
    simulated = CliRunner().invoke(
        cli, ["simulate", "--output-lengths", "5,9,3", "--latency-model", str(output), "--json", "-"]
    )
    numbers = json.loads(simulated.stdout)
    assert numbers["num_finished"] == 3
    assert numbers["max_num_seqs"] == 4
    assert 0 < numbers["simulated_s"] < 10
