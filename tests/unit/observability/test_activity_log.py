"""The activity line: rates over its interval, silence in between."""

import logging
from dataclasses import replace

import pytest

from chairlift.observability.activity_log import ActivityLog
from chairlift.observability.step_stats import NO_SCHEDULER, StepStats

S = 1_000_000_000


def report(generated: int, **fields: int) -> StepStats:
    return StepStats(scheduler=replace(NO_SCHEDULER, num_pages=10, generation_tokens_total=generated, **fields))


def test_a_line_per_interval_with_rates_over_it(caplog: pytest.LogCaptureFixture) -> None:
    log = ActivityLog(interval_s=10)
    with caplog.at_level(logging.INFO):
        log.step(report(100), 0)
        log.step(report(300), 9 * S)
        assert caplog.messages == []
        log.step(
            report(
                600,
                num_running=3,
                num_waiting=1,
                num_leased_pages=5,
                prefix_query_tokens_total=40,
                prefix_hit_tokens_total=10,
            ),
            10 * S,
        )
        log.step(report(700), 11 * S)
    assert caplog.messages == [
        "running=3 waiting=1 prompt_tokens_per_s=0.0 generation_tokens_per_s=50.0 "
        "kv_usage=50.0% prefix_hits=25.0% preemptions=0"
    ]


def test_a_restarted_engine_has_no_negative_rates(caplog: pytest.LogCaptureFixture) -> None:
    log = ActivityLog(interval_s=10)
    with caplog.at_level(logging.INFO):
        log.step(report(100), 0)
        log.step(report(5), 20 * S)
        log.step(report(205), 30 * S)
    assert len(caplog.messages) == 1
    assert "generation_tokens_per_s=20.0" in caplog.messages[0]
