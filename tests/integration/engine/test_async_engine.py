"""The asynchronous engine over its real process: streams, choices, aborts, refusals, draining, metrics."""

import asyncio
import gc
import logging
import sys
from pathlib import Path

import pytest

from chairlift import LLM
from chairlift.config.load import load_settings
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.terms import Terms
from chairlift.errors import (
    ConfigurationError,
    DrainingError,
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
    RequestTooLongError,
)
from tests.integration.engine.conftest import StartEngine
from tests.integration.engine.probes import ENDLESS, collect, entries, is_empty, metrics, run, until

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


async def test_streams_say_what_the_offline_engine_says(start_engine: StartEngine) -> None:
    engine = await start_engine(max_num_seqs=4)
    prompts = [f"prompt {i}" for i in range(12)]
    expected = [output.outputs[0].text for output in LLM(executor="fake").generate(prompts, GREEDY, use_tqdm=False)]
    assert await asyncio.gather(*(run(engine, prompt, GREEDY) for prompt in prompts)) == [[text] for text in expected]
    await until(lambda: is_empty(engine))


async def test_deltas_of_each_choice_add_up_and_end_once(start_engine: StartEngine) -> None:
    engine = await start_engine()
    sampling = SamplingParams(n=3, seed=1, max_tokens=30, ignore_eos=True)
    whole = await run(engine, "hello", sampling)
    assert len(set(whole)) == 3
    deltas = await collect(await engine.submit(engine.tokenizer.encode("hello"), sampling))
    assert sorted(deltas) == [0, 1, 2]
    for index, parts in deltas.items():
        assert "".join(part.text for part in parts) == whole[index]
        assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1].finish_reason == "length"
        counts = [part.num_output_tokens for part in parts]
        assert counts == sorted(counts)
        assert counts[-1] == sum(len(part.token_ids) for part in parts) == 30


async def test_one_choice_of_a_seed_is_the_first_of_many(start_engine: StartEngine) -> None:
    engine = await start_engine()
    one = SamplingParams(seed=5, max_tokens=20, temperature=0.9, ignore_eos=True)
    three = SamplingParams(n=3, seed=5, max_tokens=20, temperature=0.9, ignore_eos=True)
    alone, _, with_choices = await asyncio.gather(
        run(engine, "p", one), run(engine, "q", SamplingParams(max_tokens=20)), run(engine, "p", three)
    )
    assert alone[0] == with_choices[0]


async def test_seed_survives_preemption(start_engine: StartEngine) -> None:
    # The choices of one request arrive together, so they are sure to compete for the pages.
    sampling = SamplingParams(n=4, seed=7, max_tokens=24, ignore_eos=True)
    expected = await run(await start_engine(), "seeded", sampling)
    tight = await start_engine(kv_cache_memory="48KiB", page_size=4, enable_prefix_caching=False)
    assert await run(tight, "seeded", sampling) == expected
    await until(lambda: is_empty(tight))
    now = metrics(tight)
    assert now["num_preemptions_total"] > 0
    assert now["prefix_cache_hits_tokens_total"] == 0
    assert now["time_to_first_token_seconds_count"] == now["request_queue_time_seconds_count"] == 4
    assert now["inter_token_latency_seconds_count"] == 4 * 23


async def test_stop_string_ends_the_stream_and_frees_the_slot(start_engine: StartEngine) -> None:
    engine = await start_engine()
    text = (await run(engine, "hello", GREEDY))[0]
    stop = text[8:11]
    sampling = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True, stop=(stop,))
    deltas = (await collect(await engine.submit(engine.tokenizer.encode("hello"), sampling)))[0]
    assert "".join(delta.text for delta in deltas) == text[: text.index(stop)]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    await until(lambda: is_empty(engine))
    assert metrics(engine)["requests_finished_total{stop}"] == 1


async def leave_by_closing(engine: AsyncEngine) -> None:
    stream = await engine.submit([1, 2, 3], ENDLESS)
    await anext(stream)
    await stream.aclose()


async def leave_by_context(engine: AsyncEngine) -> None:
    async with await engine.submit([1, 2, 3], ENDLESS) as stream:
        await anext(stream)


async def leave_by_dropping(engine: AsyncEngine) -> None:
    async for _ in await engine.submit([1, 2, 3], ENDLESS):
        break
    gc.collect()


async def leave_by_cancelling(engine: AsyncEngine) -> None:
    task = asyncio.create_task(run(engine, "endless", ENDLESS))
    await until(lambda: metrics(engine)["num_requests_running"] == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_before_acceptance(engine: AsyncEngine) -> None:
    task = asyncio.create_task(engine.submit([1, 2, 3], ENDLESS))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "leave", [leave_by_closing, leave_by_context, leave_by_dropping, leave_by_cancelling, leave_before_acceptance]
)
async def test_leaving_early_frees_everything(start_engine: StartEngine, leave) -> None:
    engine = await start_engine(max_model_len=20000)
    await leave(engine)
    await until(lambda: is_empty(engine) and engine.num_unfinished == 0)
    now = metrics(engine)
    assert now["requests_finished_total{abort}"] == now["requests_received_total"] == 1
    assert now["requests_finished_total{stop}"] == now["requests_finished_total{length}"] == 0
    assert (await run(engine, "next", GREEDY))[0]


async def test_many_that_leave_after_their_first_token_leave_nothing(start_engine: StartEngine) -> None:
    engine = await start_engine()

    async def visit(number: int) -> None:
        async with await engine.submit(engine.tokenizer.encode(f"visitor {number}"), ENDLESS) as stream:
            await anext(stream)

    await asyncio.gather(*(visit(number) for number in range(300)))
    await until(lambda: is_empty(engine), timeout_s=2.0 if sys.gettrace() is None else 20.0)


async def test_abort_from_outside_ends_the_stream_with_abort(start_engine: StartEngine) -> None:
    engine = await start_engine(max_model_len=20000)
    stream = await engine.submit([1], SamplingParams(n=2, max_tokens=None, ignore_eos=True))
    await anext(stream)
    stream.abort()
    stream.abort()
    deltas = await collect(stream)
    assert [parts[-1].finish_reason for parts in deltas.values()] == ["abort", "abort"]


async def test_slow_reader_holds_no_more_than_its_output_and_loses_nothing(start_engine: StartEngine) -> None:
    engine = await start_engine()
    sampling = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
    slow = await engine.submit(engine.tokenizer.encode("hello"), sampling)
    first = await anext(slow)
    await until(lambda: engine.num_unfinished == 0)
    rest = [delta async for delta in slow]
    assert len(rest) == 1
    assert (rest[0].num_output_tokens, rest[0].finish_reason) == (1000, "length")
    assert [first.text + rest[0].text] == await run(engine, "hello", sampling)


async def test_queue_cap_refuses_before_anything_is_streamed(start_engine: StartEngine) -> None:
    engine = await start_engine(max_num_seqs=1, max_num_queued_reqs=2, max_model_len=20000)
    results = await asyncio.gather(*(engine.submit([1, 2], ENDLESS) for _ in range(6)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, OverloadedError)]
    streams = [result for result in results if not isinstance(result, BaseException)]
    assert (len(streams), len(refused)) == (3, 3)
    assert all("--max-num-queued-reqs is 2" in error.message and error.retry_after_s >= 1 for error in refused)
    for stream in streams:
        stream.abort()
    await until(lambda: is_empty(engine))
    now = metrics(engine)
    assert (now["requests_received_total"], now["requests_finished_total{rejected}"]) == (6, 3)


async def test_same_label_twice_at_once_and_again(start_engine: StartEngine) -> None:
    engine = await start_engine()
    first, second = [(await run(engine, prompt, GREEDY))[0] for prompt in ("one", "two")]
    both = await asyncio.gather(run(engine, "one", GREEDY, label="same"), run(engine, "two", GREEDY, label="same"))
    assert both == [[first], [second]]
    assert await run(engine, "one", GREEDY, label="same") == [first]


async def test_salts_keep_prefixes_apart(start_engine: StartEngine) -> None:
    engine = await start_engine()
    cached: list[int | None] = []
    for salt in ("a", "b", "a", None):
        stream = await engine.submit([9] * 64, SamplingParams(max_tokens=1), Terms(cache_salt=salt))
        cached.append((await anext(stream)).num_cached_tokens)
    assert cached == [0, 0, 48, 0]


async def test_cache_reset_waits_for_nobody_and_hurts_nobody(start_engine: StartEngine) -> None:
    engine = await start_engine(max_model_len=20000)
    stream = await engine.submit([9] * 64, ENDLESS)
    await anext(stream)
    assert not await engine.reset_prefix_cache()
    await stream.aclose()
    await until(lambda: is_empty(engine))
    assert metrics(engine)["kv_cache_cached_ratio"] > 0
    assert await engine.reset_prefix_cache()
    await until(lambda: metrics(engine)["kv_cache_cached_ratio"] == 0)


@pytest.mark.parametrize(
    ("prompt", "sampling", "kind", "parts"),
    [
        ([1] * 64, SamplingParams(), RequestTooLongError, ("64", "--max-model-len", "max_tokens=16")),
        ([], SamplingParams(), InvalidRequestError, ("at least 1",)),
        ([1, 2, 999999], SamplingParams(), InvalidRequestError, ("999999", "262")),
        ([2**63], SamplingParams(), InvalidRequestError, ("262",)),
        ([1], SamplingParams(max_tokens=0), InvalidRequestError, ("max_tokens",)),
    ],
)
async def test_bad_requests_are_refused_and_hurt_nobody(
    start_engine: StartEngine, prompt: list[int], sampling: SamplingParams, kind: type, parts: tuple[str, ...]
) -> None:
    engine = await start_engine(max_model_len=64)
    good = asyncio.create_task(run(engine, "good", GREEDY))
    with pytest.raises(kind) as caught:
        await engine.submit(prompt, sampling)
    assert all(part in caught.value.message for part in parts)
    assert (await good)[0]
    assert metrics(engine)["requests_finished_total{rejected}"] == 1


async def test_draining_lets_running_requests_end_and_takes_no_new_ones(start_engine: StartEngine) -> None:
    engine = await start_engine()
    stream = await engine.submit([1, 2], SamplingParams(max_tokens=500, ignore_eos=True))
    await anext(stream)
    stopping = asyncio.create_task(engine.stop(drain_timeout_s=60))
    await until(lambda: engine.is_draining)
    with pytest.raises(DrainingError):
        await engine.submit([1], GREEDY)
    assert (await collect(stream))[0][-1].finish_reason == "length"
    await stopping
    assert not engine.is_healthy


async def test_draining_aborts_what_does_not_end_in_time(
    start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start_engine(max_model_len=50000)
    stream = await engine.submit([1, 2], ENDLESS)
    await anext(stream)
    with caplog.at_level(logging.WARNING):
        await engine.stop(drain_timeout_s=0.05)
    assert (await collect(stream))[0][-1].finish_reason == "abort"
    assert "1 requests" in caplog.text
    assert is_empty(engine)


async def test_nothing_is_left_on_disk(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = await start_engine()
    (folder,) = entries(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    await engine.stop()
    assert entries(tmp_path) == []


async def test_settings_that_cannot_work_are_reported_at_start(start_engine: StartEngine) -> None:
    with pytest.raises(ConfigurationError, match="--max-num-batched-tokens is 8"):
        await start_engine(max_num_batched_tokens=8)


@pytest.mark.parametrize(("max_model_len", "is_warned"), [(2048, True), (256, False)])
async def test_memory_for_less_than_one_full_request_is_warned_of(
    start_engine: StartEngine, caplog: pytest.LogCaptureFixture, max_model_len: int, is_warned: bool
) -> None:
    engine = await start_engine(kv_cache_memory="512KiB", max_model_len=max_model_len)
    assert 256 <= engine.model_info.num_token_slots < 2048
    assert ("fewer than --max-model-len 2048" in caplog.text) == is_warned


async def test_nothing_can_be_submitted_before_the_start() -> None:
    engine = AsyncEngine(load_settings({"executor": "fake"}, env={}))
    with pytest.raises(EngineUnavailableError):
        await engine.submit([1], GREEDY)
    assert not engine.is_healthy
    await engine.stop()
