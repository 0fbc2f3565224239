"""A real engine process, its decision log, and the command that replays it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from chairlift.cli.replay import replay
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.decision_log_file import read_entries
from tests.integration.engine.conftest import StartEngine
from tests.integration.engine.probes import ENDLESS, is_empty, run, until

pytestmark = pytest.mark.anyio

TIGHT = {"kv_cache_memory": "96KiB", "page_size": 4, "max_num_seqs": 8, "swap_space": "64KiB", "max_model_len": 200}


def replayed(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(replay, [str(path)], standalone_mode=False)
    assert result.exception is None
    return result.return_value, result.output


@pytest.mark.parametrize("settings", [{}, {"pipeline_depth": 2, "preemption_mode": "auto", "target_tpot_ms": 50}])
async def test_a_served_load_replays_to_identical_plans(
    start_engine: StartEngine, tmp_path: Path, settings: dict
) -> None:
    """More than fits, in two tiers, with streams that leave; what was said is not in the log."""
    path = tmp_path / "log.jsonl"
    engine = await start_engine(decision_log=str(path), tenant_order="fair", **TIGHT, **settings)
    sampling = SamplingParams(max_tokens=30, temperature=0.8, seed=3)
    # Three times as many as there are slots: the last ones have not ended by themselves when they leave.
    leavers = [await engine.submit(engine.tokenizer.encode("goodbye"), ENDLESS) for _ in range(24)]
    await anext(leavers[0])
    loads = asyncio.gather(
        *(run(engine, f"a secret {i % 3} " * 2, sampling, priority=i % 2, tenant="ab"[i % 2]) for i in range(24))
    )
    for leaver in leavers:
        leaver.abort()
    await loads
    await until(lambda: is_empty(engine))
    await engine.stop()
    status, output = replayed(path)
    assert "plans of 1 run are identical" in output
    assert status == 0
    assert b"secret" not in path.read_bytes()
    assert any(entry.get("reason") == "abort" for entry in read_entries(path))


async def test_a_killed_engine_leaves_a_log_that_replays_and_its_successor_goes_on(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    engine = await start_engine(decision_log=str(path))
    await run(engine, "first life", SamplingParams(max_tokens=5))
    process_id = engine.engine_process_id
    assert process_id is not None
    await until(lambda: path.stat().st_size > 1000)
    os.kill(process_id, signal.SIGKILL)
    await until(lambda: engine.is_healthy and engine.engine_process_id != process_id)
    await run(engine, "second life", SamplingParams(max_tokens=5))
    await engine.stop()
    status, output = replayed(path)
    assert "plans of 2 runs are identical" in output
    assert status == 0
