"""Knows for each segment of which older ones it says something: it may not go before them.

A start without a checkpoint reads all segments. If a segment with a DELETE were gone and the one with the PUSH were
not, the message would come back.
"""

from collections.abc import Container, Iterable, Reversible


class Links:
    """What the segments of one log say of older ones."""

    def __init__(self) -> None:
        self.segment = 0
        """The segment that is written, or, at a start, read."""
        self.older: dict[int, set[int]] = {}
        """For each segment the older ones, some of which may be gone by now."""
        self.broad: set[int] = set()
        """The segments with records that may concern all older ones."""

    def note(self, place: int) -> None:
        """Notes that a record has just been appended, or read, about the message whose payload is at a place."""
        older = place >> 32
        if older != self.segment:
            self.older.setdefault(self.segment, set()).add(older)

    def note_all(self, places: Iterable[int | None]) -> None:
        """Notes the same of several messages."""
        older = {(place or 0) >> 32 for place in places}
        older.discard(self.segment)
        if older:
            self.older.setdefault(self.segment, set()).update(older)

    def widen(self) -> None:
        """Notes that a record has just been appended, or read, which may concern any older segment."""
        self.broad.add(self.segment)

    def is_free(self, segment: int, present: Container[int]) -> bool:
        """Tells whether no present segment has to go before this one. False if that is not known."""
        return segment not in self.broad and not any(older in present for older in self.older.get(segment, ()))

    def before(self, segment: int, present: Reversible[int]) -> list[int]:
        """Returns those of the present segments that have to go before this one, however indirectly, newest first.
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
        """Forgets a segment that is gone."""
        self.broad.discard(segment)
        self.older.pop(segment, None)

    def clear(self) -> None:
        """Forgets everything."""
        self.broad.clear()
        self.older.clear()
