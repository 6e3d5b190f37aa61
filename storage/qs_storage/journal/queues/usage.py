"""Counts the bytes of each segment that are still needed, and tells when too many are not."""

from ..log.places import SHIFT

SEGMENTS = 2
"""A log of at most so many segments is not compacted, however few of its bytes are needed."""

_GAIN = 32 << 10
"""Bytes that compaction has to free to be worth it on a full disk."""


class Usage:
    """Counts the live bytes of each segment: those of records whose payloads are needed."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.total = 0
        """Live bytes of all segments."""
        self.emptied = 0
        """How often a segment other than `written` lost its last live record."""
        self.written = 0
        """The segment that `emptied` ignores: the last one known to be written to. It is emptied again and again while
        a queue is consumed as fast as it is filled."""

    def add(self, place: int, size: int) -> None:
        """Counts a record as live. place: anywhere in its segment; size: its bytes."""
        segment = place >> SHIFT
        self.live[segment] = self.live.get(segment, 0) + size
        self.total += size

    def drop(self, place: int, size: int) -> None:
        """Counts a record as not live any more. place, size: see `add`."""
        segment = place >> SHIFT
        left = self.live[segment] - size
        self.live[segment] = left
        self.total -= size
        if not left and segment != self.written:
            self.emptied += 1

    def forget(self, segment: int) -> None:
        self.total -= self.live.pop(segment, 0)

    def write_to(self, segment: int) -> None:
        """Sets `written`. The one before may have been emptied by now."""
        if segment != self.written:
            self.written = segment
            self.emptied += 1

    def segments(self) -> set[int]:
        return {segment for segment, size in self.live.items() if size}

    def gains(self, sizes: dict[int, int]) -> bool:
        """Tells whether an eighth of the oldest segment or more is dead. sizes: see `least`."""
        oldest = next(iter(sizes), 0)
        return len(sizes) > 1 and self.live.get(oldest, 0) <= sizes[oldest] // 8 * 7

    @staticmethod
    def least(sizes: dict[int, int], size: int, *, tight: bool) -> int:
        """Returns the live bytes below which a segment should be removed. sizes: of all segments, the one being written
        last; size: their sum; tight: True on a full disk, where small gains count."""
        if len(sizes) <= 1:
            return 0
        if tight:
            return (size - sizes[next(reversed(sizes))] - _GAIN) * 8 // 9
        return (size + 1) // 2 if len(sizes) > SEGMENTS else 0
