import sys

import pytest

from chairlift.errors import ConfigurationError
from chairlift.observability.tracing import RequestTracer


def test_without_the_libraries_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[otel\]'"):
        RequestTracer("http://127.0.0.1:1/v1/traces", "toy", 0)
