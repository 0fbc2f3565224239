"""How large the code is: lines per file, and the number of flags; run as a script it prints both.

Knows nothing of the limits; test_sizes.py does.
"""

import statistics
from pathlib import Path

from chairlift.config.settings import describe_settings
from tests.architecture import source_tree


def line_count(path: Path) -> int:
    """Lines of a file, blank ones and comments included."""
    return len(path.read_text(encoding="utf-8").splitlines())


def line_counts() -> dict[Path, int]:
    """Lines of every file of the package, largest first; empty files are left out."""
    counts = {path: line_count(path) for path in source_tree.modules()}
    return dict(sorted(((path, n) for path, n in counts.items() if n), key=lambda item: -item[1]))


def num_flags() -> int:
    """How many settings a user can choose, aliases not counted."""
    return len(describe_settings())


def main() -> None:
    counts = line_counts()
    print(f"{len(counts)} files, {sum(counts.values())} lines, median {statistics.median(counts.values()):g}; largest:")
    for path, lines in list(counts.items())[:10]:
        print(f"  {lines:4d}  {source_tree.name_of(path)}")
    print(f"{num_flags()} flags")


if __name__ == "__main__":
    main()
