"""Writes down the search for the highest output of a product, and reads what it found.

Knows nothing of how rows are rounded. The operation is that of ``csrc/argmax_tiles.h``.
"""

from typing import NamedTuple

import numpy as np
import torch

from chairlift.execution.torch_backend.kernels_native.buffers import Buffers
from chairlift.execution.torch_backend.kernels_native.operations import OperationList
from chairlift.execution.torch_backend.kernels_native.packing import PackedLinear
from chairlift.execution.torch_backend.kernels_native.products import Product, Rows, write_product
from chairlift.execution.torch_backend.kernels_native.program import Cut
from chairlift.execution.torch_backend.most_likely import MostLikely


class Search(NamedTuple):
    """What was found among each group of panels, once it is computed."""

    values: torch.Tensor  # float32 [groups, T]
    columns: torch.Tensor  # int32 [groups, T]

    def result(self) -> MostLikely:
        """Choose among the groups, the first of equal ones."""
        values, columns = self.values.numpy(), self.columns.numpy()
        group = values.argmax(axis=0)  # [T]; what is not a number comes first
        rows = np.arange(len(group))
        return MostLikely(columns[group, rows].astype(np.int64), values[group, rows])


def write_search(due: OperationList, buffers: Buffers, cut: Cut, rows: Rows, packed: PackedLinear) -> Search:
    """Write down the search for each row's highest output."""
    num_rows, depth = rows.numbers.shape
    _, block_panels = cut.block_sizes(num_rows, depth * rows.numbers.element_size(), packed.num_panels)
    num_groups = -(-packed.num_panels // block_panels)
    search = Search(buffers.empty(num_groups, num_rows), buffers.empty(num_groups, num_rows, dtype=torch.int32))
    operation = packed.operation.replace("linear", "argmax")
    product = Product(operation, packed, packed.num_panels, search.values)
    write_product(due, None, cut, rows, product, search.columns.data_ptr(), packed.num_outputs)
    return search
