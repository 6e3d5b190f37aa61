"""Keeps, for each segment, the older segments that its records are about: it must not be removed before them.

A start without a checkpoint reads all segments. If the one with a DELETE were removed before the one with the PUSH, the
message would come back.
"""

from collections.abc import Container, Iterable, Reversible


class Links:
    """The links from segments of one log to older ones."""

    def __init__(self) -> None:
        self.segment = 0
        """The segment that is being written or, at a start, read."""
        self.older: dict[int, set[int]] = {}
        """For each segment the older ones that its records are about; some may be removed by now."""
        self.broad: set[int] = set()
        """The segments with records that may be about any older one."""

    def note(self, place: int) -> None:
        """Notes a record, just appended or read, about the message whose payload is at a place."""
        older = place >> 32
        if older != self.segment:
            self.older.setdefault(self.segment, set()).add(older)

    def note_all(self, places: Iterable[int | None]) -> None:
        """Notes a record about several messages: see `note`."""
        older = {(place or 0) >> 32 for place in places}
        older.discard(self.segment)
        if older:
            self.older.setdefault(self.segment, set()).update(older)

    def widen(self) -> None:
        """Notes a record, just appended or read, that may be about any older segment."""
        self.broad.add(self.segment)

    def is_free(self, segment: int, present: Container[int]) -> bool:
        """Tells whether this segment can be removed before all present ones. False if that is not known."""
        return segment not in self.broad and not any(older in present for older in self.older.get(segment, ()))

    def before(self, segment: int, present: Reversible[int]) -> list[int]:
        """Returns the present segments that must be removed before this one, directly or indirectly, newest first.
        present: in increasing order."""
        found: list[int] = []
        waiting = set(self.older.get(segment, ()))
        everything = segment in self.broad
        for each in reversed(present):
            if each < segment and (everything or each in waiting):
                found.append(each)
                waiting.update(self.older.get(each, ()))
                everything = everything or each in self.broad
        return found

    def forget(self, segment: int) -> None:
        """Forgets a removed segment."""
        self.broad.discard(segment)
        self.older.pop(segment, None)

    def clear(self) -> None:
        """Forgets everything."""
        self.broad.clear()
        self.older.clear()
