"""What a page shows is replaced by a complete measurement, or where somebody asks for it; by nothing else."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import performance_page, publishing
from benchmarks.figures import __main__ as figures
from benchmarks.figures.figure import Figure
from benchmarks.figures.offline import Extent
from benchmarks.peers import __main__ as peers


def only_figure(extent: Extent) -> Iterator[Figure]:
    yield Figure("speed", "Speed", float(extent.num_requests), "tok/s", "a command")


def no_figure(extent: Extent) -> Iterator[Figure]:
    del extent
    yield from ()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sections that take no time, and folders that nobody else knows."""
    monkeypatch.setattr(figures, "SECTIONS", {"fast": only_figure, "without data": no_figure})
    monkeypatch.setattr(publishing, "ROOT", tmp_path)
    monkeypatch.setattr(publishing, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr(publishing, "DRAFTS", tmp_path / "drafts")
    (tmp_path / "published").mkdir()
    before = {"without data": {"machine": "m", "date": "2026-01-01", "figures": []}}
    (tmp_path / "published" / figures.FILE).write_text(json.dumps(before), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "arguments", [["--num-requests", "16"], ["--num-runs", "1"], ["--sections", "fast"], ["--sections", "fast", "fast"]]
)
def test_a_reduced_run_leaves_the_published_figures_alone(
    folders: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    published = folders / "published" / figures.FILE
    before = published.read_bytes()
    figures.main(arguments)
    assert published.read_bytes() == before
    assert "fast" in json.loads((folders / "drafts" / figures.FILE).read_text(encoding="utf-8"))
    assert "drafts/figures.json" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--num-requests", "256"], ["--num-requests", "16", "--publish"]])
def test_a_complete_run_is_published_and_so_is_what_somebody_wants_to_be(folders: Path, arguments: list[str]) -> None:
    figures.main(arguments)
    assert not (folders / "drafts").exists()
    assert "| Speed |" in performance_page.figures(folders / "published")


def test_a_section_that_could_not_be_measured_keeps_its_figures(folders: Path) -> None:
    figures.main([])
    record = json.loads((folders / "published" / figures.FILE).read_text(encoding="utf-8"))
    assert record["without data"]["date"] == "2026-01-01"


def test_a_file_that_is_named_gets_the_figures(folders: Path) -> None:
    own = folders / "own.json"
    figures.main(["--num-runs", "1", "--json", str(own)])
    assert list(json.loads(own.read_text(encoding="utf-8"))) == ["fast"]
    assert not (folders / "drafts").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], True),
        (["--tasks", "w1", "prefill"], True),
        (["--rounds", "5"], True),
        (["--rounds", "1"], False),
        (["--num-requests", "64"], False),
        (["--peers", "vllm"], False),
        (["--our-settings", "num_threads=1"], False),
        (["--configurations", "vllm:f32"], False),
        (["--peer-requests", "vllm=4"], False),
    ],
)
def test_other_engines_are_compared_completely_or_not(arguments: list[str], expected: bool) -> None:
    options: argparse.Namespace = peers.parse(arguments)
    assert peers.is_whole(options) is expected
