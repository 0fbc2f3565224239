"""One page of HTML with everything in it; nothing is fetched when it is opened.

Knows nothing of what it says.
"""

from collections.abc import Iterable, Sequence
from html import escape

from chairlift.report.text import printable

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #222; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
svg { max-width: 100%; height: auto; } .wide { overflow-x: auto; } p.note { color: #666; } p.warning { color: #a40; }
"""


def html_page(title: str, parts: Sequence[str]) -> str:
    """Return a page whose body is its title and the parts, which are HTML."""
    body = "\n".join([f"<h1>{html_escaped(title)}</h1>", *parts])
    head = f'<meta charset="utf-8"><title>{html_escaped(title)}</title><style>{_CSS}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of texts."""
    top = "".join(f"<th>{html_escaped(cell)}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{html_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>"


def html_text(text: str, kind: str = "") -> str:
    """Return a paragraph; ``kind`` is ``note``, ``warning`` or nothing."""
    return f"<p class={kind}>{html_escaped(text)}</p>" if kind else f"<p>{html_escaped(text)}</p>"


def html_escaped(text: str) -> str:
    """Return the text without a meaning in HTML, and without control characters, which no page may have."""
    return escape(printable(text, keep="\n"))
