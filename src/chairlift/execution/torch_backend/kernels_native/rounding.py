"""Results that the operations which make them could round for the product that follows.

Knows nothing of what operations compute: some have arguments that say whether to round their result, and where to.
"""

from typing import NamedTuple

import torch

from chairlift.execution.torch_backend.kernels_native.operations import OperationList

NOT_ROUNDED = (0, 0, 0, 0)
"""Kind, numbers, scales and sums, as in ``Rounded`` of ``csrc/rows.h``: nowhere."""
ATTENTION_ROUNDED, MERGE_ROUNDED = 15, 7
"""Arguments that say where attention rounds to; the number of rows comes behind them."""


class _Roundable(NamedTuple):
    num_operations: int
    """That were written down so far."""
    address: int
    """Of the result."""
    places: tuple[tuple[int, int], ...]
    """Operations, and the argument of each that says where to round to."""
    kept: tuple[torch.Tensor, ...]
    """What these operations use: the memory of the rounded result must be another."""


class Rounding:
    """Remembers whether what was written down last could round its result, and has it do so.

    Args:
        due: where operations are written down.
    """

    def __init__(self, due: OperationList) -> None:
        self._due = due
        self._last: _Roundable | None = None

    def may_round(self, out: torch.Tensor, *arguments: int, kept: tuple[torch.Tensor, ...]) -> None:
        """The last operations, one for each argument, could round their result ``out``, made from what is kept."""
        count = self._due.count
        places = tuple(enumerate(arguments, start=count - len(arguments)))
        self._last = _Roundable(count, out.data_ptr(), places, kept)

    def round_on_the_way(self, x: torch.Tensor, place: tuple[int, int, int, int]) -> bool:
        """Have ``x`` rounded to a place by what makes it, and return whether that is possible."""
        if self._last is None or self._last[:2] != (self._due.count, x.data_ptr()):
            return False
        for index, argument in self._last.places:
            self._due.amend(index, argument, *place)
        return True

    def forget(self) -> None:
        """What was written down is computed, or is to be computed by something else."""
        self._last = None
