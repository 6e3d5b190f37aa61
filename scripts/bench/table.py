"""The results of a benchmark, and how they are shown."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """A line of the table. target: as text, "" for what is only information; figures: what the ratio was made of."""

    name: str
    measured: str
    target: str = ""
    figures: str = ""


def ratio_row(name: str, over: Sequence[float], under: Sequence[float], target: float, unit: str = "/s") -> Row:
    """The median of the rounds' ratios, with the medians of both."""
    ratio = median(a / b for a, b in zip(over, under, strict=True))
    return Row(name, f"{ratio:.2f}", f">= {target:g}", f"{median(over):,.0f}{unit} to {median(under):,.0f}{unit}")


def print_table(rows: Sequence[Row]) -> None:
    """Aligned columns: what, measured, target, figures."""
    lines = [Row("what", "measured", "target", "figures"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        name, measured, target, figures = line
        print(f"{name:<{widths[0]}}  {measured:>{widths[1]}}  {target:>{widths[2]}}  {figures}".rstrip())
