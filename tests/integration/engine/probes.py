"""What the engine tests share. Knows nothing of pytest."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.outputs import ChoiceDelta
from chairlift.engine.request_tracker import RequestStream
from chairlift.engine.terms import Terms

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
"""Runs until the model length: with the toy model, seconds for a length of thousands."""


async def collect(stream: RequestStream) -> dict[int, list[ChoiceDelta]]:
    """Read a stream to its end; deltas by choice."""
    deltas: dict[int, list[ChoiceDelta]] = {}
    async for delta in stream:
        deltas.setdefault(delta.index, []).append(delta)
    return deltas


async def run(engine: AsyncEngine, prompt: str, sampling: SamplingParams, **terms: Any) -> list[str]:
    """Generate and return the text of each choice."""
    stream = await engine.submit(engine.tokenizer.encode(prompt), sampling, Terms(**terms))
    deltas = await collect(stream)
    return ["".join(delta.text for delta in deltas[index]) for index in sorted(deltas)]


def metrics(engine: AsyncEngine) -> dict[str, float]:
    """All samples; the value of a label, if there is one, stands in braces."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(engine.metrics.render().decode()):
        for sample in family.samples:
            labels = "".join(f"{{{value}}}" for value in sample.labels.values())
            samples[sample.name.removeprefix("chairlift_") + labels] = sample.value
    return samples


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until the condition holds; a test's outcome never depends on how long this takes.

    Raises:
        TimeoutError: it does not.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (most conditions are about another process)
            await asyncio.sleep(0.005)


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder."""
    return list(folder.iterdir())


def is_empty(engine: AsyncEngine) -> bool:
    """Nothing runs or waits, and no page is in use."""
    now = metrics(engine)
    return not any(now[name] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio"))
