"""The messages of a page, as columns: so that a change of one of them does not look at the others."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

TOKEN = 12
ROW = 8 + 8 + 4 + 4 + 1 + TOKEN
"""Bytes of a message."""


class Entry(NamedTuple):
    """A message in a page. visible_at: 0 when it is visible; size: bytes of payload; token: 12 bytes, names that."""

    mid: int
    visible_at: int
    receives: int
    size: int
    delayed: bool
    token: bytes


class Rows:
    """Messages in the order of their ids, which is the caller's to keep."""

    __slots__ = ("_tokens", "delayed", "mids", "receives", "sizes", "visible_at")

    def __init__(self) -> None:
        self.mids = array("Q")
        self.visible_at = array("Q")
        self.receives = array("I")
        self.sizes = array("I")
        self.delayed = bytearray()
        self._tokens = bytearray()

    def encode(self) -> bytes:
        """One column after the other, numbers with their lowest byte first."""
        numbers = [_little(column).tobytes() for column in (self.mids, self.visible_at, self.receives, self.sizes)]
        return b"".join([*numbers, self.delayed, self._tokens])

    @staticmethod
    def decode(data: memoryview, count: int) -> "Rows":
        """data: begins with what `encode` gave for so many messages."""
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

    def place(self, mid: int) -> int:
        """The index of an id, or that at which it belongs."""
        return bisect_left(self.mids, mid)

    def insert(self, entry: Entry) -> None:
        """A message more."""
        index = self.place(entry.mid)
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
