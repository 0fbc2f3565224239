"""Which seed each choice of a request runs with.

Knows nothing of sampling: executors draw the numbers, keyed by seed and position.
"""

import random

_MASK = 2**64 - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


class SeedSource:
    """Draws seeds for requests that bring none, repeatably for one ``--seed`` and order of arrival."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choice_seeds(self, seed: int | None, num_choices: int) -> list[int]:
        """Return one seed in [0, 2**64) per choice.

        The first choice runs with the request's own seed, so that ``n`` does not change it; the others follow from it.
        """
        first = self._random.getrandbits(64) if seed is None else seed & _MASK
        return [first if index == 0 else _mix(first + index * _GOLDEN_GAMMA) for index in range(num_choices)]


def _mix(value: int) -> int:
    """Scramble 64 bits (the output function of SplitMix64), so that neighbouring inputs share nothing."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
