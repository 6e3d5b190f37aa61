"""A measurement: its arguments, its result, and how the result is shown, as a table, JSON, or a part of a page.

A measurement is a function from a `Run` to figures. Its docstring says what is measured, and `run.py` has its name.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

Bound = Literal["at least", "more than", "at most"]
HEAD = ("measured", "figure", "target", "met", "of what")
END = "<!-- to here -->"


@dataclass(frozen=True)
class Run:
    """One call of a measurement.

    folder: an empty one of this measurement alone, on the disk to measure; it is removed only when all measurements of
    the command are over, as deleted files make the creation of others slow on ext4. quick: fewer and shorter rounds,
    to see whether it works. options: the flags of the command that only some measurements know.
    """

    folder: Path
    quick: bool
    options: argparse.Namespace


@dataclass(frozen=True)
class Figure:
    """One measured value.

    value: None when it could not be measured, and `of` says why; target: None when the value is only information; of:
    the values from which it was made, as text; digits: after the point.
    """

    name: str
    value: float | None
    target: float | None = None
    bound: Bound = "at least"
    unit: str = ""
    of: str = ""
    digits: int = 2

    @property
    def met(self) -> bool | None:
        """Tells whether the value is as good as the target. None without a target or without a value."""
        if self.target is None or self.value is None:
            return None
        if self.bound == "at most":
            return self.value <= self.target
        return self.value > self.target if self.bound == "more than" else self.value >= self.target

    def cells(self) -> tuple[str, ...]:
        """Returns the texts of its row, in the order of HEAD."""
        value = "-" if self.value is None else f"{self.value:,.{self.digits}f}{self.unit}"
        target = "" if self.target is None else f"{self.bound} {self.target:,g}{self.unit}"
        return self.name, value, target, {None: "", True: "yes", False: "no"}[self.met], self.of

    def content(self) -> dict[str, Any]:
        """Returns the figure as JSON has it."""
        return {**asdict(self), "met": self.met}


def in_turn(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Returns the value of each side in each round, after a round that warms up. sides: each measures its value once.

    Every other round goes backwards: side effects of one side, such as bytes that the disk still writes, would
    otherwise hit the same other side each time.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides) if number % 2 else reversed(sides):
            value = sides[name]()
            if number:
                values[name].append(value)
    return values


def ratio(
    name: str,
    over: Sequence[float],
    under: Sequence[float],
    target: float | None = None,
    bound: Bound = "at least",
    unit: str = "/s",
    digits: int = 2,
) -> Figure:
    """Returns the median of the rounds' ratios, with the medians of both sides.

    over, under: a value for each round. A ratio of two things that were measured in the same round says the same on a
    fast machine and on a slow one; the ratio of the medians would not, as other programs disturb some rounds.
    """
    value = median(a / b for a, b in zip(over, under, strict=True))
    shown = " to ".join(f"{median(side):,.0f}{unit}" for side in (over, under))
    return Figure(name, value, target, bound, of=shown, digits=digits)


def text_table(figures: Sequence[Figure]) -> str:
    """Returns the table of all figures in aligned columns, and how many targets are met."""
    rows = [HEAD, *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {value:>{widths[1]}}  {target:>{widths[2]}}  {met:<{widths[3]}}  {of}".rstrip()
        for name, value, target, met, of in rows
    ]
    judged = [figure.met for figure in figures if figure.met is not None]
    if judged:
        lines.append(f"{sum(judged)} of {len(judged)} targets are met")
    return "\n".join(lines)


def markdown_row(figure: Figure) -> str:
    """Returns the row of a Markdown table. A target that is missed is in bold."""
    cells = (cell if cell != "no" else "**no**" for cell in figure.cells())
    return f"| {' | '.join(cells)} |"


MARKDOWN_HEAD = [f"| {' | '.join(HEAD)} |", "|---|---:|---:|---|---|"]


def replaced(page: str, begin: str, part: str) -> str:
    """Returns the page with a new part between the line `begin` and the next END. Raises ValueError for a page without
    these marks."""
    before, mark, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the page lacks its marks: {begin} and {END}")
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def write_rows(page: Path, begin: str, figures: Sequence[Figure], measured_on: str) -> None:
    """Writes the figures into the table that follows the mark in a page. Rows that were not measured now stay, so that
    one measurement can be repeated by itself. measured_on: date and machine."""
    text = page.read_text(encoding="utf-8")
    old = text.partition(begin)[2].partition(END)[0]
    rows = {line.split("|")[1].strip(): line for line in re.findall(r"^\| .*", old, re.MULTILINE)[1:]}
    rows.update({figure.name: markdown_row(figure) for figure in figures})
    part = "\n".join([f"Measured on {measured_on}.", "", *MARKDOWN_HEAD, *rows.values()])
    page.write_text(replaced(text, begin, part), encoding="utf-8")
