"""What the long runs look at: both processes of a server, and whatever is left when nothing runs."""

import asyncio

import pytest

from benchmarks.over_http.served import Server
from benchmarks.reliability import streams
from benchmarks.reliability.watch import Memory, engine_pid, faults, metrics, until_idle

IDLE = {
    "num_requests_running": 0.0,
    "num_requests_waiting": 0.0,
    "kv_cache_usage_ratio": 0.0,
    "swap_space_usage_ratio": 0.0,
    "requests_received_total": 3.0,
    'requests_finished_total{reason="stop"}': 2.0,
    'requests_finished_total{reason="abort"}': 1.0,
}


@pytest.mark.parametrize("name", [*list(IDLE)[:4], 'requests_finished_total{reason="stop"}'])
def test_whatever_is_left_is_a_fault(name: str) -> None:
    assert faults(IDLE) == []
    assert len(faults({**IDLE, name: 0.5})) == 1


def test_a_run_measures_the_engine_beside_the_api_process() -> None:
    with Server({"executor": "fake", "swap_space": "1MiB", "log_level": "warning"}) as server:
        result = asyncio.run(streams.run(server, num_streams=8, seconds=1.5))
        assert asyncio.run(until_idle(server.url))["swap_space_usage_ratio"] == 0
        assert set(IDLE) <= set(metrics(server.url))
        assert engine_pid(server.pid) is not None
    assert result["is_ok"], result
    for name in ("memory_mib", "memory_growth_mib"):
        assert set(result[name]) == {"api", "engine"}  # type: ignore[call-overload]
    assert all(mib > 10 for mib in result["memory_mib"].values())  # type: ignore[attr-defined]


def test_growth_of_one_process_is_enough() -> None:
    memory = Memory({"api": 1, "engine": 2})
    memory.samples_mib = {"api": [100.0] * 8, "engine": [50.0, 50.0, 60.0, 60.0, 70.0, 80.0, 110.0, 110.0]}
    assert memory.growth_mib == {"api": 0.0, "engine": 50.0}
    assert not memory.grew_at_most(32)
    assert memory.grew_at_most(51)
    assert memory.last_mib == {"api": 100, "engine": 110}
