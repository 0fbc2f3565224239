import random
from pathlib import Path

import pytest

from chairlift.cli import calibrate
from chairlift.simulator.fit import TimedStep
from chairlift.simulator.latency.model import MachineFacts, StepShape

FACTS = MachineFacts(
    name="toy",
    max_model_len=1024,
    num_kv_tokens=10_000,
    kv_bytes_per_token=1000,
    max_num_seqs=64,
    max_num_batched_tokens=256,
)


def steps(noise: float) -> list[TimedStep]:
    """Decodes that take 1 ms and 0.1 ms each, give or take a part."""
    rng = random.Random(0)
    made: list[TimedStep] = []
    for _ in range(4):
        for rows in (1, 2, 4, 8, 16, 32, 64):
            for context in (16, 256, 1000):
                shape = StepShape(
                    num_decodes=rows,
                    num_decode_context_tokens=rows * context,
                    num_chunks=0,
                    num_chunk_rows=0,
                    num_chunk_pairs=0,
                    num_chunk_context_tokens=0,
                    num_sampled=rows,
                    num_pages_out=0,
                    num_pages_in=0,
                )
                made.append(TimedStep(shape, (1e6 + 1e5 * rows) * rng.uniform(1.0, 1.0 + noise)))
    return made


def test_a_poor_fit_is_written_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "model.json"
    calibrate._fit(FACTS, 16, steps(noise=5.0), [(1, 1000)], output)
    said = capsys.readouterr()
    assert "warning: the fit is poor" in said.err
    assert "--repeats" in said.err
    assert output.exists()


def test_a_good_fit_is_written_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrate._fit(FACTS, 16, steps(noise=0.02), [(1, 1000)], tmp_path / "model.json")
    said = capsys.readouterr()
    assert said.err == ""
    assert "error of the fit" in said.out
