"""What a request is told that came too late."""

from unittest.mock import Mock

import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.byte_tokenizer import ByteTokenizer
from chairlift.engine.messages import Choice, Update
from chairlift.engine.queue_gate import _in_words
from chairlift.engine.request_tracker import RequestTracker
from chairlift.engine.terms import Terms

NS_PER_MS = 10**6


def told(reason: str, terms: Terms, waited_ms: float) -> str:
    """The message of a request that ended without a token after so long."""
    owner = Mock(tokenizer=ByteTokenizer(), now_ns=lambda: 0)
    tracker = RequestTracker([Choice(1, 0)], (1, 2), SamplingParams(), terms, Mock(), owner)
    tracker.apply(Update(1, (), reason), int(waited_ms * NS_PER_MS))
    assert tracker._error is not None
    return tracker._error.message


@pytest.mark.parametrize(("waited_ms", "shown"), [(1510.4, "1510 ms"), (99.96, "100 ms"), (2.345, "2.35 ms")])
def test_a_wait_is_told_without_an_exponent(waited_ms: float, shown: str) -> None:
    message = told("deadline", Terms(ttft_deadline_ms=1_234_567.5, deadline_ms=1e9), waited_ms)
    assert f"after {shown} without a first token" in message
    assert "ttft_deadline_ms is 1234567.5 and deadline_ms is 1000000000, which" in message


def test_a_long_wait_for_a_slot_is_told_in_seconds() -> None:
    assert "waited 1510 s for its first slot" in told("timeout", Terms(), 1_510_400)


@pytest.mark.parametrize(("time_ms", "shown"), [(999.7, "1000 ms"), (12.345, "12.3 ms"), (1500.0, "1.5 s")])
def test_a_predicted_wait_is_told_without_an_exponent(time_ms: float, shown: str) -> None:
    assert _in_words(time_ms) == shown
