"""The plots of a report: PNG files from small series. Uses no display and no state of pyplot.

The colours are those of Okabe and Ito, which colour-blind people can tell apart; a queue keeps its colour in all plots.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .series import SECOND, Bins, Stack
from .text import duration, short

_PALETTE = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a900", "#7a5195", "#8c564b", "#4b7f52",
    "#a05d9c", "#5f6b7a",
)  # fmt: skip
_OTHERS = "#b5b9c0"
_EVENTS = {
    "pushed": "#0072b2",
    "received": "#e69f00",
    "deleted": "#009e73",
    "redelivered": "#d55e00",
    "expired": "#7a5195",
    "released": "#56b4e9",
}
_UNITS = ((1, "second"), (60, "minute"), (3600, "hour"))
_WIDE = 11.0
_STYLE: Any = {
    "text.parse_math": False,  # names may contain dollars
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
    "axes.labelcolor": "#4a4f57",
    "xtick.color": "#4a4f57",
    "ytick.color": "#4a4f57",
    "grid.color": "#d9dce1",
    "legend.frameon": False,
}
_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 70 * 86_400)
"""Marks of an axis of durations, as on clocks."""
_LEAST = 1e-5
"""Seconds: shorter times are drawn as this. The history counts microseconds, and a logarithmic axis has no 0."""


class Colours:
    """Assigns each queue a colour."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def of(self, queue: str | None) -> str:
        """Returns the colour of a queue; None stands for all others."""
        if queue is None:
            return _OTHERS
        return self._given.setdefault(queue, _PALETTE[len(self._given) % len(_PALETTE)])


@contextmanager
def _drawing(high: float, path: Path) -> Iterator[Figure]:
    """Yields a styled figure, and saves the figure after the block. A letter that the font lacks is drawn as a box."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(_WIDE, high), layout="constrained")
        yield figure
        figure.savefig(path, dpi=120)


def flow(
    path: Path, bins: Bins, totals: dict[str, list[float]], stack: Stack, colours: Colours, *, by_queue: str
) -> Path:
    """Draws two panels of rates: the events of all queues, a line for each kind, and one kind by queue. The unit of
    time is the shortest that gives readable numbers."""
    most = max(max(counts, default=0.0) for counts in totals.values())
    unit, word = _unit(most / (bins.width / SECOND))
    each = bins.width / SECOND / unit
    with _drawing(5.6, path) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        edges = [*bins.times(), bins.times(1)[-1]]
        for at, (name, counts) in enumerate(totals.items()):
            rates = [count / each for count in counts]
            upper.stairs(rates, edges, baseline=None, color=_EVENTS[name], linewidth=1.6 if at else 2.6, label=name)
            if not at:
                upper.stairs(rates, edges, fill=True, color=_EVENTS[name], alpha=0.13, linewidth=0)
        upper.set_title(f"All queues, per {word}, in steps of {duration(bins.width / SECOND)}")
        _legend(upper, len(totals))
        _stack(lower, edges, [(name, [count / each for count in counts]) for name, counts in stack], colours)
        lower.set_title(f"{by_queue}, per {word}")
        for axes in (upper, lower):
            _rate_axis(axes)
        _time_axis(lower)
    return path


def _unit(a_second: float) -> tuple[int, str]:
    """Returns seconds and name of the shortest unit in which at least one event happened, or the hour."""
    return next(((unit, word) for unit, word in _UNITS if a_second * unit >= 1), _UNITS[-1])


def depth(path: Path, bins: Bins, stack: Stack, colours: Colours) -> Path:
    """Draws the number of messages in the queues, the deepest queues separately."""
    with _drawing(3.6, path) as figure:
        axes = figure.subplots()
        _stack(axes, [*bins.times(), bins.times(1)[-1]], stack, colours)
        axes.set_title(f"Messages in the queues, every {duration(bins.width / SECOND)}")
        _rate_axis(axes)
        _time_axis(axes)
    return path


def times(path: Path, bins: Bins, queues: dict[str, dict[str, list[float]]], kind: str) -> Path:
    """Draws a panel for each queue, all with the same axes: median, range up to p95, p99 and maximum, by the time at
    which the wait or handling ended. kind: `waiting` or `handling`, the prefix of the columns."""
    columns = 1 if len(queues) == 1 else 2
    high = math.ceil(len(queues) / columns)
    with _drawing(0.7 + 2.0 * high, path) as figure:
        grid = figure.subplots(high, columns, sharex=True, sharey=True, squeeze=False)
        panels = list(grid.flat)
        at = bins.times(0.5)
        for axes, (name, found) in zip(panels, queues.items(), strict=False):
            _percentiles(axes, at, {rank: _drawable(found[f"{kind}_{rank}"]) for rank in ("p50", "p95", "p99", "max")})
            axes.set_title(short(name, 44))
            _time_axis(axes)
        _duration_axis(panels[0], queues, kind)
        for axes in panels[len(queues) :]:
            axes.set_visible(False)
        if len(queues) % columns:
            panels[len(queues) - columns].tick_params(labelbottom=True)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=len(labels))
    return path


def _percentiles(axes: Any, at: Sequence[Any], ranks: dict[str, list[float]]) -> None:
    lonely = {"marker": "o", "markersize": 2.2}  # a single bin has no line
    axes.fill_between(at, ranks["p50"], ranks["p95"], color="#0072b2", alpha=0.18, linewidth=0, label="p50 to p95")
    axes.plot(at, ranks["p50"], color="#0072b2", linewidth=1.8, label="p50", **lonely)
    axes.plot(at, ranks["p99"], color="#d55e00", linewidth=1.2, label="p99", **lonely)
    axes.plot(at, ranks["max"], color="#8a8f98", linewidth=0, marker=".", markersize=3, label="longest")


def _drawable(seconds: Sequence[float]) -> list[float]:
    return [max(value, _LEAST) if value == value else value for value in seconds]  # noqa: PLR0124 - NaN stays


def _stack(axes: Any, edges: Sequence[Any], stack: Stack, colours: Colours) -> None:
    """Draws layers in steps, the first at the bottom; the legend lists them from the top."""
    below = [0.0] * (len(edges) - 1)
    for name, counts in stack:
        above = [low + count for low, count in zip(below, counts, strict=True)]
        label = "all others" if name is None else short(name)
        axes.stairs(above, edges, baseline=below, fill=True, color=colours.of(name), linewidth=0, label=label)
        below = above
    _legend(axes, len(stack))


def _legend(axes: Any, count: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if count:
        axes.legend(handles[::-1], labels[::-1], fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _rate_axis(axes: Any) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5, min_n_ticks=3))
    axes.yaxis.set_major_formatter(FuncFormatter(_counted))
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)


def _counted(value: float, _: object) -> str:
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            size = 1e3 if unit == "k" else least
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _time_axis(axes: Any) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.margins(x=0.01)


def _duration_axis(axes: Any, queues: dict[str, dict[str, list[float]]], kind: str) -> None:
    """Makes a logarithmic axis with the marks of clocks. Shared axes follow the first one."""
    seen = [
        value
        for found in queues.values()
        for rank in ("p50", "max")
        for value in _drawable(found[f"{kind}_{rank}"])
        if not math.isnan(value)
    ]
    low, high = (min(seen), max(seen)) if seen else (0.1, 1.0)
    axes.set_yscale("log")
    axes.set_ylim(low / 1.5, high * 1.8)
    marks = [tick for tick in _TICKS if low / 1.5 <= tick <= high * 1.8]
    axes.yaxis.set_major_locator(FixedLocator(marks or [low, high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    for each in axes.figure.axes:
        each.grid(visible=True, axis="y")
