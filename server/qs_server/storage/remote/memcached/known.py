"""What this process remembers of a queue's pages, so that it reads few of them: where ids are, and which pages may have
something to receive.

Another process may make a message of a sealed page visible sooner than was known here: it says so in the head's log.
If it is killed between the two, the message is received when its window would have ended.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator

from .layout import LOG, Head

NEVER = 1 << 63
"""The bound of a page in which nothing waits."""


class KnownPages:
    """Of one generation of a queue. Used by one thread at a time."""

    def __init__(self, head: Head) -> None:
        self.first = head.first
        self.end = head.first
        """The first page that is not known to be sealed. Each before it is in one of the following."""
        self._changes = head.changes
        self._to_look_at: list[int] = []  # heap of page numbers
        self._later: list[tuple[int, int]] = []  # heap of bounds with page numbers; those that have moved stay behind
        self._bounds: dict[int, int] = {}
        self._lows: list[int] = []  # ids below those of the pages in the next list, both ascending
        self._numbers: list[int] = []

    def notice(self, head: Head) -> None:
        """The head has been read."""
        if head.changes - self._changes > LOG:
            for number in list(self._bounds):
                self.look_again(number)
        else:
            for change in range(self._changes, head.changes):
                self.look_again(head.log[change % LOG])
        self._changes = head.changes
        for number in range(self.end, head.last):
            heapq.heappush(self._to_look_at, number)
        self.end = max(self.end, head.last)
        self._forget_before(head.first)

    def _forget_before(self, first: int) -> None:
        if first > self.first:
            for number in range(self.first, first):
                self._bounds.pop(number, None)
            gone = bisect_left(self._numbers, first)
            del self._numbers[:gone], self._lows[:gone]
            self.first = first

    # -- what may be received

    def look_again(self, number: int) -> None:
        """There may be something visible in a page."""
        if self._bounds.pop(number, None) is not None:
            heapq.heappush(self._to_look_at, number)

    def nothing_before(self, number: int, bound: int) -> None:
        """Nothing in a sealed page is visible before that time."""
        if self.first <= number < self.end:
            self._bounds[number] = bound
            if bound < NEVER:
                heapq.heappush(self._later, (bound, number))

    def first_candidate(self) -> int | None:
        """A page that is likely to be the first of the candidates."""
        return self._to_look_at[0] if self._to_look_at else None

    def candidates(self, now: int) -> Iterator[int]:
        """The sealed pages in which something may be visible, ascending. The caller says of each it has looked at in
        vain what its bound is, before it goes on."""
        while self._later and self._later[0][0] <= now:
            bound, number = heapq.heappop(self._later)
            if self._bounds.get(number) == bound:
                self.look_again(number)
        passed: list[int] = []
        try:
            while self._to_look_at:
                number = heapq.heappop(self._to_look_at)
                if number < self.first or number in self._bounds or (passed and passed[-1] == number):
                    continue
                passed.append(number)
                yield number
        finally:
            for number in passed:
                if number not in self._bounds:
                    heapq.heappush(self._to_look_at, number)

    def next_bound(self) -> int:
        """When something in a sealed page becomes visible, as far as is known; NEVER."""
        while self._later and self._bounds.get(self._later[0][1]) != self._later[0][0]:
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else NEVER

    # -- where ids are

    def note_low(self, number: int, low: int) -> None:
        """A page has been read; its ids are greater than low."""
        at = bisect_left(self._numbers, number)
        if at == len(self._numbers) or self._numbers[at] != number:
            self._numbers.insert(at, number)
            self._lows.insert(at, low)

    def range_of(self, mid: int, last: int) -> tuple[int, int]:
        """The first and the last page that may have an id. last: the last page there is."""
        at = bisect_left(self._lows, mid)
        lowest = self._numbers[at - 1] if at else self.first
        highest = self._numbers[at] - 1 if at < len(self._numbers) else last
        return lowest, max(lowest, highest)
