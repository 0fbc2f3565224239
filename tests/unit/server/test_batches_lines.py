"""The lines of a batch: which are wrong and why, where the others are, and what is written of their answers."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from chairlift.server.batches import lines
from chairlift.server.batches.disk import append
from chairlift.server.batches.lines import LOWEST_TIER, Line, LineLimits, find_lines, read_request
from chairlift.server.batches.results import find_done, result_line
from tests.unit.server.test_batches import ENDPOINT, line

LIMITS = LineLimits(max_lines=3, max_line_bytes=100_000, max_values=200_000)


def found(tmp_path: Path, content: bytes, limits: LineLimits = LIMITS) -> list[Any]:
    path = tmp_path / "input"
    path.write_bytes(content)
    return list(find_lines(path, ENDPOINT, limits))


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (line(1) + b"\n" + line(2, user="x" * 100_000), "line_too_long", 2),
        (line(1, user="x" * 300_000) + b"\n" + line(2), "line_too_long", 1),
        (line(1, metadata=[[] for _ in range(24_000)]), "too_many_values", 1),
        (line(1).replace(b'{"prompt"', b'["prompt"'), "invalid_json_line", 1),
        (b'{"custom_id":"a","url":"/v1/completions","body":[]}', "invalid_json_line", 1),
        (b'{"custom_id":"a","url":"/v1/completions","body":' + b"[" * 20_000, "invalid_json_line", 1),
        (b'{"custom_id":"\xff","url":"/v1/completions","body":{}}', "invalid_json_line", 1),
        (line(1, stream=True), "invalid_request", 1),
        (line(1).replace(b"line-1", b"i" * 513), "invalid_request", 1),
        (b"\n".join(map(line, range(4))), "too_many_lines", 4),
        (b"\n \n", "empty_file", None),
    ],
)
def test_wrong_lines_are_told_by_their_numbers(tmp_path: Path, content: bytes, code: str, number: int | None) -> None:
    errors = found(tmp_path, content)
    assert [(error.code, error.line) for error in errors] == [(code, number)]


def test_lines_are_found_again_where_they_were(tmp_path: Path) -> None:
    content = b"\r\n \n" + line(1, stream=False, priority=-3, seed=2**62) + b"\r\n" + line(2) + b"\n\n" + line(3)
    places = found(tmp_path, content)
    assert [place.custom_id for place in places] == ["line-1", "line-2", "line-3"]
    bodies = [json.loads(read_request(tmp_path / "input", place)) for place in places]
    assert bodies[0] == {"prompt": "p1", "max_tokens": 2, "priority": LOWEST_TIER, "seed": 2**62}
    assert [body["prompt"] for body in bodies] == ["p1", "p2", "p3"]


def test_a_line_may_be_as_long_as_a_body_and_no_longer(tmp_path: Path) -> None:
    for ending in (b"", b"\n", b"\r\n", b"\n" + line(2)):
        whole = line(1, user="")
        longest = whole.replace(b'"user": ""', b'"user": "' + b"x" * (100_000 - len(whole)) + b'"')
        assert isinstance(found(tmp_path, longest + ending)[0], Line)
        assert found(tmp_path, longest.replace(b"xx", b"xxx", 1) + ending)[0].code == "line_too_long"


def test_wrong_lines_are_not_told_without_end(tmp_path: Path) -> None:
    assert len(found(tmp_path, b"no\n" * 1000)) == lines.MAX_ERRORS


def test_a_file_is_checked_one_line_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\n".join(line(number, metadata=[[] for _ in range(20_000)]) for number in range(20)))
    tracemalloc.start()
    try:
        places = find_lines(path, ENDPOINT, LineLimits(100, 2**20, 200_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(places) == 20
    assert peak < 2**20  # what all lines ask for takes twenty times as much


def test_the_end_of_a_result_that_a_crash_cut_off_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "out"
    whole = result_line('a",\\"response":', 200, b"{}") + b"\n" + result_line("b", 200, b'{"x":1}') + b"\n"
    path.write_bytes(whole + result_line("c", 200, b"{}")[:20])
    assert find_done(path) == {'a",\\"response":', "b"}
    assert path.read_bytes() == whole
    assert find_done(tmp_path / "nothing") == set()


def test_a_result_for_which_the_disk_has_no_room_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "out"
    append(path, b"a" * 99)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            append(path, b"b" * 99)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    append(path, b"c")
    assert path.read_bytes() == b"a" * 99 + b"\nc\n"
