"""Counts which bytes of which segment are needed, and how many bytes records take."""

from ..log import pool
from ..log.places import SHIFT
from ..log.records import PUSH_SIZE, STATE_SIZE

_GAIN = 32 << 10
"""Bytes that compaction has to free to be worth it on a full disk."""


def record_size(size: int) -> int:
    """Returns the approximate bytes of a message's record. size: bytes of its payload."""
    return size + PUSH_SIZE


def reason_size(reason: str) -> int:
    """Returns the bytes of a REASON record, which is copied with its message."""
    return STATE_SIZE + len(reason.encode())


class Usage:
    """Counts the live bytes of each segment: those of records whose payloads are needed, and of keys."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.total = 0
        """Live bytes of all segments."""

    def add(self, place: int, size: int) -> None:
        """Counts a record as live. place: anywhere in its segment; size: its bytes."""
        segment = place >> SHIFT
        self.live[segment] = self.live.get(segment, 0) + size
        self.total += size

    def drop(self, place: int, size: int) -> None:
        """Counts a record as not live any more. place, size: see `add`."""
        self.live[place >> SHIFT] -= size
        self.total -= size

    def forget(self, segment: int) -> None:
        self.total -= self.live.pop(segment, 0)

    def empty(self, segment: int) -> None:
        """Counts nothing in a segment as live any more."""
        self.total -= self.live[segment]
        self.live[segment] = 0

    def clear(self) -> None:
        self.live.clear()
        self.total = 0

    def segments(self) -> set[int]:
        return {segment for segment, size in self.live.items() if size}

    def least(self, sealed: int, *, tight: bool) -> int:
        """Returns the live bytes below which the oldest segment should be removed. sealed: bytes of all segments but
        the last; tight: True on a full disk, where small gains count."""
        if tight:
            return (sealed - _GAIN) * 8 // 9
        # From 1.8 times the live bytes on. While the live bytes of a circle are copied, a third as much may be pushed:
        # so there are never more than 2.2 times.
        return sealed * 5 // 9 if sealed > pool.SMALL_LOG else 0
