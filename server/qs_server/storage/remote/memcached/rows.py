"""The messages of a page in columns, so that changing one message does not look at the others."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

TOKEN = 12
ROW = 8 + 8 + 4 + 4 + 1 + TOKEN
"""Bytes of a message in a page."""


class Entry(NamedTuple):
    """A message in a page. visible_at: 0 when it is visible; size: bytes of payload; token: 12 bytes that name the
    payload's items."""

    mid: int
    visible_at: int
    receives: int
    size: int
    delayed: bool
    token: bytes


class Rows:
    """The messages of a page, which the caller keeps in the order of their ids."""

    __slots__ = ("_tokens", "delayed", "mids", "receives", "sizes", "visible_at")

    def __init__(self) -> None:
        self.mids = array("Q")
        self.visible_at = array("Q")
        self.receives = array("I")
        self.sizes = array("I")
        self.delayed = bytearray()
        self._tokens = bytearray()

    def encode(self) -> bytes:
        """Returns one column after the other, numbers in little-endian order."""
        numbers = [_little(column).tobytes() for column in (self.mids, self.visible_at, self.receives, self.sizes)]
        return b"".join([*numbers, self.delayed, self._tokens])

    @staticmethod
    def decode(data: memoryview, count: int) -> "Rows":
        """Reads so many messages from the beginning of what `encode` returned."""
        rows = Rows()
        start = 0
        for column in (rows.mids, rows.visible_at, rows.receives, rows.sizes):
            end = start + count * column.itemsize
            column.frombytes(data[start:end])
            start = end
            if sys.byteorder == "big":
                column.byteswap()
        rows.delayed = bytearray(data[start : start + count])
        rows._tokens = bytearray(data[start + count : start + count + count * TOKEN])
        return rows

    def __len__(self) -> int:
        return len(self.mids)

    def __getitem__(self, index: int) -> Entry:
        return Entry(
            self.mids[index],
            self.visible_at[index],
            self.receives[index],
            self.sizes[index],
            bool(self.delayed[index]),
            bytes(self._tokens[index * TOKEN : (index + 1) * TOKEN]),
        )

    def __iter__(self) -> Iterator[Entry]:
        return map(self.__getitem__, range(len(self.mids)))

    def __setitem__(self, index: int, entry: Entry) -> None:
        self.mids[index], self.visible_at[index], self.receives[index], self.sizes[index] = entry[:4]
        self.delayed[index] = entry.delayed
        self._tokens[index * TOKEN : (index + 1) * TOKEN] = entry.token

    def __delitem__(self, index: int) -> None:
        for column in (self.mids, self.visible_at, self.receives, self.sizes, self.delayed):
            del column[index]
        del self._tokens[index * TOKEN : (index + 1) * TOKEN]

    def find(self, mid: int) -> int | None:
        """Returns the index of a message, None if it is not here."""
        index = bisect_left(self.mids, mid)
        return index if index < len(self.mids) and self.mids[index] == mid else None

    def insert(self, entry: Entry) -> None:
        """Adds a message at the place of its id."""
        index = bisect_left(self.mids, entry.mid)
        self.mids.insert(index, entry.mid)
        self.visible_at.insert(index, entry.visible_at)
        self.receives.insert(index, entry.receives)
        self.sizes.insert(index, entry.size)
        self.delayed.insert(index, entry.delayed)
        self._tokens[index * TOKEN : index * TOKEN] = entry.token


def _little(column: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
