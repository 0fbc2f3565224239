import pytest

from benchmarks.claims import fairness


def test_ten_times_the_requests_are_not_more_service():
    found = fairness.measure(6)
    assert found.fair.jain >= 0.99
    assert found.none.jain < 0.7
    assert found.fair.most_difference <= found.bound
    assert found.fair.most_difference < 20_000, "far below the bound, which counts every output at its longest"
    assert found.weighted.service_ratio == pytest.approx(2.0, rel=0.02)
    assert found.holds
