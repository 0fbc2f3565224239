import statistics

from tests.architecture import sizes, source_tree

MEDIAN_LINES = 130
SOFT_CAP_LINES = 350
HARD_CAP_LINES = 600
MAX_FLAGS = 100

OVER_SOFT_CAP: dict[str, str] = {}
"""Files above the soft cap, each with the reason why cutting it would make it worse."""


def test_files_of_the_package_are_short() -> None:
    counts = sizes.line_counts()
    assert statistics.median(counts.values()) <= MEDIAN_LINES
    over = {source_tree.name_of(path): lines for path, lines in counts.items() if lines > SOFT_CAP_LINES}
    assert over.keys() == OVER_SOFT_CAP.keys(), f"above the soft cap of {SOFT_CAP_LINES} lines: {over}"
    assert max(counts.values()) <= HARD_CAP_LINES


def test_files_of_the_tests_are_within_the_hard_cap() -> None:
    counts = {source_tree.name_of(path): sizes.line_count(path) for path in source_tree.files_of_tests()}
    assert {name: lines for name, lines in counts.items() if lines > HARD_CAP_LINES} == {}


def test_no_drawer_for_odds_and_ends_grows() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    large = [source_tree.name_of(p) for p, n in sizes.line_counts().items() if p.name in drawers and n > 60]
    assert large == []


def test_flags_stay_few() -> None:
    # A new flag needs a measured reason, a default, a line of documentation and a test; then this may be raised.
    assert sizes.num_flags() <= MAX_FLAGS
