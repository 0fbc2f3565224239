"""A request that would wait too long is refused at once by a real engine, with the time after which to come back."""

import asyncio

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.errors import DeadlineExceededError, OverloadedError
from tests.integration.engine.conftest import StartEngine
from tests.integration.engine.probes import ENDLESS, is_empty, run, until

pytestmark = pytest.mark.anyio


async def test_what_would_wait_too_long_is_refused_and_what_starts_at_once_never(start_engine: StartEngine) -> None:
    engine = await start_engine(max_num_seqs=1, max_ttft_ms=0.01, max_model_len=4000)
    short = SamplingParams(max_tokens=20, ignore_eos=True)
    for _ in range(3):  # alone, each starts at once; from them the engine learns
        await run(engine, "hello", short)
        await until(lambda: is_empty(engine))
    long = await engine.submit(engine.tokenizer.encode("long"), ENDLESS)
    await anext(long)
    with pytest.raises(OverloadedError, match=r"--max-ttft-ms is 0\.01 ms; try again later") as refused:
        await run(engine, "next", short)
    assert 1 <= refused.value.retry_after_s <= 60
    long.abort()
    await until(lambda: is_empty(engine))
    assert len(await run(engine, "next", short)) == 1


async def test_a_requests_own_deadline_is_a_limit_too(start_engine: StartEngine) -> None:
    engine = await start_engine(max_num_seqs=1, max_model_len=4000)
    for _ in range(3):
        await run(engine, "hello", SamplingParams(max_tokens=20, ignore_eos=True))
    long = await engine.submit(engine.tokenizer.encode("long"), ENDLESS)
    await anext(long)
    patient = asyncio.create_task(run(engine, "next", SamplingParams(max_tokens=2), ttft_deadline_ms=600_000))
    # On a machine that is slow enough it is over before the engine reads it; then it is no refusal but an end.
    with pytest.raises((OverloadedError, DeadlineExceededError), match=r"its deadline|ttft_deadline_ms is 100"):
        await run(engine, "next", SamplingParams(max_tokens=2), ttft_deadline_ms=100)
    long.abort()
    assert len(await patient) == 1
