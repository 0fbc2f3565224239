"""The executor that runs a real model: each plan becomes one forward pass and one sampled token per sampling row.

Knows nothing of model architectures, kernels or scheduling.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch

from chairlift.core.step_plan import NOT_NUMBERS, PromptLogprobs, StepPlan, StepResult, TokenLogprobs
from chairlift.execution.torch_backend.batch import SamplingRows, ScoredTokens, StandingBatch
from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.kv_cache import KVCache
from chairlift.execution.torch_backend.logit_edits import LogitEdit
from chairlift.execution.torch_backend.logprobs import describe_tokens
from chairlift.execution.torch_backend.model_config import ModelConfig
from chairlift.execution.torch_backend.most_likely import MostLikely
from chairlift.execution.torch_backend.sampler import Sampled, is_greedy, sample, sample_greedily
from chairlift.execution.torch_backend.torch_draw import Draw, draw_tokens

logger = logging.getLogger(__name__)

_MAX_LOGITS_BYTES = 128 * 2**20
"""Logits that exist at once; rows behind it are sampled in a second go, with the same outcome."""


class Model(Protocol):
    """What the executor needs of a model."""

    @property
    def config(self) -> ModelConfig:
        """What the model is, in numbers."""
        ...

    def forward(self, batch: ForwardBatch, kv_pages: list[torch.Tensor]) -> torch.Tensor:
        """Write the KV of all rows and return the sampling rows' hidden states [S, E] before the output head."""
        ...

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [S, V] of hidden rows [S, E]."""
        ...

    def most_likely(self, hidden_rows: torch.Tensor) -> MostLikely:
        """Return the most likely token of each hidden row [S, E]; its logits need not be written down."""
        ...


class TorchExecutor:
    """Implements :class:`~chairlift.core.ports.Executor`.

    A row whose logits are not finite ends in ``StepResult.failed_rows`` and hurts nobody else; whatever else goes wrong
    is raised, and the executor's record is then to be refreshed by a snapshot.

    Args:
        model: weights and forward pass.
        kv_cache: the pages' memory.
        batch: an empty record of running requests.
        draw: how tokens are drawn.
        edits: what changes logits before the draw, beside what sampling parameters ask for.
        runs_ahead: run steps in order on a thread of its own, so that the next plan can be made meanwhile; otherwise
            :meth:`submit` computes at once.
        on_close: ends what the model runs on.
    """

    def __init__(  # noqa: PLR0913 - one argument for each part it is made of
        self,
        model: Model,
        kv_cache: KVCache,
        batch: StandingBatch,
        *,
        draw: Draw = draw_tokens,
        edits: Sequence[LogitEdit] = (),
        runs_ahead: bool = False,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._batch = batch
        self._draw = draw
        self._edits = tuple(edits)
        self._on_close = on_close
        self._rows_at_once = max(1, _MAX_LOGITS_BYTES // (4 * model.config.vocab_size))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chairlift-executor") if runs_ahead else None

    def add_edit(self, edit: LogitEdit) -> None:
        """Let one more edit change logits before the draw; before the first step."""
        self._edits = (*self._edits, edit)

    def submit(self, plan: StepPlan) -> Future[StepResult] | StepResult:
        """Start a step behind those already submitted."""
        return self._thread.submit(self._run, plan) if self._thread else self._run(plan)

    def wait(self, handle: Future[StepResult] | StepResult) -> StepResult:
        """Block until the step has run."""
        return handle.result() if isinstance(handle, Future) else handle

    def close(self) -> None:
        """Stop the thread and free the KV pages."""
        if self._thread:
            self._thread.shutdown()
        self._kv_cache.close()
        self._on_close()

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> StepResult:
        started_ns = time.perf_counter_ns()
        self._batch.apply(plan)
        self._kv_cache.reached(plan)
        self._kv_cache.host.copy(plan.swapped_out, plan.swapped_in)
        self._kv_cache.copy_pages(plan.copies)
        batch, read = self._batch.rows(plan)
        rows, scored = read.sampling, read.scored
        hidden = self._model.forward(batch, self._kv_cache.layers)  # [S + scored tokens + pooled rows, E]
        num_pooled = sum(len(one.rows) for one in read.pooled)
        embeddings = self._batch.pools.take(hidden[len(hidden) - num_pooled :], read.pooled) if num_pooled else {}
        hidden = hidden[: len(hidden) - num_pooled]
        sampled = self._sample(hidden[: len(rows.positions)], rows)
        prompt_logprobs = self._score(hidden[len(rows.positions) :], scored) if scored else {}
        self._batch.advance(plan, rows, sampled.token_ids)
        if sampled.failed_rows:
            logger.warning(
                "step %d: no token can be drawn for rows %s: their logits are no numbers, or everything is ruled out",
                plan.step,
                sampled.failed_rows,
            )
        swap_duration_ns = self._kv_cache.host.take_duration_ns()
        return StepResult(
            step=plan.step,
            token_ids=tuple(sampled.token_ids.tolist()),
            duration_ns=time.perf_counter_ns() - started_ns,
            failed_rows=sampled.failed_rows,
            failures=self._failures(sampled, rows) if sampled.failed_rows else {},
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            embeddings=embeddings,
            swap_duration_ns=swap_duration_ns,
        )

    def _failures(self, sampled: Sampled, rows: SamplingRows) -> dict[int, str]:
        """Why rows failed, by request id, as far as it is known."""
        table = self._batch.table
        broken = table.request_ids(set(rows.table_rows[list(sampled.broken_rows)].tolist()))
        return {**table.grammar_failures(), **dict.fromkeys(broken, NOT_NUMBERS)}

    def _sample(self, hidden: torch.Tensor, rows: SamplingRows) -> Sampled:
        parts: list[Sampled] = []
        for start in range(0, len(rows.positions), self._rows_at_once):
            some = slice(start, start + self._rows_at_once)
            parts.append(self._sample_some(hidden[some], rows.part(some)))
        token_ids = np.concatenate([np.empty(0, np.int64), *(part.token_ids for part in parts)])
        starts = [index * self._rows_at_once for index in range(len(parts))]
        failed = [start + row for start, part in zip(starts, parts, strict=True) for row in part.failed_rows]
        broken = [start + row for start, part in zip(starts, parts, strict=True) for row in part.broken_rows]
        logprobs = {
            start + row: found
            for start, part in zip(starts, parts, strict=True)
            for row, found in part.logprobs.items()
        }
        return Sampled(token_ids, tuple(failed), logprobs, tuple(broken))

    def _sample_some(self, hidden: torch.Tensor, rows: SamplingRows) -> Sampled:
        if is_greedy(self._batch.table, rows):
            return sample_greedily(self._model.most_likely(hidden))
        logits = self._model.logits(hidden).cpu()  # [S, V]
        return sample(logits, self._batch.table, rows, self._draw, self._edits)

    def _score(self, hidden: torch.Tensor, scored: Sequence[ScoredTokens]) -> dict[int, PromptLogprobs]:
        token_ids = np.concatenate([tokens.token_ids for tokens in scored])
        num_top = np.repeat([tokens.num_top for tokens in scored], [len(tokens.token_ids) for tokens in scored])
        found: list[TokenLogprobs] = []
        for start in range(0, len(token_ids), self._rows_at_once):
            some = slice(start, start + self._rows_at_once)
            found.extend(describe_tokens(self._model.logits(hidden[some]).cpu(), token_ids[some], num_top[some]))
        result: dict[int, PromptLogprobs] = {}
        start = 0
        for tokens in scored:
            end = start + len(tokens.token_ids)
            result[tokens.request_id] = PromptLogprobs(tokens.start, tuple(found[start:end]))
            start = end
        return result
