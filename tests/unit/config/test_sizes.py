"""Memory sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.config.sizes import format_bytes, parse_bytes
from chairlift.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("1073741824", 2**30),
        (4096, 4096),
        ("2GiB", 2 * 2**30),
        ("2 gib", 2 * 2**30),
        ("500MB", 500_000_000),
        ("1.5KiB", 1536),
        ("0.1kb", 100),
        ("2G", 2 * 2**30),
        ("3TiB", 3 * 2**40),
        ("12B", 12),
    ],
)
def test_reads_every_unit(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2g", "2 XiB", "1e9", "two", "1,5GiB", "2GiB!"])
def test_refuses_anything_else_and_names_the_setting(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--kv-cache-memory is .*2GiB"):
        parse_bytes(text, setting="--kv-cache-memory")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**20 - 1, "1 MiB"), (2 * 2**30, "2 GiB")],
)
def test_writes_a_binary_unit(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_what_is_written_reads_back_to_within_its_rounding(num_bytes: int) -> None:
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.05)
