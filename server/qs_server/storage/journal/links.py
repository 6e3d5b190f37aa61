"""Knows for each segment of which older ones it says something: it may not go before them.

A start without a checkpoint reads all segments. If a segment with a DELETE were gone and the one with the PUSH were
not, the message would come back.
"""

from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush

MOST = 100
"""Older segments that are noted of one; if it says something of more, they count as all. A bound on memory and time:
one that is in so many others' way is hardly the one to copy."""


class Links:
    """What the segments of one log say of older ones."""

    def __init__(self) -> None:
        self.segment = 0
        """The segment that is written, or, at a start, read."""
        self.older: dict[int, set[int]] = {}
        """For each segment the older ones of which it says something. Once a start is over: those that are there."""
        self.broad: set[int] = set()
        """The segments with records that may concern all older ones."""

    def note(self, place: int) -> None:
        """Notes that a record has just been appended, or read, about the message whose payload is at a place."""
        older = place >> 32
        if older != self.segment and older not in self.older.get(self.segment, ()):
            self._add((older,))

    def note_all(self, places: Iterable[int | None]) -> None:
        """Notes the same of several messages."""
        older = {(place or 0) >> 32 for place in places}
        older.discard(self.segment)
        if older:
            self._add(older)

    def _add(self, older: Iterable[int]) -> None:
        if self.segment not in self.broad:
            known = self.older.setdefault(self.segment, set())
            known.update(older)
            known.discard(0)  # no segment has this number
            if len(known) > MOST:
                self.widen()

    def widen(self) -> None:
        """Notes that a record has just been appended, or read, which may concern any older segment."""
        self.broad.add(self.segment)
        self.older.pop(self.segment, None)

    def is_free(self, segment: int) -> bool:
        """Tells whether no other segment has to go before this one. False if that is not known."""
        return not self.older.get(segment) and segment not in self.broad

    def before(self, segment: int) -> list[int] | None:
        """Returns those that have to go before this segment, however indirectly, newest first. None: they are all older
        ones, or more than `MOST`."""
        found: list[int] = []
        waiting: list[int] = []  # a heap of negative numbers: the newest segment is the first
        known: set[int] = set()
        while segment not in self.broad:
            new = self.older.get(segment, set()) - known
            known |= new
            if len(known) > MOST:
                return None
            for each in new:
                heappush(waiting, -each)
            if not waiting:
                return found
            segment = -heappop(waiting)
            found.append(segment)
        return None

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yields each segment with each older one. What is noted meanwhile may be left out."""
        for segment in list(self.older):
            for older in sorted(self.older.get(segment, ())):
                yield segment, older

    def forget(self, segment: int) -> None:
        """Forgets a segment that is gone."""
        self.broad.discard(segment)
        self.older.pop(segment, None)
        for each in [each for each, older in self.older.items() if segment in older]:
            older = self.older[each]
            older.discard(segment)
            if not older:
                del self.older[each]

    def keep(self, present: Container[int]) -> None:
        """Forgets all other segments than these."""
        self.broad = {each for each in self.broad if each in present}
        self.older = {
            each: kept
            for each, older in self.older.items()
            if each in present and (kept := {one for one in older if one in present})
        }

    def clear(self) -> None:
        """Forgets everything."""
        self.broad.clear()
        self.older.clear()
