"""Keeps the last ten minutes of each queue, and of all queues together, from figures that were asked for anyway.

Nothing is asked for the sake of the history: with no page open it stays empty, and the page uses no processor time.
Counters are taken as growing evenly between two samples, so a gap in which nobody looked shows as its average.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from qs_client import QueueInfo

WINDOW = 600.0
"""Seconds that are shown."""
BUCKETS = 60
"""Parts of the window, and points of a chart."""
_GAP = 5.0
"""The least seconds between two samples, except the last one: half of a part, so each part has one."""
_RECENT = 10.0
"""Seconds over which the current rate is measured."""
_MOST = 20_000
"""Queues that are kept. Each takes some 5 kB while it is busy."""
_ROW = 4
"""Numbers of a sample: time, pushed, done, depth. The samples of a queue are one flat array of doubles, which takes a
sixth of what tuples of floats would."""


@dataclass(frozen=True, slots=True)
class Point:
    """A part of the window: messages per second in and out, and messages at its end. None: nobody looked."""

    rate_in: float | None
    rate_out: float | None
    depth: float | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second in and out now, None while there is one sample only."""

    rate_in: float | None
    rate_out: float | None


Counters = tuple[float, float, float]
"""Messages pushed, messages done, and depth."""


def depth_of(info: QueueInfo) -> int:
    """Returns how many messages a queue holds."""
    return (info.ready or 0) + (info.in_flight or 0) + (info.delayed or 0)


def counters_of(info: QueueInfo) -> tuple[int, int, int]:
    """Returns the `Counters` of a queue. Done are messages that consumers deleted, that became dead letters, or that
    were too old."""
    return info.pushed or 0, (info.deleted or 0) + (info.dead or 0) + (info.retired or 0), depth_of(info)


class History:
    """Keeps samples of counters by name.

    1. The samples of a name are in order of time, at least 5 s apart except the last one, and reach back ten minutes.
    2. A counter that has become smaller begins a new history: a restarted server makes no negative rate.
    3. Memory is bounded: 20,000 names, and names that nobody has asked for in ten minutes are dropped.

    Assumes that times only grow.
    """

    def __init__(self) -> None:
        self._samples: dict[str, array[float]] = {}
        self._pruned = 0.0

    def observe_queues(self, now: float, queues: Iterable[QueueInfo]) -> None:
        """Adds the queue server's figures of queues to their histories."""
        for info in queues:
            self.observe(now, info.qid, counters_of(info))
        if now - self._pruned > WINDOW / BUCKETS:
            self._pruned = now
            for name in [name for name, rows in self._samples.items() if rows[-_ROW] < now - WINDOW]:
                del self._samples[name]

    def observe(self, now: float, name: str, counters: Counters) -> None:
        """Adds a sample. The sample replaces the last one if that one is less than 5 s after its predecessor, or if
        nothing has changed."""
        pushed, done, depth = counters
        rows = self._samples.get(name)
        if rows is None:
            if len(self._samples) < _MOST:  # beyond that, a queue has figures and no chart
                self._samples[name] = array("d", (now, pushed, done, depth))
            return
        if pushed < rows[-3] or done < rows[-2]:  # the queue server was started again, or the queue made again
            self._samples[name] = array("d", (now, pushed, done, depth))
            return
        # An idle queue keeps two samples, the ends of the time in which nothing happened.
        idle = rows[-3] == pushed and rows[-2] == done and rows[-1] == depth
        if len(rows) > _ROW and (now - rows[-2 * _ROW] < _GAP or (idle and rows[-_ROW + 1 :] == rows[-7:-4])):
            rows[-_ROW:] = array("d", (now, pushed, done, depth))
            return
        rows.extend((now, pushed, done, depth))
        while rows[_ROW] < now - WINDOW:  # one sample before the window stays: the line begins there
            del rows[:_ROW]

    def rates(self, name: str) -> Rates:
        """Returns the rates at the last sample."""
        rows = self._samples.get(name)
        if rows is None or len(rows) == _ROW:
            return Rates(None, None)
        now = rows[-_ROW]
        # From the last sample that is at least ten seconds old: a rate over two seconds would jump with each page.
        at = len(rows) - 2 * _ROW
        while at > 0 and rows[at] > now - _RECENT:
            at -= _ROW
        seconds = now - rows[at]
        if seconds <= 0:
            return Rates(None, None)
        return Rates((rows[-3] - rows[at + 1]) / seconds, (rows[-2] - rows[at + 2]) / seconds)

    def points(self, name: str, now: float) -> list[Point]:
        """Returns the window in 60 parts, the oldest first."""
        rows = self._samples.get(name)
        if rows is None:
            return [Point(None, None, None)] * BUCKETS
        step = WINDOW / BUCKETS
        points: list[Point] = []
        at = 0
        last: Counters | None = None
        for bucket in range(BUCKETS + 1):  # a rate takes two ends of a part, so there is one end more than parts
            time = now - WINDOW + bucket * step
            while at + _ROW < len(rows) and rows[at + _ROW] <= time:
                at += _ROW
            here = _counters_at(rows, at, time)
            if bucket and here is not None:
                rate_in, rate_out = (
                    (None, None) if last is None else ((here[0] - last[0]) / step, (here[1] - last[1]) / step)
                )
                points.append(Point(rate_in, rate_out, here[2]))
            elif bucket:
                points.append(Point(None, None, None))
            last = here
        return points


def _counters_at(rows: "array[float]", at: int, time: float) -> Counters | None:
    """Returns the counters at a time between the sample at index `at` and the next. None before the first sample."""
    if time < rows[at]:
        return None
    one = (rows[at + 1], rows[at + 2], rows[at + 3])
    if at + _ROW == len(rows):  # after the last sample nothing is known to have changed
        return one
    share = (time - rows[at]) / (rows[at + _ROW] - rows[at])
    two = (rows[at + _ROW + 1], rows[at + _ROW + 2], rows[at + _ROW + 3])
    return (
        one[0] + (two[0] - one[0]) * share,
        one[1] + (two[1] - one[1]) * share,
        one[2] + (two[2] - one[2]) * share,
    )


class Totals:
    """Sums the figures of all queues that a principal may see, and keeps the history of the sums. Principals see
    different queues, so each has its own."""

    def __init__(self) -> None:
        self.ready = self.in_flight = self.delayed = self.queues = self.paused = 0
        self._history = History()

    def observe(self, now: float, queues: Iterable[QueueInfo]) -> None:
        """Adds the sums of an answer. now: as for `History.observe`."""
        self.ready = self.in_flight = self.delayed = self.queues = self.paused = 0
        pushed = done = depth = 0
        for info in queues:
            self.queues += 1
            self.paused += bool(info.paused)
            self.ready += info.ready or 0
            self.in_flight += info.in_flight or 0
            self.delayed += info.delayed or 0
            counters = counters_of(info)
            pushed, done, depth = pushed + counters[0], done + counters[1], depth + counters[2]
        self._history.observe(now, "", (pushed, done, depth))

    def rates(self) -> Rates:
        """Returns the rates now."""
        return self._history.rates("")

    def points(self, now: float) -> list[Point]:
        """Returns the points of the last minutes, see `History.points`."""
        return self._history.points("", now)
