import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chairlift.cli import reference
from tests.architecture import source_tree
from tests.docs.pages import ROOT, anchors, links, pages

_PROTOCOL = re.compile(r"^class (\w+)(?:\(.*\bProtocol\b.*\)):", re.MULTILINE)

# Protocols by which one part says what it needs of another one inside the project.
NOT_FOR_EXTENSION = {
    "chairlift.benchmark.",
    "chairlift.server.",
    "chairlift.engine.",
    "chairlift.cli.",
    "chairlift.structured.",
    "chairlift.tokenization.",
    "chairlift.execution.torch_backend.kernels_cpu.",
}


def test_links_lead_somewhere() -> None:
    broken: list[str] = []
    for page, target in links():
        if re.match(r"(https?|mailto):", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_links_inside_the_documentation_stay_inside_so_that_the_site_has_them() -> None:
    outside = [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in links()
        if page.is_relative_to(ROOT / "docs")
        and not re.match(r"(https?|mailto):|#", target)
        and not (page.parent / target.partition("#")[0]).resolve().is_relative_to(ROOT / "docs")
    ]
    assert outside == []


def test_every_interface_for_others_is_on_the_page_about_extending() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    protocols = {
        f"{source_tree.module_name(path)}.{name}"
        for path in source_tree.modules()
        for name in _PROTOCOL.findall(path.read_text(encoding="utf-8"))
        if not name.startswith("_")
    }
    for_others = {name for name in protocols if not name.startswith(tuple(NOT_FOR_EXTENSION))}
    assert sorted(name for name in for_others if f"`{name}`" not in page) == []
    named = set(re.findall(r"`(chairlift(?:\.\w+)+\.[A-Z]\w+)`", page))
    assert named <= protocols


def test_files_that_pages_name_exist() -> None:
    folders = (
        ROOT,
        ROOT / "src" / "chairlift",
        ROOT / "src",
        ROOT / "src" / "chairlift" / "execution" / "torch_backend",
    )
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages()
        if page.name != "CHANGELOG.md"
        for name in re.findall(r"`([\w.]+(?:/[\w.-]+)+/?)`", page.read_text(encoding="utf-8"))
        if re.search(r"\.(py|md|toml|txt)$|/$", name) and not any((folder / name).exists() for folder in folders)
    ]
    assert missing == []


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_pages_are_what_the_code_says(name: str) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") == reference.PAGES[name]()


def test_reference_check_fails_on_drift_and_writing_heals_it(tmp_path: Path) -> None:
    runner = CliRunner()
    arguments = ["--folder", str(tmp_path)]
    assert runner.invoke(reference.main, arguments).exit_code == 0
    assert runner.invoke(reference.main, [*arguments, "--check"]).exit_code == 0
    page = tmp_path / "configuration.md"
    page.write_text(page.read_text(encoding="utf-8").replace("8000", "8001"), encoding="utf-8")
    failed = runner.invoke(reference.main, [*arguments, "--check"])
    assert failed.exit_code == 1
    assert "configuration.md" in failed.output
    assert "8001" in page.read_text(encoding="utf-8")
    assert runner.invoke(reference.main, arguments).exit_code == 0
    assert runner.invoke(reference.main, [*arguments, "--check"]).exit_code == 0


def test_decisions_are_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in records] == list(range(1, len(records) + 1))
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert [name for name in records if f"({name})" not in index] == []
    for name in records:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {int(name[:4])}. ")
        assert "**Question.**" in text
        assert "**Decision.**" in text
        assert "**Price.**" in text


def test_every_fragment_of_news_has_a_known_kind() -> None:
    fragments = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    wrong = [name for name in fragments if not re.fullmatch(r"[+\w-]+\.(added|changed|fixed|removed)\.md", name)]
    assert wrong == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    fetched = re.findall(r'<(?:script|link rel="(?:stylesheet|preconnect)")[^>]*?(?:src|href)="(https?:[^"]+)"', page)
    assert fetched == []
