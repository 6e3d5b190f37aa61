"""The page of a report: one HTML file without network access or scripts. All text is escaped."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from .text import printable

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #5c636d; --line: #dfe2e7; --back: #f6f7f9; --card: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a0a7b1; --line: #363b43; --back: #16181c; --card: #1f2227 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 4rem }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .25rem }
p { margin: .25rem 0; max-width: 62rem }
.soft, caption, figcaption { color: var(--soft); font-size: .9rem }
.warning { border-left: 4px solid #d55e00; padding: .25rem .75rem; margin: 1rem 0 }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(14.5rem, 1fr)); gap: .75rem; margin: 1.5rem 0 }
.numbers div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem }
.numbers dt { color: var(--soft); font-size: .85rem }
.numbers dd { margin: 0; font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums }
.numbers dd + dd { font-size: .85rem; color: var(--soft); overflow-wrap: anywhere }
figure { margin: .5rem 0 0; overflow-x: auto }
figure img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: .5rem; padding: .5rem }
@media (prefers-color-scheme: dark) { figure img { filter: brightness(.92) } }
figure:has(:checked) img { width: 66rem }
figure label { display: none }
@media (max-width: 48rem) {
  figure label { display: inline-flex; position: sticky; left: 0; align-items: center; gap: .5rem; min-height: 2.75rem }
  figure input { width: 1.25rem; height: 1.25rem }
}
.wide { overflow-x: auto; margin-top: .5rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums }
th, td { padding: .4rem .6rem; text-align: right; vertical-align: top; white-space: nowrap }
th { color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); white-space: normal }
tr + tr td { border-top: 1px solid var(--line) }
.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 7rem }
@media (max-width: 72rem) {
  thead { display: none }
  table, tbody { display: block }
  tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .4rem .75rem;
    padding: .6rem .75rem }
  tr + tr { border-top: 1px solid var(--line) }
  tr + tr td { border: 0 }
  td { padding: 0; text-align: left; white-space: normal; overflow-wrap: anywhere }
  td::before { content: attr(data-head); display: block; color: var(--soft); font-size: .8rem }
  td:first-child { grid-column: 1 / -1; font-weight: 600 }
  td:first-child::before { content: none }
}
a { color: inherit }
"""
"""Widths: a table has all of `main` (72rem), or else each row becomes a block of names and values, which fits any
screen. A plot is 1320 pixels wide, so that its letters are too small on a phone: there it has a check box that enlarges
it, and is moved sideways."""
# Whatever a queue or a message is called, a browser loads and runs nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class Number:
    """A headline: name, value, and a short note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot. png: the bytes of the file; alt: its description."""

    png: bytes
    alt: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table. columns: their heads; text: indices of columns with left-aligned text; cells: as texts."""

    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    text: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, an explanation, and a picture or a table; without both, the text `empty`."""

    title: str
    says: str
    picture: Picture | None = None
    table: Table | None = None
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the page, from top to bottom. files: names of files beside it, with a description of each."""

    title: str
    subtitle: str
    numbers: Sequence[Number]
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    files: Sequence[tuple[str, str]] = field(default=())


def render(page: Page) -> str:
    """Returns the page as HTML."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(page.title)}</title><style>{_STYLE}</style></head><body><main>",
        f'<h1>{_text(page.title)}</h1><p class="soft">{_text(page.subtitle)}</p>',
        *(f'<p class="warning">{_text(text)}</p>' for text in page.warnings),
        '<dl class="numbers">',
        *(_number(each) for each in page.numbers),
        "</dl>",
        *(_section(each) for each in page.sections),
        _files(page.files),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _text(text: str) -> str:
    return escape(printable(text))


def _number(each: Number) -> str:
    note = f"<dd><bdi>{_text(each.note)}</bdi></dd>" if each.note else ""
    return f"<div><dt>{_text(each.name)}</dt><dd>{_text(each.value)}</dd>{note}</div>"


def _section(each: Section) -> str:
    shown = f"<h2>{_text(each.title)}</h2><p class='soft'>{_text(each.says)}</p>"
    if each.picture is not None:
        data = b64encode(each.picture.png).decode()
        shown += (
            "<figure><label><input type='checkbox'>Enlarge the plot</label>"
            f'<img alt="{_text(each.picture.alt)}" src="data:image/png;base64,{data}"></figure>'
        )
    if each.table is not None:
        shown += _table(each.table)
    if each.picture is None and each.table is None:
        shown += f"<p>{_text(each.empty)}</p>"
    return f"<section>{shown}</section>"


def _table(table: Table) -> str:
    def cell(tag: str, at: int, text: str) -> str:
        kind = ' class="text"' if at in table.text else ""
        # A name written from right to left must not turn around what stands beside it.
        inside = f"<bdi>{_text(text)}</bdi>" if at in table.text else _text(text)
        return f"<{tag}{kind}>{inside}</{tag.partition(' ')[0]}>"

    head = "".join(cell("th", at, text) for at, text in enumerate(table.columns))
    cells = [f'td data-head="{_text(text)}"' for text in table.columns]
    rows = ["".join(cell(cells[at], at, text) for at, text in enumerate(row)) for row in table.cells]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _files(files: Sequence[tuple[str, str]]) -> str:
    if not files:
        return ""
    rows = "".join(f'<li><a href="{escape(name)}">{_text(name)}</a>: {_text(what)}</li>' for name, what in files)
    return f"<section><h2>Files</h2><ul>{rows}</ul></section>"
