"""Which file a measurement is kept in: one that pages show, only if it measured everything or somebody wants it so.

Knows nothing of what is measured.
"""

import argparse
from pathlib import Path

from benchmarks.tasks import ROOT

PUBLISHED = ROOT / "benchmarks" / "results"
"""What the tables of ``docs/performance.md`` and ``README.md`` are made from."""
DRAFTS = ROOT / "build" / "benchmarks"


def add_publishing(parser: argparse.ArgumentParser, flag: str) -> None:
    """Add ``--publish``, and a flag that names another file."""
    parser.add_argument("--publish", action="store_true", help="show the figures of a reduced run in the docs, too")
    parser.add_argument(flag, type=Path, dest="results", help="keep the figures in this file")


def results_file(options: argparse.Namespace, name: str, *, is_whole: bool) -> Path:
    """Return the file for the figures, and say so if it is none that pages are made from.

    Args:
        options: with ``publish`` and ``results``.
        name: of the file among the published ones.
        is_whole: whether as much is measured as if nobody had given a flag.
    """
    if options.results is not None:
        return options.results
    if is_whole or options.publish:
        return PUBLISHED / name
    path = DRAFTS / name
    print(
        f"A reduced run: its figures are kept in {path.relative_to(ROOT)}, and the published ones stay as they are "
        "(--publish replaces them).",
        flush=True,
    )
    return path
