"""How a claim is cut: into partitions, one for each task, and these into slices that one document can carry.

Slice `part` of `parts` is a fixed range of positions, so slice i of n is exactly slices 2i and 2i + 1 of 2n. That is
how partitions are cut finer, and how a slice is that is too large for one answer. Numbers only, no server.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MOST = 1000
"""Messages of one slice: the protocol's bound."""

BYTES = 2 * 1024 * 1024
"""Bytes of one slice, on average: enough that asking costs little beside what comes, and a fraction of what one
document carries, so that a slice is seldom too large even where large messages stand together."""

PARTITION_MOST = 10_000
PARTITION_BYTES = 8 * BYTES
"""What a partition holds where numPartitions is not given: some tenths of a second of work."""

PARTITIONS = 16
"""The most there are of them then."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Part `part` of `parts` of a claim."""

    part: int
    parts: int

    def size(self, count: int) -> int:
        """How many of count messages it holds."""
        return count * (self.part + 1) // self.parts - count * self.part // self.parts

    def halves(self) -> tuple["Slice", "Slice"]:
        """The two slices that it consists of."""
        return Slice(2 * self.part, 2 * self.parts), Slice(2 * self.part + 1, 2 * self.parts)

    def cut(self, count: int, size: int) -> Iterator["Slice"]:
        """The slices that it is read in, in order: at most MOST messages each, and BYTES on average. count, size:
        messages and bytes of the whole claim."""
        own = self.size(count)
        share = size * own // count if count else 0
        pieces = max(min(max(-(-own // MOST), -(-share // BYTES)), own), 1)
        for piece in range(pieces):
            yield Slice(self.part * pieces + piece, self.parts * pieces)


def partitions(count: int, size: int, wanted: int | None) -> list[Slice]:
    """The partitions of a claim of count messages and size bytes. wanted: how many, None for as many as it is worth.

    Never more than there are messages, so none of them is empty.
    """
    parts = wanted or min(max(-(-count // PARTITION_MOST), -(-size // PARTITION_BYTES)), PARTITIONS)
    parts = min(max(parts, 1), count)
    return [Slice(part, parts) for part in range(parts)]
