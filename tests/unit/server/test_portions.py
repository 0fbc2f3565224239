"""A stream's log-probabilities are written in parts that are each quick."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.step_plan import TokenLogprobs
from chairlift.engine.outputs import ChoiceDelta
from chairlift.server.openai import extras


def delta(num_tokens: int, num_top: int) -> ChoiceDelta:
    top = tuple((token, -1.0) for token in range(num_top))
    found = TokenLogprobs(-1.0, 1, top)
    return ChoiceDelta(0, "", (1,) * num_tokens, num_tokens, logprobs=(found,) * num_tokens)


def weight(deltas: list[ChoiceDelta]) -> int:
    return sum(1 + len(found.top) for one in deltas for found in one.logprobs)


@given(sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=40))
def test_parts_hold_all_in_order_and_are_light_or_one_delta(sizes: list[tuple[int, int]]) -> None:
    deltas = [delta(*size) for size in sizes]
    parts = [list(part) for part in extras.portions(deltas)]
    assert [one for part in parts for one in part] == deltas
    assert all(len(part) == 1 or weight(part) <= extras._PORTION for part in parts)
    # No part could have taken the first of the next one.
    assert all(weight([*part, after[0]]) > extras._PORTION for part, after in pairwise(parts))
