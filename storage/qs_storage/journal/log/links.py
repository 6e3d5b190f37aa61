"""Keeps, for each segment, the older segments that its records are about: it must not be removed before them.

A start without a checkpoint reads all segments: if a DELETE were removed before its PUSH, the message would come
back.
"""

from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush

from .places import SHIFT

MOST = 100
"""The most older segments that are noted for one; if there are more, it counts as `broad`. Bounds memory and time."""


class Links:
    """The links from segments of one log to older ones."""

    def __init__(self) -> None:
        self.segment = 0
        """The segment that is being written or, at a start, read."""
        self.older: dict[int, set[int]] = {}
        """For each segment the older ones that its records are about; after a start, only present ones."""
        self.broad: set[int] = set()
        """The segments with records that may be about any older one."""

    def note(self, place: int) -> None:
        """Notes a record, just appended or read, about the message whose payload is at a place."""
        older = place >> SHIFT
        if older != self.segment and older not in self.older.get(self.segment, ()):
            self._add((older,))

    def note_all(self, places: Iterable[int | None]) -> None:
        """Notes a record about several messages: see `note`."""
        older = {(place or 0) >> SHIFT for place in places}
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
        """Notes a record, just appended or read, that may be about any older segment."""
        self.broad.add(self.segment)
        self.older.pop(self.segment, None)

    def is_free(self, segment: int) -> bool:
        """Tells whether no other segment must be removed before this one. False if that is not known."""
        return not self.older.get(segment) and segment not in self.broad

    def before(self, segment: int) -> list[int] | None:
        """Returns the segments that must be removed before this one, directly or indirectly, newest first. None if
        these are all older ones, or more than `MOST`."""
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
        """Yields (segment, older segment) for each link. Links noted meanwhile may be left out."""
        for segment in list(self.older):
            for older in sorted(self.older.get(segment, ())):
                yield segment, older

    def forget(self, segment: int) -> None:
        self.broad.discard(segment)
        self.older.pop(segment, None)
        for each in [each for each, older in self.older.items() if segment in older]:
            older = self.older[each]
            older.discard(segment)
            if not older:
                del self.older[each]

    def keep(self, present: Container[int]) -> None:
        """Forgets all segments that are not present."""
        self.broad = {each for each in self.broad if each in present}
        self.older = {
            each: kept
            for each, older in self.older.items()
            if each in present and (kept := {one for one in older if one in present})
        }

    def clear(self) -> None:
        self.broad.clear()
        self.older.clear()
