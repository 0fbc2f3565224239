"""The project's Markdown pages, and the code blocks and links in them.

Knows nothing of what is demanded of them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(
    r"^(?P<fence>```+)(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_MARK = re.compile(r"<!-- no-run: (?P<reason>[^\n]+?) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language, and why it is not run, if it is marked so."""

    page: Path
    line: int
    language: str
    body: str
    reason_not_to_run: str | None
    text_after: str
    """What follows up to the end of the page."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def pages() -> list[Path]:
    """Every Markdown page of the project."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changelog.d/*.md")])


def blocks() -> Iterator[Block]:
    """Every fenced block of every page."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            before = text[: match.start()]
            mark = _MARK.search(before)
            yield Block(
                page=page,
                line=before.count("\n") + 1,
                language=match["language"],
                body=match["body"],
                reason_not_to_run=mark["reason"] if mark else None,
                text_after=text[match.end() :],
            )


def links() -> Iterator[tuple[Path, str]]:
    """Every link target of every page, code blocks left out."""
    for page in pages():
        for match in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))):
            yield page, match["target"]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
