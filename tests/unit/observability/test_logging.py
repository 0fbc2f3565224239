"""Logging: set up once, and warnings that do not flood."""

import io
import logging

import pytest

from chairlift.observability.logging import RateLimitedWarning, configure_logging, format_fields

S = 1_000_000_000


def test_configuring_twice_writes_each_line_once() -> None:
    logger = logging.getLogger("chairlift")
    saved = logger.handlers[:], logger.level, logger.propagate
    stream = io.StringIO()
    try:
        configure_logging("info", io.StringIO())
        configure_logging("warning", stream)
        logging.getLogger("chairlift.engine").info("quiet")
        logging.getLogger("chairlift.engine").warning("loud")
    finally:
        logger.handlers[:], logger.level, logger.propagate = saved
    assert stream.getvalue().count("loud") == 1
    assert "quiet" not in stream.getvalue()


def test_fields_are_quoted_only_where_needed() -> None:
    assert format_fields(running=3, reason="no pages", empty="") == "running=3 reason='no pages' empty=''"


def test_warning_is_held_back_within_the_interval_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    warning = RateLimitedWarning(logging.getLogger("test"), interval_s=10)
    with caplog.at_level(logging.WARNING):
        assert warning.warn(0, "lost %s", "a")
        assert not warning.warn(9 * S, "lost %s", "b")
        assert not warning.warn(9 * S, "lost %s", "c")
        assert warning.warn(10 * S, "lost %s", "d")
        assert warning.warn(20 * S, "lost %s", "e")
    assert [record.getMessage() for record in caplog.records] == [
        "lost a",
        "lost d (and 2 more since the last such line)",
        "lost e",
    ]
