import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from chairlift.cli import calibrate
from chairlift.cli.main import cli
from chairlift.errors import ConfigurationError
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


@pytest.mark.parametrize("seconds", ["nan", "-5", "0"])
def test_a_time_that_has_no_end_or_no_beginning_is_refused(tmp_path: Path, seconds: str) -> None:
    arguments = ["calibrate", "-o", str(tmp_path / "m.json"), "--max-seconds", seconds]
    with pytest.raises(ConfigurationError, match="--max-seconds must be above 0"):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)


def test_the_toy_model_is_not_calibrated(tmp_path: Path) -> None:
    arguments = ["calibrate", "-o", str(tmp_path / "m.json")]
    for more, env in ((["--executor", "fake"], {}), ([], {"CHAIRLIFT_EXECUTOR": "fake"})):
        with pytest.raises(ConfigurationError, match="--executor fake cannot be calibrated"):
            CliRunner().invoke(cli, [*arguments, *more], catch_exceptions=False, env=env)
    assert "fake" not in CliRunner().invoke(cli, ["calibrate", "--help"]).output


def test_a_good_fit_is_written_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrate._fit(FACTS, 16, steps(noise=0.02), [(1, 1000)], tmp_path / "model.json")
    said = capsys.readouterr()
    assert said.err == ""
    assert "error of the fit" in said.out
