"""The messages of a page in columns, so that changing one message does not look at the others."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

_TOKEN = 12
ROW = 8 + 8 + 4 + 4 + 1 + _TOKEN
"""Bytes of a message in a page."""


class Entry(NamedTuple):
    """visible_at: 0 when it is visible; size: bytes of payload; token: 12 bytes that name the payload's items."""

    mid: int
    visible_at: int
    receives: int
    size: int
    delayed: bool
    token: bytes


class Rows:
    """A column for each field of Entry, by id."""

    __slots__ = ("_columns", "delayed", "mids", "receives", "sizes", "visible_at")

    def __init__(self, columns: tuple[Any, ...] | None = None) -> None:
        self._columns = columns or (array("Q"), array("Q"), array("I"), array("I"), bytearray(), [])
        self.mids, self.visible_at, self.receives, self.sizes, self.delayed, _ = self._columns

    def encode(self) -> bytes:
        *numbers, delayed, tokens = self._columns
        return b"".join([*(_little_endian(column).tobytes() for column in numbers), delayed, *tokens])

    @staticmethod
    def decode(data: memoryview, count: int) -> "Rows":
        columns: list[Any] = []
        for typecode in "QQII":
            column = array(typecode)
            size = count * column.itemsize
            column.frombytes(data[:size])
            columns.append(_little_endian(column))
            data = data[size:]
        columns.append(bytearray(data[:count]))
        tokens = bytes(data[count : count + count * _TOKEN])
        columns.append([tokens[start : start + _TOKEN] for start in range(0, len(tokens), _TOKEN)])
        return Rows(tuple(columns))

    def __len__(self) -> int:
        return len(self.mids)

    def __getitem__(self, index: int) -> Entry:
        return Entry(*[column[index] for column in self._columns])

    def __iter__(self) -> Iterator[Entry]:
        return map(Entry._make, zip(*self._columns, strict=True))

    def __setitem__(self, index: int, entry: Entry) -> None:
        for column, value in zip(self._columns, entry, strict=True):
            column[index] = value

    def __delitem__(self, index: int) -> None:
        for column in self._columns:
            del column[index]

    def find(self, mid: int) -> int | None:
        index = bisect_left(self.mids, mid)
        return index if index < len(self.mids) and self.mids[index] == mid else None

    def insert(self, entry: Entry) -> None:
        index = bisect_left(self.mids, entry.mid)
        for column, value in zip(self._columns, entry, strict=True):
            column.insert(index, value)


def _little_endian(column: "array[int]") -> "array[int]":
    """Swaps the bytes of a copy on a big-endian machine, in either direction."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
