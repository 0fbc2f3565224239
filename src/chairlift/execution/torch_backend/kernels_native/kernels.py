"""The CPU's fastest set of kernels: models call it, and it writes down what is to be computed.

Knows nothing of model architectures. Activations are float32. Results are filled in when the list of operations runs:
at :meth:`NativeKernels.finish`, or when nothing but tensors may be read.
"""

from collections.abc import Callable

import torch

from chairlift.execution.torch_backend.forward import ForwardBatch
from chairlift.execution.torch_backend.kernels_cpu.threads import Threads
from chairlift.execution.torch_backend.kernels_native.argmax import write_search
from chairlift.execution.torch_backend.kernels_native.attention_runs import AttentionRuns, make_runs
from chairlift.execution.torch_backend.kernels_native.buffers import Buffers
from chairlift.execution.torch_backend.kernels_native.library import Library
from chairlift.execution.torch_backend.kernels_native.operations import OperationList
from chairlift.execution.torch_backend.kernels_native.packing import PackedLinear, pack_linear
from chairlift.execution.torch_backend.kernels_native.page_layout import KV_TYPES, fits_head_size, kv_type
from chairlift.execution.torch_backend.kernels_native.products import (
    Product,
    Rows,
    rounded_dtype,
    rows_for,
    write_product,
)
from chairlift.execution.torch_backend.kernels_native.program import ROWS_PER_ITEM, Cut, Inputs, Program, Recording
from chairlift.execution.torch_backend.kernels_native.rounding import (
    ATTENTION_ROUNDED,
    MERGE_ROUNDED,
    NOT_ROUNDED,
    Rounding,
)
from chairlift.execution.torch_backend.most_likely import MostLikely, most_likely
from chairlift.execution.torch_backend.number_bits import float_bits
from chairlift.execution.torch_backend.weights.blocks import BLOCK_SIZE, BlockWeight


class _CannotRecord(Exception):
    """A result has to be read before the end."""


class NativeKernels:
    """Implements :class:`~chairlift.execution.torch_backend.kernels.Kernels`.

    What is passed in must live until :meth:`finish`, unless it came from these kernels. Not for use by two threads at
    once.

    Args:
        library: the compiled operations.
        threads: what computes them.
        is_batch_invariant: compute a row the same way whatever else is in its step, even where that is slower.
    """

    def __init__(self, library: Library, threads: Threads, *, is_batch_invariant: bool = True) -> None:
        self.description = f"C++ kernels for {library.instruction_set}"
        self._num_lanes = library.num_lanes
        self._has_tiles = library.has_tiles
        self._cut = Cut.of(threads.num_threads, library.has_tiles, is_batch_invariant)
        self._due = OperationList(library, threads.run)
        self._buffers = Buffers()
        self._runs: dict[int | None, AttentionRuns] = {}
        self._recording: Recording | None = None
        self._rounding = Rounding(self._due)

    def has_tiles(self) -> bool:
        """Whether products are of rows in bfloat16."""
        return self._has_tiles

    kv_dtypes = frozenset(KV_TYPES)
    """Numbers that KV pages may hold."""

    @staticmethod
    def supports(head_size: int) -> bool:
        """Whether attention works with a head size, whatever the instruction set."""
        return fits_head_size(head_size)

    def kv_type(self, dtype: torch.dtype, head_size: int, page_size: int) -> int:
        """``KVType`` of ``csrc/rows.h``: how numbers lie in pages."""
        return kv_type(dtype, head_size, page_size, has_tiles=self._has_tiles)

    def pack_linear(self, weight: torch.Tensor | BlockWeight, bias: torch.Tensor | None = None) -> PackedLinear:
        """Lay weights out the way they are read."""
        return pack_linear(weight, bias, self._num_lanes, has_tiles=self._has_tiles)

    def pack_embedding(
        self, weight: torch.Tensor | BlockWeight, head: PackedLinear | None = None
    ) -> torch.Tensor | PackedLinear:
        """Keep the table ``[V, E]`` for :meth:`embed`; a tied head's own panels where they can be read by row."""
        if isinstance(weight, torch.Tensor):
            return weight.float().contiguous()
        if head is not None and head.operation == "linear_byte":
            return head
        return pack_linear(weight, None, self._num_lanes) if weight.minimums is None else weight.dequantized()

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor | PackedLinear) -> torch.Tensor:
        """``[T] -> [T, E]``."""
        num_rows = len(token_ids)
        if isinstance(table, torch.Tensor):
            return self.take_rows(table, token_ids)
        out = self._buffers.empty(num_rows, table.depth)
        self._add_rows(
            "embed",
            (num_rows, 1, 3),
            token_ids.data_ptr(),
            table.panels.ctypes.data,
            out.data_ptr(),
            num_rows,
            table.depth,
        )
        return out

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``x[rows]``."""
        out = self._buffers.empty(len(rows), x.shape[1])
        self._add_rows(
            "take", (len(rows), 1, 3), x.data_ptr(), rows.data_ptr(), out.data_ptr(), len(rows), x.shape[1], x.stride(0)
        )
        return out

    def linear(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """``[T, in] -> [T, out]``."""
        y = self._buffers.empty(len(x), packed.num_panels * packed.panel_width)  # [T, N padded]
        self._multiply(packed.operation, x, packed, packed.num_panels, y)
        if y.shape[1] == packed.num_outputs:
            return y
        if self._recording is not None:
            raise _CannotRecord
        self.finish()
        outputs = y[:, : packed.num_outputs].contiguous()
        self._due.keep(outputs)  # memory that is not of these kernels must live until it has been read
        return outputs

    def gated_mlp(self, x: torch.Tensor, gate_up: PackedLinear, down: PackedLinear) -> torch.Tensor:
        """``[T, E] -> [T, E]``: ``down(silu(first half) * second half)`` of the product with ``gate_up``."""
        width = gate_up.num_outputs // 2
        in_tiles = self._has_tiles and "linear_float" not in (gate_up.operation, down.operation)
        if not in_tiles or width % gate_up.panel_width:
            return self.linear(self.silu_mul(self.linear(x, gate_up)), down)
        gated = self._buffers.rows_of_tiles(len(x), width)  # as the next product takes it
        operation = gate_up.operation.replace("linear", "gated")
        self._multiply(operation, x, gate_up, width // gate_up.panel_width, gated)
        return self.linear(gated, down)

    def _multiply(
        self, operation: str, x: torch.Tensor, packed: PackedLinear, num_panels: int, y: torch.Tensor
    ) -> None:
        if len(x):
            product = Product(operation, packed, num_panels, y)
            write_product(self._due, self._recording, self._cut, self._rows(x, packed), product)

    def _rows(self, x: torch.Tensor, packed: PackedLinear) -> Rows:
        if packed.operation == "linear_float" or x.dtype != torch.float32:
            return Rows(x, 0, 0)
        return self._round(x, rounded_dtype(packed, has_tiles=self._has_tiles))

    def argmax(self, x: torch.Tensor, packed: PackedLinear) -> MostLikely:
        """``[T, in] -> [T]``."""
        if not self._has_tiles or packed.operation == "linear_float" or not len(x):
            outputs = self.linear(x, packed)
            self.finish()
            return most_likely(outputs)
        search = write_search(self._due, self._buffers, self._cut, self._rows(x, packed), packed)
        self.finish()
        return search.result()

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm over the last axis."""
        return self._normalize(x, 0, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``residual += x`` in place; return ``rms_norm(residual)``."""
        return self._normalize(x, residual.data_ptr(), weight, eps)

    def rope_and_write_kv(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        kv: torch.Tensor,
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the pages."""
        num_rows, num_heads, head_size = q.shape
        self._add_rows(
            "rotate",
            (num_rows, 1, 11),
            *(heads.data_ptr() for heads in (q, k, v)),
            *(heads.stride(0) for heads in (q, k, v)),
            *(table.data_ptr() for table in cos_sin),
            batch.positions.data_ptr(),
            batch.kv_slots.data_ptr(),
            kv.data_ptr(),
            num_rows,
            num_heads,
            k.shape[1],
            head_size,
            kv.shape[3],
            kv.stride(0) * kv.element_size(),
            self.kv_type(kv.dtype, head_size, kv.shape[3]),
            self._cut.num_threads,
        )

    def attention(
        self, q: torch.Tensor, kv: torch.Tensor, batch: ForwardBatch, scale: float, window: int | None
    ) -> torch.Tensor:
        """Causal attention of every row over its request's pages."""
        num_rows, num_heads, head_size = q.shape
        _, _, num_kv_heads, page_size, _ = kv.shape
        group = num_heads // num_kv_heads
        runs = self._runs.get(window)
        if runs is None or runs.batch is not batch:
            heads, num_threads = (group, num_kv_heads, head_size), self._cut.attention_threads
            self._runs[window] = runs = make_runs(batch, heads, page_size, window, num_threads=num_threads)
        out = self._buffers.empty(num_rows, num_heads * head_size)  # [T, H * d]
        partials = self._buffers.empty(runs.num_partials)
        self._due.keep(runs)
        if self._recording is not None:
            self._recording.attention_operations[window].append(self._due.count)
        item_heads = runs.item_heads(self._cut.num_threads, num_kv_heads)
        self._due.add(
            "attention",
            len(runs.runs) * num_kv_heads // item_heads,
            runs.runs.ctypes.data,
            q.data_ptr(),
            out.data_ptr(),
            partials.data_ptr(),
            kv.data_ptr(),
            q.stride(0),
            out.stride(0),
            num_kv_heads,
            group,
            head_size,
            page_size,
            kv.stride(0) * kv.element_size(),
            self.kv_type(kv.dtype, head_size, page_size),
            window or 0,
            float_bits(scale),
            *NOT_ROUNDED,
            num_rows,
            item_heads,
        )
        merges = len(runs.merges) > 0 or self._recording is not None
        if merges:
            if self._recording is not None:
                # How many items there are follows from the runs, and is filled in after the rows.
                self._recording.row_operations[num_rows, 1, ATTENTION_ROUNDED + 4].append(self._due.count - 1)
                self._recording.row_operations[num_rows, 1, MERGE_ROUNDED + 4].append(self._due.count)
            self._due.add(
                "merge",
                len(runs.merges) * num_kv_heads,
                runs.merges.ctypes.data,
                partials.data_ptr(),
                out.data_ptr(),
                out.stride(0),
                num_kv_heads,
                group,
                head_size,
                *NOT_ROUNDED,
                num_rows,
            )
        if head_size % BLOCK_SIZE == 0:
            self._rounding.may_round(out, ATTENTION_ROUNDED, *((MERGE_ROUNDED,) if merges else ()), kept=(q, partials))
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``[T, 2 * I] -> [T, I]``: ``silu(first half) * second half``."""
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = self._buffers.empty(num_rows, width)
        self._add_rows("silu_mul", (num_rows, 1, 2), gate_up.data_ptr(), out.data_ptr(), num_rows, width, *NOT_ROUNDED)
        self._rounding.may_round(out, 4, kept=(gate_up,))
        return out

    def finish(self) -> None:
        """Compute everything that was written down."""
        self._rounding.forget()
        if self._recording is None:
            self._due.run()

    def record(self, forward: Callable[[ForwardBatch], torch.Tensor], num_rows: int) -> Program | None:
        """Write down what ``forward`` computes for up to so many rows, without computing it.

        Returns ``None`` if that cannot be done: outputs that do not fill whole panels are copied on the way.
        """
        inputs = Inputs.of(num_rows)
        self._recording = recording = Recording()
        self._rounding.forget()
        # Memory of its own: what a program writes to belongs to nobody else, not even between its runs.
        usual_buffers, self._buffers = self._buffers, Buffers()
        try:
            output = forward(inputs.as_batch())
        except _CannotRecord:
            self._due.take()
            return None
        finally:
            self._recording = None
            self._rounding.forget()
            self._runs.clear()
            buffers, self._buffers = self._buffers, usual_buffers
        return Program(self._due.take(), recording, inputs, output, buffers, self._cut)

    def run(self, program: Program, batch: ForwardBatch, heads: tuple[int, int, int], page_size: int) -> torch.Tensor:
        """Compute a step with a program that :meth:`record` returned and that it fits; see :meth:`Program.prepare`.

        Returns the sampling rows' hidden states.
        """
        _kept = program.prepare(batch, heads, page_size, self._buffers)
        self._due.run_these(program.operations, len(program.operations.fields))
        return program.output(0 if batch.sample_rows is None else len(batch.sample_rows))

    def _normalize(self, x: torch.Tensor, residual_address: int, weight: torch.Tensor, eps: float) -> torch.Tensor:
        width, group = x.shape[-1], 1 if x.ndim == 2 else x.shape[1]  # rows, or heads of each row
        num_rows = x.numel() // width
        out = self._buffers.empty(*x.shape)
        self._add_rows(
            "norm",
            (len(x), group, 6),
            x.data_ptr(),
            x.stride(0),
            group,
            residual_address,
            weight.data_ptr(),
            out.data_ptr(),
            num_rows,
            width,
            float_bits(eps),
            *NOT_ROUNDED,
        )
        if group == 1:
            self._rounding.may_round(out, 9, kept=(x,))
        return out

    def _round(self, x: torch.Tensor, dtype: torch.dtype) -> Rows:
        """Write down the rounding."""
        rows, place = rows_for(self._buffers, x, dtype)
        if not self._rounding.round_on_the_way(x, place):
            self._add_rows("round", (len(x), 1, 2), x.data_ptr(), x.stride(0), *x.shape, *place)
        return rows

    def _add_rows(self, name: str, rows: tuple[int, int, int], *arguments: int) -> None:
        """Write down an operation on rows: how many, how many of its own in each, which argument holds the product."""
        if self._recording is not None:
            self._recording.row_operations[rows].append(self._due.count)
        self._due.add(name, -(-rows[0] * rows[1] // ROWS_PER_ITEM), *arguments)
