import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.server.json_size import CONTAINER_WEIGHT, KEY_WEIGHT, has_more_containers, is_nested_deeper, weigh_values

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet=st.sampled_from('a,[]{}:"\\é')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet=st.sampled_from('a,[{:"\\')), inner),
    max_leaves=30,
)


def weight(value: Any) -> int:
    """The same, found by walking through the values."""
    if isinstance(value, dict):
        inner = sum(weight(item) for item in value.values()) + KEY_WEIGHT * len(value)
    elif isinstance(value, list):
        inner = sum(map(weight, value))
    else:
        return 0
    return inner + CONTAINER_WEIGHT + max(0, len(value) - 1)


@given(JSON_VALUES)
def test_what_is_above_the_limit_is_weighed_exactly(value: Any) -> None:
    text = json.dumps(value, separators=(",", ":")).encode()
    assert weigh_values(text, -1) == weight(value)


@given(JSON_VALUES, st.integers(0, 40))
def test_what_is_above_the_limit_is_found_to_be(value: Any, limit: int) -> None:
    text = json.dumps(value).encode()
    assert (weigh_values(text, limit) > limit) == (weight(value) > limit)


@pytest.mark.parametrize("shift", range(4))
def test_slices_may_end_anywhere(shift: int) -> None:
    text = json.dumps(["a" * shift + '\\"\\\\,' * 40_000, [1, 2, {"k": '",['}]]).encode()
    assert weigh_values(text, -1) == 3 * CONTAINER_WEIGHT + KEY_WEIGHT + 3


@given(st.binary(max_size=200))
def test_what_is_no_json_is_weighed_too(text: bytes) -> None:
    assert weigh_values(text, -1) >= 0


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(JSON_VALUES, st.integers(1, 6))
def test_what_is_nested_deeper_than_the_limit_is_found(value: Any, limit: int) -> None:
    assert is_nested_deeper(value, limit) == (depth(value) > limit)
    assert has_more_containers(json.dumps(value).encode(), limit) or depth(value) <= limit
