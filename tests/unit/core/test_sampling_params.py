"""Sampling parameters refuse what no sampler could act on."""

from typing import Any, cast

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.errors import InvalidRequestError


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.0])
def test_b51_numbers_that_are_not_usable_are_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "min_tokens", "seed", "temperature"])
@pytest.mark.parametrize("value", [10**400, -(10**400), pytest.param(10**5000, id="enormous")])
def test_whole_numbers_beyond_every_float_are_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("value", [5e-324, 0.0])
def test_a_repetition_penalty_that_would_make_logits_infinite_is_refused(value):
    with pytest.raises(InvalidRequestError, match="repetition_penalty"):
        SamplingParams(repetition_penalty=value)


def test_b40_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(InvalidRequestError, match="min_tokens=5 is more than max_tokens=4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_stop_may_be_one_string_or_many():
    assert SamplingParams(stop=cast("Any", "x")).stop == ("x",)
    assert SamplingParams(stop=cast("Any", ["x", "y"])).stop == ("x", "y")
    with pytest.raises(InvalidRequestError, match="empty"):
        SamplingParams(stop=("x", ""))


@pytest.mark.parametrize(
    ("stop", "said"), [(["x"] * 65, "64 strings at most, got 65"), (["x" * 1025], "got one of 1025")]
)
def test_stop_strings_are_bounded_because_every_output_is_compared_with_all_of_them(stop, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        SamplingParams(stop=tuple(stop))
    assert caught.value.param == "stop"
    assert SamplingParams(stop=tuple(text[:1024] for text in stop[:64])).stop


@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "min_tokens", "seed"])
@pytest.mark.parametrize("value", [2.5, 1.0, True, "1"])
def test_whole_numbers_must_be_whole(name, value):
    with pytest.raises(InvalidRequestError, match=f"{name} must be a whole number"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "1"), ("top_p", None), ("min_p", True), ("stop", 5), ("stop", [5]), ("stop_token_ids", 5)],
)
def test_values_of_a_wrong_type_are_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})


def test_stops_may_be_none_as_in_vllm():
    params = SamplingParams(stop=cast("Any", None), stop_token_ids=cast("Any", None))
    assert (params.stop, params.stop_token_ids) == ((), ())
