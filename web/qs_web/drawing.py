"""Charts as the numbers of SVG paths. Colours and lines are in the style sheet."""

from collections.abc import Sequence
from dataclasses import dataclass

from .history import BUCKETS, Point


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing of the last minutes, `width` by `height` units. area_in: path of the filled rate in; line_in, line_out,
    line_depth: paths; top_rate, top_depth: the values of the upper edge."""

    width: int
    height: int
    area_in: str
    line_in: str
    line_out: str
    line_depth: str
    top_rate: float
    top_depth: float


def draw(points: Sequence[Point], width: int, height: int) -> Chart:
    """Draws the points of `History.points`."""
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
    """Returns a path through the values that are there."""
    scale = (height - 2) / top if top > 0 else 0.0
    parts = []
    pen = "M"
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
        if "L" in part:
            first, last = part.split("L")[0].split()[0], part.rsplit("L", 1)[1].split()[0]
            areas.append(f"M{first} {height}L{part}L{last} {height}Z")
    return "".join(areas)
