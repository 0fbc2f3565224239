"""A model's forward pass, written down once and computed step after step with other numbers of rows.

Knows nothing of models. A model's Python code runs once, over tensors of as many rows as a step may have; what was
written down then differs between steps in few places, and those are filled in before each run:

- the number of rows, everywhere, and what follows from it: items, and blocks of products;
- the inputs of the step, which are copied to where the program reads them;
- the attention's runs, where they lie and how many they are.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.execution.torch_backend.forward import ForwardBatch, PrefillRows
from chairlift.execution.torch_backend.kernels_native.attention_runs import AttentionRuns, make_runs
from chairlift.execution.torch_backend.kernels_native.buffers import Buffers
from chairlift.execution.torch_backend.kernels_native.operations import (
    COUNTER_FIELDS,
    FIRST_ARGUMENT,
    ITEMS_FIELD,
    Operations,
)

Places = NDArray[np.int64]

ROWS_PER_ITEM = 4
"""Rows that operations on single rows take at once."""
_ITEMS_PER_THREAD = 8
_FEW_ROWS_ITEMS_PER_THREAD = 3
_FEW_ROWS = 8
_PAIR = 2
"""Panels that are computed together where there are many rows."""


class LinearShape(NamedTuple):
    """What decides how a product is cut, beside its rows."""

    row_bytes: int
    num_panels: int


@dataclass(slots=True)
class Recording:
    """Which fields of the operations written down so far follow from what; indices of operations, in order."""

    row_operations: defaultdict[tuple[int, int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """By number of rows while recording, rows per row, and argument that holds their number."""
    linear_operations: defaultdict[tuple[int, LinearShape], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By number of rows while recording, and shape."""
    attention_operations: defaultdict[int | None, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By window; each is followed by its merge."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where a program reads a step's inputs."""

    token_ids: torch.Tensor  # int64 [capacity]
    positions: torch.Tensor
    kv_slots: torch.Tensor
    sample_rows: torch.Tensor

    @classmethod
    def of(cls, num_rows: int) -> "Inputs":
        """Make room for so many rows, and one sampling row more: a recording tells the two apart by their number."""
        sizes = (num_rows, num_rows, num_rows, num_rows + 1)
        return cls(*(torch.zeros(size, dtype=torch.int64) for size in sizes))

    def as_batch(self) -> ForwardBatch:
        """Return a step of one long prompt over these inputs, to write the program with."""
        num_rows = len(self.token_ids)
        return ForwardBatch(
            token_ids=self.token_ids,
            positions=self.positions,
            kv_slots=self.kv_slots,
            num_decodes=0,
            decode_page_tables=torch.zeros((0, 0), dtype=torch.int32),
            decode_context_lengths=torch.zeros(0, dtype=torch.int32),
            prefills=[PrefillRows(0, num_rows, num_rows, torch.zeros(num_rows, dtype=torch.int64))],
            sample_rows=self.sample_rows,
        )

    def fill(self, batch: ForwardBatch, sample_rows: torch.Tensor) -> None:
        """Copy a step's inputs."""
        num_rows = len(batch.token_ids)
        self.token_ids[:num_rows] = batch.token_ids
        self.positions[:num_rows] = batch.positions
        self.kv_slots[:num_rows] = batch.kv_slots
        self.sample_rows[: len(sample_rows)] = sample_rows


@dataclass(frozen=True, slots=True)
class Cut:
    """How a step is cut into items for so many threads."""

    num_threads: int
    tile_rows: int
    """That are computed together."""
    cached_bytes: int
    """Of rows that stay in the second-level cache while panels pass by."""
    few_rows: int = 0
    """Up to so many are multiplied with four bits as in ``csrc/linear_few.h``, and come out otherwise in last bits."""
    is_batch_invariant: bool = True
    """Whether attention to a row is computed the same way whatever else is in its step."""

    @classmethod
    def of(cls, num_threads: int, has_tiles: bool, is_batch_invariant: bool) -> "Cut":
        """Return the cut for the kernels of ``csrc/linear_tiles.h`` or ``csrc/linear.h``."""
        if not has_tiles:
            return cls(num_threads, 6, 128 * 1024, is_batch_invariant=is_batch_invariant)
        # Weights become bfloat16 once for all rows of an item; processors that have tiles have larger caches, too.
        few_rows = 0 if is_batch_invariant else _FEW_ROWS
        return cls(num_threads, 32, 768 * 1024, few_rows, is_batch_invariant)

    @property
    def attention_threads(self) -> int | None:
        """For :func:`make_runs`."""
        return None if self.is_batch_invariant else self.num_threads

    def block_sizes(self, num_rows: int, row_bytes: int, num_panels: int) -> tuple[int, int]:
        """Return how many rows and how many panels an item takes."""
        most_rows = max(self.tile_rows, self.cached_bytes // row_bytes // self.tile_rows * self.tile_rows)
        num_blocks = -(-num_rows // most_rows)
        even_share = -(-num_rows // num_blocks)
        rows = -(-even_share // self.tile_rows) * self.tile_rows
        # Each item of few rows rounds them for itself.
        items_per_thread = _FEW_ROWS_ITEMS_PER_THREAD if num_rows <= self.few_rows else _ITEMS_PER_THREAD
        panels = num_panels * num_blocks // (self.num_threads * items_per_thread)
        panels = max(1, panels if panels < _PAIR else panels // _PAIR * _PAIR)
        return rows, min(panels, num_panels)


class Program:
    """Operations of a whole forward pass for up to ``capacity`` rows.

    Args:
        operations: what was written down.
        recording: which fields follow from what.
        inputs: what the operations read.
        output: hidden states of the sampling rows, ``[sampling rows while recording, E]``.
        buffers: the memory of all results in between.
        cut: how products are cut into items.
    """

    def __init__(
        self,
        operations: Operations,
        recording: Recording,
        inputs: Inputs,
        output: torch.Tensor,
        buffers: Buffers,
        cut: Cut,
    ) -> None:
        self.operations = operations
        self.inputs = inputs
        self.capacity = len(inputs.token_ids)
        self.windows = list(recording.attention_operations)
        self._output = output
        self._buffers = buffers
        self._cut = cut
        self._row_operations = [(*key, np.array(places)) for key, places in recording.row_operations.items()]
        self._linear_operations = [(*key, np.array(places)) for key, places in recording.linear_operations.items()]
        self._attention_operations = {
            window: np.array(places) for window, places in recording.attention_operations.items()
        }
        self._last_rows: tuple[int, int] | None = None

    def fits(self, num_rows: int) -> bool:
        """Whether a step is small enough."""
        return 0 < num_rows <= self.capacity

    def set_step(self, batch: ForwardBatch, sample_rows: torch.Tensor) -> None:
        """Fill in a step's inputs and everything that follows from its number of rows."""
        fields = self.operations.fields
        fields[:, COUNTER_FIELDS] = 0
        self.inputs.fill(batch, sample_rows)
        counts = (len(batch.token_ids), len(sample_rows))
        if counts == self._last_rows:
            return
        self._last_rows = counts
        actual = {self.capacity: counts[0], self.capacity + 1: counts[1]}
        for recorded, factor, argument, places in self._row_operations:
            num_rows = actual[recorded] * factor
            fields[places, FIRST_ARGUMENT + argument] = num_rows
            fields[places, ITEMS_FIELD] = -(-num_rows // ROWS_PER_ITEM)
        for recorded, shape, places in self._linear_operations:
            num_rows = actual[recorded]
            block_rows, block_panels = self._cut.block_sizes(max(1, num_rows), *shape)
            fields[places, FIRST_ARGUMENT + 7] = num_rows
            fields[places, FIRST_ARGUMENT + 10] = block_rows
            fields[places, FIRST_ARGUMENT + 11] = block_panels
            fields[places, ITEMS_FIELD] = -(-num_rows // block_rows) * -(-shape.num_panels // block_panels)

    def set_runs(self, window: int | None, runs: AttentionRuns, partials_address: int, num_kv_heads: int) -> None:
        """Fill in what attention with a window reads; ``runs`` must live until the program has run."""
        fields = self.operations.fields
        places = self._attention_operations[window]
        fields[places, FIRST_ARGUMENT] = runs.runs.ctypes.data
        fields[places, FIRST_ARGUMENT + 3] = partials_address
        item_heads = runs.item_heads(self._cut.num_threads, num_kv_heads)
        fields[places, FIRST_ARGUMENT + 20] = item_heads
        fields[places, ITEMS_FIELD] = len(runs.runs) * num_kv_heads // item_heads
        fields[places + 1, FIRST_ARGUMENT] = runs.merges.ctypes.data
        fields[places + 1, FIRST_ARGUMENT + 1] = partials_address
        fields[places + 1, ITEMS_FIELD] = len(runs.merges) * num_kv_heads

    def prepare(
        self, batch: ForwardBatch, heads: tuple[int, int, int], page_size: int, buffers: Buffers
    ) -> list[object]:
        """Fill in a step; what is returned must live until the program has run.

        Args:
            batch: the step, with its sampling rows.
            heads: query heads per key-value head, key-value heads, head size.
            page_size: token slots of a page.
            buffers: memory for parts of results.
        """
        assert batch.sample_rows is not None  # noqa: S101 - executors name the rows
        self.set_step(batch, batch.sample_rows)
        kept: list[object] = []
        for window in self.windows:
            runs = make_runs(batch, heads, page_size, window, num_threads=self._cut.attention_threads)
            partials = buffers.empty(runs.num_partials)
            self.set_runs(window, runs, partials.data_ptr(), heads[1])
            kept += (runs, partials)
        return kept

    def output(self, num_sampled: int) -> torch.Tensor:
        """Hidden states of the sampling rows; overwritten by the next run."""
        return self._output[:num_sampled]
