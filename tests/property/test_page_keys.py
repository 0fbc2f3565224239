"""Page keys that are recalled are those that would be made, whatever was named before."""

from array import array

import hypothesis.strategies as st
from hypothesis import example, given

from chairlift.core.page_keys import DigestKeyer

PAGE_SIZE = 2
BLOCK = 32
"""Pages of a block of equal tokens; two of them are a run."""
PATHS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 3, BLOCK])), min_size=0, max_size=6)


def tokens_of(path: list[tuple[int, int]]) -> list[int]:
    return [token for token, num_pages in path for _ in range(num_pages * PAGE_SIZE)]


@given(st.lists(st.tuples(PATHS, st.integers(1, 70)), max_size=4), PATHS, st.integers(0, BLOCK))
@example([([(0, BLOCK), (1, BLOCK)], 1), ([(0, BLOCK), (1, BLOCK), (2, 1)], 1)], [(0, BLOCK), (1, BLOCK), (2, 1)], 0)
def test_what_is_recalled_is_what_would_be_made(named, path, num_more):
    keyer = DigestKeyer()
    root = keyer.root(None, None)
    tokens = tokens_of(path) + list(range(1000, 1000 + num_more))
    expected = DigestKeyer().extend(root, tokens, PAGE_SIZE)
    num_known = 0
    for others, step in named:
        name_in_steps(keyer, root, tokens_of(others), step)
        recalled = keyer.recall(root, tokens, PAGE_SIZE)
        assert recalled == expected[: len(recalled)]
        assert len(recalled) >= num_known, "nothing is forgotten while there is room"
        num_known = len(recalled)
    assert keyer.extend(root, tokens, PAGE_SIZE) == expected
    for same in (tokens, array("I", tokens), memoryview(array("I", tokens))):
        assert keyer.recall(root, same, PAGE_SIZE) == expected


@given(PATHS, PATHS, st.integers(1, 70))
def test_all_pages_in_common_are_recalled_however_they_were_named(named, path, step):
    keyer = DigestKeyer()
    root = keyer.root(None, None)
    name_in_steps(keyer, root, tokens_of(named), step)
    recalled = keyer.recall(root, tokens_of(path), PAGE_SIZE)
    assert len(recalled) == common_pages(tokens_of(named), tokens_of(path))


def name_in_steps(keyer, root, tokens, step):
    """Name pages as a prompt that is computed in chunks does."""
    parent = root
    for start in range(0, len(tokens) // PAGE_SIZE, step):
        part = tokens[start * PAGE_SIZE : (start + step) * PAGE_SIZE]
        parent = keyer.extend(parent, part, PAGE_SIZE)[-1]


@given(st.lists(st.tuples(PATHS, st.integers(1, 70)), max_size=12), st.integers(1, 100))
def test_what_was_forgotten_is_made_again(named, limit):
    keyer, fresh = DigestKeyer(max_remembered_pages=limit), DigestKeyer()
    root = keyer.root(None, None)
    for path, step in named:
        tokens = tokens_of(path)
        expected = fresh.extend(root, tokens, PAGE_SIZE)
        recalled = keyer.recall(root, tokens, PAGE_SIZE)
        assert recalled == expected[: len(recalled)]
        name_in_steps(keyer, root, tokens, step)
        assert keyer.extend(root, tokens, PAGE_SIZE) == expected


def test_what_nobody_asked_for_is_forgotten_first():
    keyer = DigestKeyer(max_remembered_pages=8)
    root = keyer.root(None, None)
    first, second, third = ([token] * 4 * PAGE_SIZE for token in range(3))
    keyer.extend(root, first, PAGE_SIZE)
    keyer.extend(root, second, PAGE_SIZE)
    assert len(keyer.recall(root, first, PAGE_SIZE)) == 4
    keyer.extend(root, third, PAGE_SIZE)
    assert [len(keyer.recall(root, tokens, PAGE_SIZE)) for tokens in (first, second, third)] == [4, 0, 4]


def test_nothing_is_recalled_below_another_parent():
    keyer = DigestKeyer()
    tokens = tokens_of([(0, BLOCK), (1, BLOCK)])
    keyer.extend(keyer.root(None, None), tokens, PAGE_SIZE)
    assert keyer.recall(keyer.root("salt", None), tokens, PAGE_SIZE) == []


def common_pages(tokens: list[int], others: list[int]) -> int:
    num_equal = 0
    while num_equal < min(len(tokens), len(others)) and tokens[num_equal] == others[num_equal]:
        num_equal += 1
    return num_equal // PAGE_SIZE
