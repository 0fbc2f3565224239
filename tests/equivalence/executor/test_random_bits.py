"""Philox against its published vectors, and what is built on it."""

from typing import Any

import numpy as np
import pytest

from chairlift.execution.torch_backend.random_bits import philox, uniforms

# From the known-answer tests of Random123 (Salmon et al., 2011), philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def words(values: list[int]) -> Any:
    return tuple(np.array([value], np.uint64) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert [int(word[0]) for word in philox(words(counter), words(key))] == expected


def test_uniforms_are_below_one_and_differ_by_seed_and_position() -> None:
    seeds = np.repeat(np.array([0, 1, 2**63, 2**64 - 1], np.uint64), 1000)
    positions = np.tile(np.arange(1000), 4)
    numbers = uniforms(seeds, positions)
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(set(numbers.tolist())) == 4000
    assert abs(numbers.mean() - 0.5) < 0.03


def test_a_number_does_not_depend_on_its_neighbours() -> None:
    seeds = np.array([5, 6, 7], np.uint64)
    positions = np.array([10, 20, 30])
    together = uniforms(seeds, positions)
    alone = [uniforms(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(3)]
    assert together.tolist() == alone
