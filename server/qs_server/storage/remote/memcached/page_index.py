"""What this process remembers of a queue's pages, so that it reads few of them: which ids are in which page, and in
which pages a message may be visible.

Another process may make a message of a sealed page visible sooner than is known here. It writes the page's number to
the head's log. If it is killed between the two steps, the message is received when its window would have ended.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter

NEVER = 1 << 63
"""When a message becomes visible in a page in which none is hidden."""


class PageIndex:
    """Remembers the pages of one generation of a queue. One thread at a time may use it."""

    def __init__(self, first: int = 0, changes: int = 0) -> None:
        """first, changes: of the queue's head."""
        self._first = first
        self._end = first
        """The last page: those before it are sealed. Each of them is in one of the two following."""
        self._candidates: list[int] = []  # heap of page numbers
        self._due: dict[int, int] = {}  # when a message of a page becomes visible
        self._by_due: list[tuple[int, int]] = []  # heap of the same; those that have changed stay in it
        self._changes = changes
        self._lows: list[tuple[int, int]] = []  # pages, and what their ids are greater than; both ascending
        self.tail_due = NEVER
        """When a message of the last page becomes visible, as of the last look at it."""

    def note_head(self, first: int, last: int, changes: int, log: Sequence[int]) -> None:
        """Takes in a head that was read."""
        if changes - self._changes > len(log):
            for number in list(self._due):
                self._add_candidate(number)
        else:
            for change in range(self._changes, changes):
                self._add_candidate(log[change % len(log)])
        self._changes = changes
        for number in range(self._end, last):
            heapq.heappush(self._candidates, number)
        self._end = max(self._end, last)
        if first > self._first:
            for number in range(self._first, first):
                self._due.pop(number, None)
            del self._lows[: bisect_left(self._lows, (first,))]
            self._first = first

    # -- which pages may have a visible message

    def _add_candidate(self, number: int) -> None:
        if self._due.pop(number, None) is not None:
            heapq.heappush(self._candidates, number)

    def note_due(self, number: int, due: int, now: int) -> None:
        """Takes in when the first message of a sealed page becomes visible: at `now` or earlier, one is."""
        if due <= now:
            self._add_candidate(number)
        elif self._first <= number < self._end:
            self._due[number] = due
            if due < NEVER:
                heapq.heappush(self._by_due, (due, number))

    def first_candidate(self) -> int | None:
        """Returns a page that is likely to be the first of the candidates."""
        return self._candidates[0] if self._candidates else None

    def candidates(self, now: int) -> Iterator[int]:
        """Yields the sealed pages in which a message may be visible, ascending. The caller notes the due time of each
        that has none before it goes on."""
        while self._by_due and self._by_due[0][0] <= now:
            due, number = heapq.heappop(self._by_due)
            if self._due.get(number) == due:
                self._add_candidate(number)
        passed: list[int] = []
        try:
            while self._candidates:
                number = heapq.heappop(self._candidates)
                if number < self._first or number in self._due or (passed and passed[-1] == number):
                    continue
                passed.append(number)
                yield number
        finally:
            for number in passed:
                if number not in self._due:
                    heapq.heappush(self._candidates, number)

    def next_due(self) -> int:
        """Returns when the next message becomes visible, as far as is known; NEVER."""
        while self._by_due and self._due.get(self._by_due[0][1]) != self._by_due[0][0]:
            heapq.heappop(self._by_due)
        return min(self.tail_due, self._by_due[0][0] if self._by_due else NEVER)

    # -- in which page an id is

    def note_low(self, number: int, low: int) -> None:
        """Takes in that the ids of a page are greater than low."""
        at = bisect_left(self._lows, (number,))
        if at == len(self._lows) or self._lows[at][0] != number:
            self._lows.insert(at, (number, low))

    def range_of(self, mid: int, last: int) -> tuple[int, int]:
        """Returns the first and the last page in which an id may be. last: the queue's last page."""
        at = bisect_left(self._lows, mid, key=itemgetter(1))
        lowest = self._lows[at - 1][0] if at else self._first
        highest = self._lows[at][0] - 1 if at < len(self._lows) else last
        return lowest, max(lowest, highest)
