"""The files of this project, for tests that look at code instead of running it.

Knows nothing of what is demanded of them.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "chairlift"
TEXT_SUFFIXES = frozenset({".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".json", ".html", ".css", ".js"})


@cache
def modules() -> tuple[Path, ...]:
    """Every Python file of the package."""
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def files_of_tests() -> tuple[Path, ...]:
    """Every Python file under tests/."""
    return tuple(sorted((ROOT / "tests").rglob("*.py")))


def text_files() -> Iterator[Path]:
    """Every text file that is part of the project."""
    for folder in ("src", "tests", "docs", "changelog.d", "examples", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and (path.suffix in TEXT_SUFFIXES or not path.suffix):
                yield path
    yield from (path for path in sorted(ROOT.iterdir()) if path.is_file() and path.name != ".git")


@cache
def syntax_tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path) -> str:
    """Path of a file as a message should show it."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """Dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
