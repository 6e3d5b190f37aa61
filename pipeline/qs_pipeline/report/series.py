"""Series for plots: numbers by queue and time, from rows of the tables. Pure Python."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

Row = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
HOUR = 3600 * SECOND
WIDTHS = tuple(
    SECOND * seconds
    for seconds in (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 7 * 86_400, 28 * 86_400)
)
"""Widths of bins that are easy to read, in microseconds. Each is a multiple of those before it."""
_DEPTHS = 500
"""Points of a queue in the table of depths, at most."""
_POINTS = 120
"""Points of a plot, at most, unless it is drawn by the hour."""
_SHORT = 12 * HOUR
"""A shorter history is drawn in steps of less than an hour, to show more points."""


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Bins:
    """Consecutive equal spans of time. start, width: microseconds."""

    start: int
    width: int
    count: int

    def index(self, time: datetime) -> int:
        return (micros(time) - self.start) // self.width

    def times(self, offset: float = 0.0) -> list[datetime]:
        """Returns the start of each bin, shifted by `offset` bin widths."""
        return [
            EPOCH + timedelta(microseconds=self.start + round((at + offset) * self.width)) for at in range(self.count)
        ]


def bins_between(begin: int, end: int, most: int) -> Bins:
    """Returns the narrowest bins of which at most `most` cover all times from begin to end, in microseconds."""
    for width in WIDTHS:
        bins = bins_of(begin, end, width)
        if bins.count <= most:
            return bins
    # A history of many years: a multiple of the widest, so that at most `most` bins cover it wherever it begins.
    width = WIDTHS[-1] * math.ceil((end - begin + 1) / WIDTHS[-1] / (most - 1))
    return bins_of(begin, end, width)


def bins_of(begin: int, end: int, width: int) -> Bins:
    """Returns bins of that width, in microseconds, aligned to multiples of it."""
    start = begin - begin % width
    return Bins(start, width, (end - start) // width + 1)


def depth_bins(begin: int, end: int) -> Bins:
    """Returns the bins of the table of depths, for a history from begin to end, in microseconds."""
    return bins_between(begin, end, _DEPTHS)


def plot_bins(begin: int, end: int) -> Bins:
    """Returns the bins of the plots, at most an hour wide, for a history from begin to end, in microseconds."""
    return bins_between(begin, end, _POINTS) if end - begin < _SHORT else bins_of(begin, end, HOUR)


def leading(rows: Iterable[Row], most: int, weight: Callable[[Row], float]) -> list[str]:
    """Returns the queues with the greatest sums above 0, greatest first."""
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["queue"]] += weight(row)  # type: ignore[assignment]
    result = sorted((name for name, total in sums.items() if total > 0), key=lambda name: (-sums[name], name))
    return result[:most]


def peaks(rows: Iterable[Row], most: int) -> list[str]:
    """Returns the queues that were deepest at some time, deepest first."""
    highest: dict[str, int] = {}
    for row in rows:
        highest[row["queue"]] = max(row["depth"], highest.get(row["queue"], 0))
    result = sorted((name for name, depth in highest.items() if depth > 0), key=lambda name: (-highest[name], name))
    return result[:most]


Stack = list[tuple[str | None, list[float]]]
"""A layer for each queue, and last, if needed, one for all others with the name None."""


def stacked(rows: Iterable[Row], bins: Bins, names: Sequence[str], column: str, time: str) -> Stack:
    """Returns the column's numbers by queue and bin, 0 where there is no row."""
    layers = {name: [0.0] * bins.count for name in names}
    others = [0.0] * bins.count
    for row in rows:
        layers.get(row["queue"], others)[bins.index(row[time])] += row[column]
    return _stack(layers, others)


def levels(rows: Iterable[Row], bins: Bins, names: Sequence[str]) -> Stack:
    """Returns depths at the end of each bin, by queue; without a row, the depth stays. A row's time is the end of its
    bin; the rows of a queue are in order, and the first is the row of the start."""
    # Rows are as many as changes of depth, and may be many queues': only the layers are in memory.
    layers = {name: [0.0] * bins.count for name in names}
    others = [0.0] * bins.count
    now: dict[str, tuple[int, float]] = {}

    def hold(queue: str, until: int) -> None:
        begin, depth = now[queue]
        layer = layers.get(queue, others)
        for at in range(begin, until):
            layer[at] += depth

    for row in rows:
        queue, at = row["queue"], bins.index(row["time"]) - 1
        if queue in now:
            hold(queue, at)
        now[queue] = (max(at, 0), float(row["depth"]))
    for queue in now:
        hold(queue, bins.count)
    return _stack(layers, others)


def _stack(layers: dict[str, list[float]], others: list[float]) -> Stack:
    result: Stack = list(layers.items())
    return [*result, (None, others)] if any(others) else result


def totals(rows: Iterable[Row], bins: Bins, columns: Sequence[str], time: str) -> dict[str, list[float]]:
    """Returns the columns' numbers by bin, summed over all queues."""
    result = {column: [0.0] * bins.count for column in columns}
    for row in rows:
        at = bins.index(row[time])
        for column in columns:
            result[column][at] += row[column]
    return result


def lines(
    rows: Iterable[Row], bins: Bins, names: Sequence[str], columns: Sequence[str], time: str
) -> dict[str, dict[str, list[float]]]:
    """Returns for each of the queues the columns' numbers by bin, NaN for a bin without a row."""
    result: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for name in names:
        for column in columns:
            result[name][column] = [math.nan] * bins.count
    for row in rows:
        if row["queue"] in result:
            at = bins.index(row[time])
            for column in columns:
                if row[column] is not None:
                    result[row["queue"]][column][at] = row[column]
    return dict(result)
