"""Named workloads of prompt and output lengths, with random token ids as prompts.

Knows nothing of what is done with them. Prompts are token ids and end tokens are to be ignored, so the work is the
same for every engine and model whose vocabulary is large enough.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean

FIRST_TOKEN_ID = 100
"""Ids below are special tokens in common vocabularies."""

VOCAB_SIZE = 49_000


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request: its prompt, and exactly how many tokens to generate."""

    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int


def make_w1(num_requests: int, seed: int = 7) -> list[WorkItem]:
    """Heavy-tailed lengths: lognormal prompts (median 96, sigma 0.9) and outputs (median 64, sigma 1.0, cap 512).

    The first 128 have 18,638 prompt and 13,800 output tokens. Drawn in the same order as the scripts that measure other
    engines, so the requests are the very same.
    """
    rng = random.Random(seed)
    items: list[WorkItem] = []
    for _ in range(num_requests):
        prompt = min(1024, max(4, int(rng.lognormvariate(math.log(96), 0.9))))
        output = min(512, max(2, int(rng.lognormvariate(math.log(64), 1.0))))
        items.append(WorkItem(_random_prompt(rng, prompt), output))
    return items


def make_uniform(num_requests: int, seed: int = 7) -> list[WorkItem]:
    """Every request as long as the mean of :func:`make_w1`: what a benchmark with average lengths sees."""
    same = make_w1(num_requests, seed)
    prompt = round(mean(len(item.prompt_token_ids) for item in same))
    output = round(mean(item.num_output_tokens for item in same))
    rng = random.Random(seed)
    return [WorkItem(_random_prompt(rng, prompt), output) for _ in range(num_requests)]


ARTICLE_SCALE = 4


def make_article(num_requests: int, seed: int = 7) -> list[WorkItem]:
    """Output lengths with median 80, p99 1,500 and cap 2,048, all divided by 4 so that a CPU gets through them.

    A lognormal whose 99th percentile is 1,500 / 80 times its median has sigma ln(18.75) / 2.326 = 1.26. Prompts are
    short (median 64, sigma 0.6), so that outputs decide.
    """
    rng = random.Random(seed)
    sigma = math.log(1500 / 80) / 2.3263
    items: list[WorkItem] = []
    for _ in range(num_requests):
        prompt = min(512, max(4, int(rng.lognormvariate(math.log(64), 0.6))))
        output = min(2048, max(4, int(rng.lognormvariate(math.log(80), sigma)))) // ARTICLE_SCALE
        items.append(WorkItem(_random_prompt(rng, prompt), max(1, output)))
    return items


WORKLOADS: Mapping[str, Callable[[int, int], list[WorkItem]]] = {
    "w1": make_w1,
    "uniform": make_uniform,
    "article": make_article,
}
"""Name -> (number of requests, seed) -> requests."""


def _random_prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST_TOKEN_ID, VOCAB_SIZE) for _ in range(length))
