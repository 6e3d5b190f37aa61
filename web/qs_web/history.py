"""What the queues did in the last minutes, from the figures that pages and scrapes have asked for anyway.

Nothing is asked for the sake of the history: with no page open it stays empty. Counters are taken as growing evenly
between two samples, so a gap in which nobody looked shows as its average.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from qs_client import QueueInfo

WINDOW = 600.0
"""Seconds that are shown."""
BUCKETS = 60
"""Parts of the window."""
_GAP = 5.0
"""Seconds between two samples that are kept."""
_MOST = 20_000
"""Queues that are kept."""
_ROW = 4
"""Numbers of a row: number of the sample, pushed, done, depth."""
_RECENT = 10.0
"""Seconds over which the current rate is measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """A part of the window. rate_in, rate_out: messages per second; depth: messages at its end. None: nobody looked."""

    rate_in: float | None
    rate_out: float | None
    depth: float | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second now, None while there is one sample only."""

    rate_in: float | None
    rate_out: float | None


def depth_of(info: QueueInfo) -> int:
    """Returns how many messages a queue holds."""
    return (info.ready or 0) + (info.in_flight or 0) + (info.delayed or 0)


def figures_of(info: QueueInfo) -> tuple[int, int, int]:
    """Returns pushed, done and depth of a queue. Done: deleted by consumers, moved to a dead-letter queue, or too
    old."""
    return info.pushed or 0, (info.deleted or 0) + (info.dead or 0) + (info.retired or 0), depth_of(info)


class History:
    """Samples of counters by name. A row is kept where the numbers have changed."""

    def __init__(self) -> None:
        self._first = 0  # the number of the first sample in _times
        self._times: list[float] = []
        self._rows: dict[str, array[int]] = {}

    def observe(self, now: float, figures: Iterable[tuple[str, tuple[int, int, int]]]) -> None:
        """Adds a sample, unless the last one is younger than 5 s. now: seconds on a clock that only grows; figures: by
        name, as `figures_of` returns them."""
        if self._times and now - self._times[-1] < _GAP:
            return
        self._forget(now - WINDOW - _GAP)
        number = self._first + len(self._times)
        self._times.append(now)
        kept: dict[str, array[int]] = {}
        for name, (pushed, done, depth) in figures:
            rows = self._rows.get(name)
            if rows is None or pushed < rows[-3] or done < rows[-2]:  # new, or counted from 0 again
                if len(kept) >= _MOST:
                    continue
                rows = array("q", (number, pushed, done, depth))
            elif rows[-3] != pushed or rows[-2] != done or rows[-1] != depth:
                rows.extend((number, pushed, done, depth))
            kept[name] = rows
        self._rows = kept

    def _forget(self, before: float) -> None:
        """Drops old samples, and the rows that nothing is drawn from any more."""
        old = bisect_right(self._times, before)
        if not old:
            return
        del self._times[:old]
        self._first += old
        for rows in self._rows.values():
            while len(rows) > _ROW and rows[_ROW] <= self._first:
                del rows[:_ROW]

    def rates(self, name: str, now: float, current: tuple[int, int, int]) -> Rates:
        """Returns the rates now. current: the figures now."""
        rows = self._rows.get(name)
        if rows is None or current[0] < rows[-3] or current[1] < rows[-2]:
            return Rates(None, None)
        at = max(bisect_right(self._times, now - _RECENT) - 1, rows[0] - self._first, 0)
        seconds = now - self._times[at]
        if seconds <= 0:
            return Rates(None, None)
        pushed, done, _ = self._at(rows, at)
        return Rates((current[0] - pushed) / seconds, (current[1] - done) / seconds)

    def _at(self, rows: "array[int]", sample: int) -> tuple[int, int, int]:
        """Returns the figures at a sample, given by its place in _times."""
        number = self._first + sample
        at = len(rows) - _ROW
        while at > 0 and rows[at] > number:
            at -= _ROW
        return rows[at + 1], rows[at + 2], rows[at + 3]

    def points(self, name: str, now: float, current: tuple[int, int, int]) -> list[Point]:
        """Returns the window in 60 parts, the oldest first. now, current: the figures now, which are drawn too."""
        rows = self._rows.get(name)
        if rows is None or current[0] < rows[-3] or current[1] < rows[-2]:
            return [Point(None, None, None)] * BUCKETS
        begin = max(rows[0] - self._first, 0)
        times = [*self._times[begin:], now]
        figures = [*self._walk(rows, begin), current]
        return _divide(times, figures, now)

    def _walk(self, rows: "array[int]", begin: int) -> list[tuple[int, int, int]]:
        """Returns the figures at each sample from one on."""
        found = []
        at = 0
        for number in range(self._first + begin, self._first + len(self._times)):
            while at + _ROW < len(rows) and rows[at + _ROW] <= number:
                at += _ROW
            found.append((rows[at + 1], rows[at + 2], rows[at + 3]))
        return found


def _divide(times: list[float], figures: list[tuple[int, int, int]], now: float) -> list[Point]:
    """Divides the window into parts."""
    step = WINDOW / BUCKETS
    points = []
    at = 0
    last: tuple[float, float, float] | None = None
    for bucket in range(BUCKETS + 1):
        time = now - WINDOW + bucket * step
        while at + 1 < len(times) and times[at + 1] <= time:
            at += 1
        here = _between(times, figures, at, time)
        if bucket:
            points.append(
                Point(None, None, None if here is None else here[2])
                if last is None or here is None
                else Point((here[0] - last[0]) / step, (here[1] - last[1]) / step, here[2])
            )
        last = here
    return points


def _between(
    times: list[float], figures: list[tuple[int, int, int]], at: int, time: float
) -> tuple[float, float, float] | None:
    """Returns the figures at a time: between the samples at and at + 1. None before the first one."""
    if time < times[at]:
        return None
    if at + 1 == len(times) or times[at + 1] <= times[at]:
        return figures[at]
    share = (time - times[at]) / (times[at + 1] - times[at])
    one, two = figures[at], figures[at + 1]
    return (
        one[0] + (two[0] - one[0]) * share,
        one[1] + (two[1] - one[1]) * share,
        one[2] + (two[2] - one[2]) * share,
    )
