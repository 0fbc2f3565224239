"""Requests on the real executor through the real scheduler, for tests of what comes of them. Knows nothing of pytest's
fixtures.
"""

from typing import Any, Self

import pytest

from chairlift.config.model_source import ModelSource
from chairlift.config.resolved import CacheConfig, SchedulerConfig
from chairlift.config.sections import CacheSettings, ModelSettings
from chairlift.core.outcome import RequestUpdate
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.scheduler import Scheduler
from chairlift.core.step_plan import PromptLogprobs, TokenLogprobs
from chairlift.core.stepper import Stepper
from chairlift.execution.torch_backend.build import build_executor

CLOSE = 1e-4
"""Between log-probabilities of one token, computed in different company."""
PAGE_SIZE = 16


class Run:
    """Requests on the real executor, one batch after the other; what came is kept by request."""

    def __init__(self, source: ModelSource, *, depth: int = 1, num_pages: int = 200, **scheduler: object) -> None:
        settings: dict = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256, **scheduler}
        self.ready = build_executor(
            source,
            ModelSettings(dtype="float32", num_threads=1, max_model_len=256),
            CacheSettings(kv_cache_memory="4MiB", page_size=PAGE_SIZE, swap_space="1MiB"),
            max_num_seqs=8,
            max_num_batched_tokens=64,
            pipeline_depth=depth,
        )
        cache = CacheConfig(num_pages=num_pages, page_size=PAGE_SIZE, num_host_pages=50, enable_prefix_caching=True)
        self.engine = Scheduler(SchedulerConfig(**settings), cache)
        self.stepper = Stepper(self.engine, self.ready.executor, depth)
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.prompt: dict[int, dict[int, TokenLogprobs]] = {}
        self.finished: dict[int, Any] = {}
        self._next_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ready.executor.close()

    def add(self, prompt: list[int], **sampling: Any) -> int:
        request_id = self._next_id
        self._next_id += 1
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling})
        self.engine.add(Request(request_id, prompt, params, seed=params.seed or 0), 0)
        self.tokens[request_id], self.logprobs[request_id], self.prompt[request_id] = [], [], {}
        return request_id

    def run(self) -> "Run":
        while (outcome := self.stepper.step(0)) is not None:
            for update in outcome.updates:
                self._take(update)
        return self

    def _take(self, update: RequestUpdate) -> None:
        self.tokens[update.request_id].extend(update.token_ids)
        if update.logprobs is not None:
            self.logprobs[update.request_id].append(update.logprobs)
        if update.finish_reason is not None:
            self.finished[update.request_id] = update.finish_reason.value
        found: PromptLogprobs | None = update.prompt_logprobs
        for place, logprobs in enumerate(found.logprobs if found else (), found.start if found else 0):
            known = self.prompt[update.request_id].setdefault(place, logprobs)
            assert known.token_logprob == pytest.approx(logprobs.token_logprob, abs=CLOSE)
