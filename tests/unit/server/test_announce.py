import json
import shlex

import pytest

from chairlift.server.announce import base_url, is_loopback, ready_text


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("box", "http://box:80"),
    ],
)
def test_the_address_can_be_reached_from_the_same_machine(host: str, url: str) -> None:
    assert base_url(host, 80) == url


def test_the_line_to_try_is_what_a_shell_understands() -> None:
    text = ready_text("it's a model", "http://127.0.0.1:8000", needs_key=False)
    words = shlex.split(text.splitlines()[-1])
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's a model"
    assert "Authorization" not in text


def test_a_key_is_left_to_the_shell() -> None:
    assert ready_text("m", "http://x:1", needs_key=True).endswith('-H "Authorization: Bearer $CHAIRLIFT_API_KEY"')


def test_the_key_of_a_tenant_is_called_so() -> None:
    text = ready_text("m", "http://x:1", needs_key=True, is_tenants_key=True)
    assert "Try it, with a tenant's key of --tenants as KEY:" in text
    assert text.endswith('-H "Authorization: Bearer $KEY"')


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_only_loopback_is_private(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
