"""What dies takes nothing with it: the engine under load, and the parent of an engine."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.connection import EngineConnection
from chairlift.engine.supervisor import Backoff
from chairlift.errors import EngineDiedError, EngineDownError
from tests.integration.engine.conftest import StartEngine
from tests.integration.engine.probes import ENDLESS, collect, entries, is_empty, metrics, run, until

pytestmark = pytest.mark.anyio


async def test_killed_engine_ends_streams_at_once_and_comes_back(start_engine: StartEngine) -> None:
    engine = await start_engine(max_num_seqs=4, max_model_len=20000)
    streams = [await engine.submit([number], ENDLESS) for number in range(8)]
    await anext(streams[0])
    readers = [asyncio.create_task(collect(stream)) for stream in streams]
    process_id = engine.engine_process_id
    assert process_id is not None

    os.kill(process_id, signal.SIGKILL)
    killed_s = time.monotonic()
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert time.monotonic() - killed_s < 2.0
    assert all(isinstance(result, EngineDiedError) for result in results)
    assert not engine.is_healthy or engine.engine_process_id != process_id
    assert is_empty(engine)

    await until(lambda: engine.is_healthy)
    assert engine.engine_process_id != process_id
    assert (await run(engine, "again", SamplingParams(max_tokens=4, ignore_eos=True)))[0]
    now = metrics(engine)
    assert (now["engine_up"], now["engine_restarts_total"]) == (1, 1)
    assert now["requests_finished_total{error}"] == 8
    assert now["generation_tokens_total"] > 4


async def test_while_the_engine_is_down_requests_are_refused(start_engine: StartEngine) -> None:
    engine = await start_engine()
    process_id = engine.engine_process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)
    await until(lambda: not engine.is_healthy)
    with pytest.raises(EngineDownError):
        await engine.submit([1], ENDLESS)
    assert metrics(engine)["engine_up"] == 0


async def test_an_engine_that_cannot_be_started_for_want_of_files_is_tried_again(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start_engine()
    process_id = engine.engine_process_id
    assert process_id is not None
    launch = EngineConnection.launch
    failures = [OSError(errno.EMFILE, "Too many open files")]

    async def launch_later(*arguments: Any) -> EngineConnection:
        if failures:
            raise failures.pop()
        return await launch(*arguments)

    monkeypatch.setattr(EngineConnection, "launch", launch_later)
    os.kill(process_id, signal.SIGKILL)
    await until(lambda: engine.is_healthy and engine.engine_process_id != process_id)
    assert not failures


async def test_requests_that_wait_for_acceptance_hear_of_the_death(start_engine: StartEngine) -> None:
    engine = await start_engine()
    process_id = engine.engine_process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGSTOP)
    waiting = [asyncio.create_task(engine.submit([1], ENDLESS)) for _ in range(3)]
    await until(lambda: engine.num_unfinished == 3)
    os.kill(process_id, signal.SIGKILL)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, EngineDiedError) for result in results)


@pytest.mark.parametrize("is_shown", [True, False])
async def test_an_engine_that_hangs_is_replaced_and_its_requests_end(
    is_shown: bool, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_shown:  # where the system does not say that a process is stopped, or it hangs in another way
        monkeypatch.setattr(EngineConnection, "is_stopped", False)
    engine = await start_engine(max_model_len=20000, watchdog_timeout=0.4)
    streams = [await engine.submit([number], ENDLESS) for number in range(3)]
    await anext(streams[0])
    process_id = engine.engine_process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGSTOP)
    results = await asyncio.gather(*map(collect, streams), return_exceptions=True)
    said = "stopped for" if is_shown else "--watchdog-timeout"
    assert all(isinstance(result, EngineDiedError) and said in result.message for result in results)
    await until(lambda: engine.is_healthy)
    assert engine.engine_process_id != process_id
    assert await run(engine, "again", SamplingParams(max_tokens=4, ignore_eos=True))
    now = metrics(engine)
    assert now["requests_received_total"] == sum(
        value for name, value in now.items() if name.startswith("requests_finished_total")
    )


async def test_an_idle_engine_that_hangs_is_replaced(start_engine: StartEngine) -> None:
    engine = await start_engine(watchdog_timeout=0.4)
    process_id = engine.engine_process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGSTOP)
    await until(lambda: engine.is_healthy and engine.engine_process_id != process_id)
    assert await run(engine, "again", SamplingParams(max_tokens=4, ignore_eos=True))


async def test_stopping_while_the_engine_is_down_ends_cleanly(start_engine: StartEngine) -> None:
    engine = await start_engine()
    process_id = engine.engine_process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)
    await until(lambda: not engine.is_healthy)
    await engine.stop()
    assert engine.engine_process_id is None


async def test_engine_process_ignores_what_the_terminal_sends_to_all(start_engine: StartEngine) -> None:
    engine = await start_engine()
    process_id = engine.engine_process_id
    assert process_id is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process_id, number)
    await run(engine, "still there", SamplingParams(max_tokens=4))
    assert engine.engine_process_id == process_id


PARENT = """
import asyncio
from chairlift.config.load import load_settings
from chairlift.engine.async_engine import AsyncEngine

async def main():
    engine = AsyncEngine(load_settings({"executor": "fake"}, env={}))
    await engine.start()
    print(engine.engine_process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def is_alive(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
async def test_engine_process_dies_with_its_parent_and_cleans_up() -> None:
    # Not pytest's folder: its path may be too long for a socket, which then lies elsewhere.
    with tempfile.TemporaryDirectory() as folder:
        parent = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs in this loop)
            [sys.executable, "-c", PARENT],
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": folder},
        )
        with parent:
            try:
                assert parent.stdout is not None
                engine_id = int(parent.stdout.readline())
                assert is_alive(engine_id)
                assert len(entries(Path(folder))) == 1
            finally:
                parent.kill()
        await until(lambda: not is_alive(engine_id))
        assert entries(Path(folder)) == []


def test_backoff_grows_and_forgets_after_a_long_life() -> None:
    backoff = Backoff(first_s=0.5, limit_s=3.0, long_life_s=60.0)
    assert [backoff.next_pause_s(1.0) for _ in range(5)] == [0.0, 0.5, 1.0, 2.0, 3.0]
    assert [backoff.next_pause_s(60.0), backoff.next_pause_s(1.0)] == [0.0, 0.5]
