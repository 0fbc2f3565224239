"""Logging: set up once, and warnings that do not flood."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from chairlift.observability.logging import RateLimitedWarning, configure_logging, format_fields, log_fields

S = 1_000_000_000


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where lines may go; afterwards the loggers are as they were."""
    logger = logging.getLogger("chairlift")
    saved = logger.handlers[:], logger.level, logger.propagate
    yield io.StringIO()
    logger.handlers[:], logger.level, logger.propagate = saved


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


def test_json_lines_have_fields_and_exceptions(stream: io.StringIO) -> None:
    configure_logging("info", stream, "json")
    logger = logging.getLogger("chairlift.test")
    log_fields(logger, "a message", {"request_id": "cmpl-1", "tokens": 5})
    try:
        raise ValueError("bad\nluck")
    except ValueError:
        logger.exception("it failed: %s", "é")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["message"], first["level"], first["request_id"], first["tokens"]) == (
        "a message",
        "info",
        "cmpl-1",
        5,
    )
    assert (second["message"], second["logger"]) == ("it failed: é", "chairlift.test")
    assert "bad\nluck" in second["exception"]


def test_text_lines_have_fields_too(stream: io.StringIO) -> None:
    configure_logging("info", stream)
    log_fields(logging.getLogger("chairlift.test"), "a message", {"a": 1, "b": "two words"})
    assert stream.getvalue().rstrip().endswith("chairlift.test: a message a=1 b='two words'")
