"""Remembers the ids of a queue's pages and when their messages become visible, so that few pages are read.

Another process that makes a message of a sealed page visible early logs the page in the head. If it is killed
before, the message is received when its window would have ended.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter

NEVER = 1 << 63
"""When a message becomes visible in a page in which none is hidden."""


class PageIndex:
    """The pages of one generation of a queue. For one thread at a time."""

    def __init__(self, first: int = 0, changes: int = 0) -> None:
        self._changes = changes
        self._sealed = range(first, first)
        self._due: dict[int, int] = {}  # when a message of a sealed page becomes visible; not there: maybe now
        self._lows: list[tuple[int, int]] = []  # pages, and what their ids are greater than; both ascending
        self.tail_due = NEVER

    def note_head(self, first: int, last: int, changes: int, log: Sequence[int]) -> None:
        if changes - self._changes > len(log):
            self._due.clear()
        for change in range(max(self._changes, changes - len(log)), changes):
            self._due.pop(log[change % len(log)], None)
        self._changes = changes
        for number in range(self._sealed.start, first):
            self._due.pop(number, None)
        self._sealed = range(first, last)
        del self._lows[: bisect_left(self._lows, (first,))]

    def note_due(self, number: int, due: int) -> None:
        if number in self._sealed:
            self._due[number] = due

    def candidates(self, now: int) -> Iterator[int]:
        """Yields the sealed pages that may have a visible message, ascending."""
        return (number for number in self._sealed if self._due.get(number, 0) <= now)

    def next_due(self) -> int:
        return min(self.tail_due, *self._due.values(), NEVER)

    def note_low(self, number: int, low: int) -> None:
        at = bisect_left(self._lows, (number,))
        if at == len(self._lows) or self._lows[at][0] != number:
            self._lows.insert(at, (number, low))

    def range_of(self, mid: int, last: int) -> tuple[int, int]:
        """Returns the first and the last page that may hold an id. last: the queue's last page."""
        at = bisect_left(self._lows, mid, key=itemgetter(1))
        lowest = self._lows[at - 1][0] if at else self._sealed.start
        highest = self._lows[at][0] - 1 if at < len(self._lows) else last
        return lowest, max(lowest, highest)
