"""Draws charts as SVG paths. Colours and line widths are in the style sheet, so that a chart can be dark or light."""

from collections.abc import Sequence
from dataclasses import dataclass

from .history import BUCKETS, Point


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the rates and the depth of the last minutes, as paths of SVG."""

    width: int
    height: int
    """Width and height in the units of the paths."""
    area_in: str
    """The path of the area under the rate in."""
    line_in: str
    line_out: str
    line_depth: str
    """The paths of the rates in and out, and of the depth."""
    top_rate: float
    top_depth: float
    """The rate and the depth at the upper edge: the two have different scales."""


def draw(points: Sequence[Point], width: int, height: int) -> Chart:
    """Draws a chart of the points of `History.points`."""
    ins, outs, depths = (
        [point.rate_in for point in points],
        [point.rate_out for point in points],
        [point.depth for point in points],
    )
    top_rate = max((value for value in (*ins, *outs) if value is not None), default=0.0)
    top_depth = max((value for value in depths if value is not None), default=0.0)
    line_in = _line(ins, top_rate, width, height)
    return Chart(
        width, height, _area(line_in, height), line_in, _line(outs, top_rate, width, height),
        _line(depths, top_depth, width, height), top_rate, top_depth,
    )  # fmt: skip


def _line(values: Sequence[float | None], top: float, width: int, height: int) -> str:
    """Returns a path through the values, with a gap where one is None."""
    scale = (height - 2) / top if top > 0 else 0.0  # a unit is left at either edge, so that no line is cut off
    parts = []
    pen = "M"  # moves to the next point, and draws no line to it
    for number, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x = (number + 1) * width / BUCKETS
        parts.append(f"{pen}{x:.1f} {height - 1 - max(value, 0.0) * scale:.1f}")
        pen = "L"
    return "".join(parts)


def _area(line: str, height: int) -> str:
    """Returns the path of the area under a line."""
    areas = []
    for part in line.split("M"):
        if "L" in part:  # a single point has no area
            first, last = part.split("L")[0].split()[0], part.rsplit("L", 1)[1].split()[0]
            areas.append(f"M{first} {height}L{part}L{last} {height}Z")
    return "".join(areas)
