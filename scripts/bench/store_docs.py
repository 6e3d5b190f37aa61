"""Writes the figures of the store into the page of the docs, as a table of its own."""

import re
from collections.abc import Sequence
from pathlib import Path

from store_figures import Figure

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN = "<!-- made by scripts/bench/log_store.py --docs: do not edit from here -->\n"
END = "<!-- to here -->\n"
_HEAD = "| measured | figure | target | met | of what |\n|---|---:|---:|---|---|\n"


def _row(figure: Figure) -> str:
    aim = "" if figure.target is None else f"{figure.bound} {figure.target:,g}{figure.unit}"
    met = "" if figure.reached is None else "yes" if figure.reached else "**no**"
    return f"| {figure.name} | {figure.value:,.2f}{figure.unit} | {aim} | {met} | {figure.of} |\n"


def replaced(page: str, figures: Sequence[Figure], machine: str) -> str:
    """Returns the page with new rows for these figures; rows of what was not measured stay. machine: in a sentence."""
    before, _, rest = page.partition(BEGIN)
    part, _, after = rest.partition(END)
    rows = {line.split("|")[1].strip(): f"{line}\n" for line in re.findall(r"^\| .*", part, re.MULTILINE)[1:]}
    rows.update({figure.name: _row(figure) for figure in figures})
    return f"{before}{BEGIN}\nMeasured on {machine}.\n\n{_HEAD}{''.join(rows.values())}\n{END}{after}"


def write(figures: Sequence[Figure], machine: str) -> None:
    """Writes the table into the page. ValueError: the page has no place for it."""
    page = PAGE.read_text(encoding="utf-8")
    if BEGIN not in page:
        raise ValueError(f"{PAGE} has no line {BEGIN.strip()!r}")
    PAGE.write_text(replaced(page, figures, machine), encoding="utf-8")
