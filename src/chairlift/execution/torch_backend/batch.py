"""Plans in, tensors out: the executor's standing batch, updated by each plan's delta.

Knows nothing of weights or of how tokens are chosen. Each step gathers its decode rows from the request table with a
few array operations, however many there are; only prefill chunks are visited one by one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.core.step_plan import Chunk, StepPlan
from chairlift.errors import InvariantError
from chairlift.execution.torch_backend.forward import ForwardBatch, PrefillRows
from chairlift.execution.torch_backend.pooling import PooledRows, RunningPools
from chairlift.execution.torch_backend.request_table import NO_LOGPROBS, POOLINGS, RequestTable


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The rows of a step that yield a token, in the order of the step's result."""

    table_rows: NDArray[np.int64]  # [S], rows of the request table
    positions: NDArray[np.int64]  # [S], index in its request of the token to be sampled
    step_rows: torch.Tensor  # int64 [S], the rows' places in the step, on the model's device

    def part(self, rows: slice) -> "SamplingRows":
        """Return some of the rows."""
        return SamplingRows(self.table_rows[rows], self.positions[rows], self.step_rows[rows])


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Tokens of one prompt whose log-probabilities the step tells: those that follow some rows of its chunk."""

    request_id: int
    start: int
    """Index of the first of them in the prompt."""
    token_ids: NDArray[np.int64]
    num_top: int


@dataclass(frozen=True, slots=True)
class ReadRows:
    """What a step's ``sample_rows`` are for, in this order: the sampling rows, one row for each scored token, and the
    rows that vectors are made of.
    """

    sampling: SamplingRows
    scored: list[ScoredTokens]
    pooled: list[PooledRows]


class StandingBatch:
    """The requests an executor knows and which of them decode; semantics as in ``PlanState``.

    Args:
        max_num_seqs: requests expected to run at once.
        max_model_len: tokens of one request at most; rows behind it (a static group's padding, a finished request's
            last step in flight) are rotated as if they were the last one, since nobody reads what they yield.
        page_size: token slots of a page.
        device: where the tensors go.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, page_size: int, device: torch.device) -> None:
        self.table = RequestTable(max_num_seqs, max_model_len, page_size)
        self.pools = RunningPools()
        self._max_position = max_model_len - 1
        self._device = device
        self._epoch: int | None = None
        self._decodes: dict[int, None] = {}
        self._decode_rows: NDArray[np.int64] = np.empty(0, np.int64)

    def apply(self, plan: StepPlan) -> None:
        """Bring the record up to this plan; plans come in step order."""
        if plan.epoch != self._epoch:
            self.table.clear()
            self.pools.clear()
            self._decodes.clear()
            self._epoch = plan.epoch
        self.pools.forget(plan.ended)
        for request_id in plan.ended:
            self.table.remove(request_id)
            self._decodes.pop(request_id, None)
        for request_id in plan.decodes_left:
            del self._decodes[request_id]
        for new in plan.new:
            self.table.add(new)
        for growth in plan.grown:
            self.table.extend_pages(growth.request_id, growth.pages)
        for request_id in plan.decodes_joined:
            self._decodes[request_id] = None
        # A new request may reuse the row of one that ended, so rows are looked up again after any change.
        if plan.ended or plan.decodes_left or plan.decodes_joined or plan.new or not self._decodes:
            self._decode_rows = np.fromiter(map(self.table.row, self._decodes), np.int64, len(self._decodes))
        if len(self._decodes) != plan.num_decodes:
            raise InvariantError(f"step {plan.step} has {plan.num_decodes} decodes, but {len(self._decodes)} stand")

    def rows(self, plan: StepPlan) -> tuple[ForwardBatch, ReadRows]:
        """Make the tensors of the step whose plan was just applied, and say what its ``sample_rows`` are for."""
        num_decodes = len(self._decode_rows)
        num_tokens = num_decodes + sum(chunk.length + chunk.padding for chunk in plan.chunks)
        token_ids = np.zeros(num_tokens, np.int64)
        positions = np.empty(num_tokens, np.int64)
        kv_slots = np.empty(num_tokens, np.int64)
        decode_positions = self.table.num_computed[self._decode_rows]  # [D]
        token_ids[:num_decodes] = self.table.token_ids[self._decode_rows, decode_positions]
        positions[:num_decodes] = decode_positions
        kv_slots[:num_decodes] = self.table.kv_slots(self._decode_rows, decode_positions)
        prefills: list[PrefillRows] = []
        row_start = num_decodes
        for chunk in plan.chunks:
            table_row = self.table.row(chunk.request_id)
            end = row_start + chunk.length + chunk.padding
            token_ids[row_start : row_start + chunk.length] = self._chunk_tokens(table_row, chunk)
            positions[row_start:end] = np.arange(chunk.start, chunk.start + end - row_start)
            kv_slots[row_start:end] = self.table.kv_slots(table_row, positions[row_start:end])
            prefills.append(self._prefill_rows(table_row, chunk, row_start))
            row_start = end
        sampling_rows = self._sampling_rows(plan, prefills, decode_positions)
        scored, scoring_rows = self._scored_tokens(plan, prefills)
        pooled = self._pooled_rows(plan, prefills)
        read = [sampling_rows.step_rows, scoring_rows] if scored else [sampling_rows.step_rows]
        read.extend(torch.arange(one.rows.start, one.rows.stop, device=self._device) for one in pooled)
        batch = ForwardBatch(
            token_ids=self._tensor(token_ids),
            positions=self._tensor(np.minimum(positions, self._max_position)),
            kv_slots=self._tensor(kv_slots),
            num_decodes=num_decodes,
            decode_page_tables=self._tensor(self._decode_page_tables(decode_positions)),
            decode_context_lengths=self._tensor((decode_positions + 1).astype(np.int32)),
            prefills=prefills,
            sample_rows=torch.cat(read) if len(read) > 1 else sampling_rows.step_rows,
        )
        return batch, ReadRows(sampling_rows, scored, pooled)

    def advance(self, plan: StepPlan, sampling_rows: SamplingRows, token_ids: NDArray[np.int64]) -> None:
        """Record that the step ran and what it sampled."""
        self.table.num_computed[self._decode_rows] += 1
        for chunk in plan.chunks:
            self.table.num_computed[self.table.row(chunk.request_id)] = chunk.start + chunk.length
        if len(token_ids):
            self.table.reserve_tokens(int(sampling_rows.positions.max()) + 1)
            self.table.token_ids[sampling_rows.table_rows, sampling_rows.positions] = token_ids

    def _chunk_tokens(self, table_row: int, chunk: Chunk) -> NDArray[np.int32]:
        return self.table.token_ids[table_row, chunk.start : chunk.start + chunk.length]

    def _prefill_rows(self, table_row: int, chunk: Chunk, row_start: int) -> PrefillRows:
        length = chunk.length + chunk.padding
        context_length = chunk.start + length
        num_pages = -(-context_length // self.table.page_size)
        pages = self.table.page_table[table_row, :num_pages].astype(np.int64)
        return PrefillRows(row_start, length, context_length, self._tensor(pages))

    def _sampling_rows(
        self, plan: StepPlan, prefills: list[PrefillRows], decode_positions: NDArray[np.int64]
    ) -> SamplingRows:
        pairs = [(chunk, rows) for chunk, rows in zip(plan.chunks, prefills, strict=True) if chunk.samples]
        table_rows = [self.table.row(chunk.request_id) for chunk, _ in pairs]
        positions = [chunk.start + chunk.length for chunk, _ in pairs]
        places = [rows.row_start + chunk.length - 1 for chunk, rows in pairs]
        return SamplingRows(
            np.concatenate((self._decode_rows, np.array(table_rows, np.int64))),
            np.concatenate((decode_positions + 1, np.array(positions, np.int64))),
            self._tensor(np.concatenate((np.arange(len(self._decode_rows)), np.array(places, np.int64)))),
        )

    def _scored_tokens(self, plan: StepPlan, prefills: list[PrefillRows]) -> tuple[list[ScoredTokens], torch.Tensor]:
        scored: list[ScoredTokens] = []
        rows: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        for chunk, prefill in zip(plan.chunks, prefills, strict=True):
            table_row = self.table.row(chunk.request_id)
            columns = self.table.sampling[table_row]
            # The row at position q says what the model makes of the token at q + 1.
            end = min(chunk.start + chunk.length, int(columns["num_prompt_tokens"]) - 1)
            if columns["prompt_logprobs"] == NO_LOGPROBS or end <= chunk.start:
                continue
            token_ids = self.table.token_ids[table_row, chunk.start + 1 : end + 1].astype(np.int64)
            scored.append(ScoredTokens(chunk.request_id, chunk.start + 1, token_ids, int(columns["prompt_logprobs"])))
            rows.append(np.arange(prefill.row_start, prefill.row_start + len(token_ids)))
        return scored, self._tensor(np.concatenate(rows))

    def _pooled_rows(self, plan: StepPlan, prefills: list[PrefillRows]) -> list[PooledRows]:
        found: list[PooledRows] = []
        for chunk, prefill in zip(plan.chunks, prefills, strict=True):
            columns = self.table.sampling[self.table.row(chunk.request_id)]
            pooling = POOLINGS[columns["pooling"]]
            num_prompt_tokens = int(columns["num_prompt_tokens"])
            is_last = chunk.start + chunk.length == num_prompt_tokens
            if pooling is None or (pooling == "last" and not is_last):
                continue
            end = prefill.row_start + chunk.length  # padding rows come behind
            rows = range(end - 1 if pooling == "last" else prefill.row_start, end)
            found.append(
                PooledRows(
                    chunk.request_id, pooling, rows, num_prompt_tokens, is_first=chunk.start == 0, is_last=is_last
                )
            )
        return found

    def _decode_page_tables(self, decode_positions: NDArray[np.int64]) -> NDArray[np.int32]:
        longest = int(decode_positions.max(initial=-1)) + 1
        num_pages = -(-longest // self.table.page_size)
        return self.table.page_table[self._decode_rows, :num_pages]

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
