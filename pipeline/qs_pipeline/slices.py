"""Cuts a claim into partitions, one for each task, and these into slices that fit one document.

Slice `part` of `parts` is a fixed range of positions, so slice i of n equals slices 2i and 2i + 1 of 2n. That is how
partitions, and slices that exceed one answer, are cut finer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MOST = 1000
"""Messages of a slice: the protocol's bound."""

BYTES = 2 * 1024 * 1024
"""Average bytes of a slice: enough to make requests cheap, and so far below a document's bound that a slice rarely
exceeds it, even where large messages stand together."""

PARTITION_MOST = 10_000
PARTITION_BYTES = 8 * BYTES
"""The size of a partition without numPartitions: some tenths of a second of work."""

PARTITIONS = 16
"""The most partitions without numPartitions."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Part `part` of `parts` of a claim."""

    part: int
    parts: int

    def size(self, count: int) -> int:
        """Returns how many of count messages it holds."""
        return count * (self.part + 1) // self.parts - count * self.part // self.parts

    def halves(self) -> tuple["Slice", "Slice"]:
        """Returns the two slices that it consists of."""
        return Slice(2 * self.part, 2 * self.parts), Slice(2 * self.part + 1, 2 * self.parts)

    def cut(self, count: int, size: int) -> Iterator["Slice"]:
        """Yields the slices in which it is read, in order: at most MOST messages each, and BYTES on average. count,
        size: messages and bytes of the whole claim."""
        own = self.size(count)
        share = size * own // count if count else 0
        pieces = max(min(max(-(-own // MOST), -(-share // BYTES)), own), 1)
        for piece in range(pieces):
            yield Slice(self.part * pieces + piece, self.parts * pieces)


def partitions(count: int, size: int, wanted: int | None) -> list[Slice]:
    """Returns the partitions of a claim of count messages and size bytes. wanted: how many, None for a suitable number.

    There are never more partitions than messages, so none is empty.
    """
    parts = wanted or min(max(-(-count // PARTITION_MOST), -(-size // PARTITION_BYTES)), PARTITIONS)
    parts = min(max(parts, 1), count)
    return [Slice(part, parts) for part in range(parts)]
