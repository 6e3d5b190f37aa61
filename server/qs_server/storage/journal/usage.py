"""How many bytes of each segment are still needed, and with that, whether the oldest one is worth copying."""

SEGMENTS = 2
"""Segments that may be full of what is not needed any more."""

_GAIN = 32 << 10
"""Bytes that compaction has to free to be worth it on a full disk."""


class Usage:
    """The live bytes of each segment: those of the records whose payloads are needed."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.total = 0
        """Live bytes of all segments."""

    def add(self, place: int, size: int) -> None:
        """Counts a record whose payload is needed. size: bytes of the payload."""
        segment = place >> 32
        self.live[segment] = self.live.get(segment, 0) + size
        self.total += size

    def drop(self, place: int, size: int) -> None:
        """Counts a record whose payload is not needed any more."""
        self.live[place >> 32] -= size
        self.total -= size

    def forget(self, segment: int) -> None:
        """Forgets a segment that is removed."""
        self.total -= self.live.pop(segment, 0)

    def segments(self) -> set[int]:
        """The segments in which anything is needed."""
        return {segment for segment, size in self.live.items() if size}

    def wants_compaction(self, sizes: dict[int, int], *, tight: bool) -> bool:
        """Whether the oldest segment should go: it holds nothing that is needed, or more is dead than alive. sizes: of
        all segments, oldest first; the last one is being written. tight: the disk is full, and any gain is welcome."""
        if len(sizes) <= 1:
            return False
        if not self.live.get(next(iter(sizes))):
            return True
        size = sum(sizes.values())
        last = sizes[next(reversed(sizes))]
        if tight:
            return size - last > self.total + self.total // 8 + _GAIN
        return len(sizes) > SEGMENTS and size > 2 * self.total
