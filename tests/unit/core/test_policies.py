"""Policies by themselves."""

import dataclasses

import pytest

from chairlift.config.resolved import SchedulerConfig
from chairlift.core.policies import build_eviction, build_policies
from chairlift.core.policies.chunking import ShortestFirst, WholePrompts
from chairlift.core.request import Request
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.views import PrefillView
from chairlift.errors import ConfigurationError


def prompts(*lengths):
    return [PrefillView(Request(n, [0], SamplingParams()), length, False) for n, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("lengths", "budget", "expected"),
    [
        ((1500,), 248, [248]),
        ((1500, 50), 248, [198, 50]),
        ((1500, 300), 248, [62, 186]),
        ((10, 20, 30), 100, [10, 20, 30]),
        ((200, 200, 200), 256, [200, 56, 0]),
        ((5,), 0, [0]),
        ((), 10, []),
        ((9, 9), 1, [1, 0]),
    ],
)
def test_shortest_first(lengths, budget, expected):
    assert ShortestFirst().split(budget, prompts(*lengths)) == expected


def test_a_chunk_cap_holds_while_others_want_the_budget():
    assert ShortestFirst(64).split(200, prompts(1000, 100)) == [100, 100]
    assert ShortestFirst(64).split(100, prompts(1000, 1000)) == [64, 36]
    assert ShortestFirst(64).split(100, prompts(1000)) == [100]


def test_whole_prompts():
    assert WholePrompts().split(100, prompts(60, 50, 30)) == [60, 0, 30]
    assert WholePrompts().split(100, prompts(500, 10)) == [500, 0]
    assert WholePrompts().split(100, prompts(10, 500)) == [10, 0]


@pytest.mark.parametrize("field", ["scheduling_policy", "admission", "chunking_policy", "preemption_policy"])
def test_an_unknown_policy_is_refused_with_the_names_there_are(field):
    with pytest.raises(ConfigurationError, match=r"'nonsense' is unknown; there are: \w+"):
        build_policies(dataclasses.replace(SchedulerConfig(), **{field: "nonsense"}))


def test_an_unknown_eviction_policy_is_refused():
    with pytest.raises(ConfigurationError, match="there are: lru"):
        build_eviction("nonsense")
