"""Page keys that are recalled are those that would be made, whatever was named before."""

import hypothesis.strategies as st
from hypothesis import example, given

from chairlift.core.page_keys import DigestKeyer

PAGE_SIZE = 2
BLOCK = 32
"""Tokens of a short run of pages; four of them are a long one."""
BLOCKS = st.lists(st.integers(0, 2), min_size=0, max_size=9)


def tokens_of(blocks: list[int]) -> list[int]:
    return [block * BLOCK + index for block in blocks for index in range(BLOCK)]


@given(st.lists(BLOCKS, max_size=4), BLOCKS, st.integers(0, BLOCK - 1))
@example([[0, 1], [0, 1, 2, 0, 1]], [0, 1, 2, 0, 1], 0)
def test_what_is_recalled_is_what_would_be_made(named, blocks, num_more):
    keyer, fresh = DigestKeyer(), DigestKeyer()
    root = keyer.root(None, None)
    tokens = tokens_of(blocks) + list(range(1000, 1000 + num_more))
    expected = fresh.extend(root, tokens, PAGE_SIZE)
    num_known = 0
    for others in [[], *named]:
        keyer.extend(root, tokens_of(others), PAGE_SIZE)
        num_known = max(num_known, common(blocks, others))
        for _ in range(2):  # the second time, long runs are known
            recalled = keyer.recall(root, tokens, PAGE_SIZE)
            assert recalled == expected[: num_known * BLOCK // PAGE_SIZE]
    assert keyer.extend(root, tokens, PAGE_SIZE) == expected


def test_nothing_is_recalled_below_another_parent():
    keyer = DigestKeyer()
    tokens = tokens_of([0, 1])
    keyer.extend(keyer.root(None, None), tokens, PAGE_SIZE)
    assert keyer.recall(keyer.root("salt", None), tokens, PAGE_SIZE) == []


def common(blocks: list[int], others: list[int]) -> int:
    num_equal = 0
    for block, other in zip(blocks, others, strict=False):
        if block != other:
            break
        num_equal += 1
    return num_equal
