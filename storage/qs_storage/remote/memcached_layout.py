"""The layout of queues in memcached: the keys, and the two records that make a queue, as bytes.

    NAMESPACE:QUEUE:h              head: which pages there are
    NAMESPACE:QUEUE:GENERATION:pN  page N: some messages in the order of their ids, each with its state
    NAMESPACE:QUEUE:GENERATION:n   the number of messages, of queues with a capacity
    NAMESPACE:QUEUE:GENERATION:kD  the key of a push: which message it stands for
    NAMESPACE:QUEUE:mTOKEN[.C]     a payload with its headers in front of it, or its chunk C

Heads and pages are changed by compare-and-swap only, payloads never. A page keeps its size when its messages change, so
that memcached stores the new page in the slab class in which it frees the old one.
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..engine import NoSuchMessageError, Receipt, RemoteError, StaleReceiptError, State

_TOKEN = 12
ROW = 8 + 8 + 4 + 4 + 1 + _TOKEN
"""Bytes of a message in a page."""
PAGE = 200
"""Messages a page, some 7 KiB: each change of a message writes its page."""
_SLOTS = (0, PAGE, 1_200, 5_000, 20_000)
"""Sizes of pages, in messages. A list goes into one page; 20,000 are 740,000 bytes, and an item has at most 1 MiB."""
MOST = _SLOTS[-1]
LOG = 32
"""Page numbers in a head's log."""

OPEN, SEALED, RETIRED = range(3)
"""OPEN: the last page, which takes pushes; SEALED: takes none; RETIRED: empty, and no longer part of the queue."""

_HEAD = struct.Struct(f">2s6sQQQ{LOG}Q")
_PAGE = struct.Struct(">2sBqq8sII")
_HEAD_MAGIC = b"h1"
_PAGE_MAGIC = b"p1"
_OTHER_DATA = "memcached holds something else under a key of the queue: choose another namespace"


class ItemKeys:
    """The names of a queue's items in memcached. The names of pages contain the queue's generation, so that a queue
    which is made anew never reads pages of the old one."""

    def __init__(self, prefix: str) -> None:
        """prefix: `NAMESPACE:QUEUE`, at most 161 bytes."""
        self._prefix = prefix
        self.head = f"{prefix}:h"

    def page(self, generation: bytes, number: int) -> str:
        return f"{self._prefix}:{generation.hex()}:p{number}"

    def count(self, generation: bytes) -> str:
        return f"{self._prefix}:{generation.hex()}:n"

    def push_key(self, generation: bytes, digest: bytes) -> str:
        """Names the key of a push, by its digest."""
        return f"{self._prefix}:{generation.hex()}:k{digest.hex()}"

    def chunk(self, token: bytes, chunk: int) -> str:
        return f"{self._prefix}:m{token.hex()}" + (f".{chunk}" if chunk else "")


@dataclass(slots=True)
class Head:
    """The pages of a queue, from first to last. log: a ring of the pages with messages that became visible early."""

    generation: bytes
    first: int = 0
    last: int = 0
    changes: int = 0
    log: list[int] = field(default_factory=lambda: [0] * LOG)

    def encode(self) -> bytes:
        return _HEAD.pack(_HEAD_MAGIC, self.generation, self.first, self.last, self.changes, *self.log)

    @staticmethod
    def decode(data: bytes) -> "Head":
        if len(data) != _HEAD.size or not data.startswith(_HEAD_MAGIC):
            raise RemoteError(_OTHER_DATA)
        _, generation, first, last, changes, *log = _HEAD.unpack(data)
        return Head(generation, first, last, changes, log)


class Entry(NamedTuple):
    """A message in a page. visible_at: 0 for a visible message; size: the bytes of its payload, with headers; token: 12
    bytes that name the payload's items."""

    mid: int
    visible_at: int
    receives: int
    size: int
    delayed: bool
    token: bytes

    @property
    def status(self) -> str:
        if not self.visible_at:
            return "ready"
        return "delayed" if self.delayed else "in-flight"

    def is_in(self, state: State) -> bool:
        return not self.receives if state is State.NEW else self.status == state.value


class Rows:
    """The messages of a page by id, in a column for each field of Entry: changing one does not look at the others."""

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
        # A page is in the order of its ids.
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


@dataclass(slots=True)
class Page:
    """Messages with ids over low. last: the greatest id ever in the page, or low; stamp: identifies the write, for a
    writer that lost the answer; slots: the number of messages that the page's size is made for; changed: True if the
    page has to be written."""

    low: int
    last: int
    state: int = OPEN
    stamp: bytes = bytes(8)
    slots: int = 0
    entries: Rows = field(default_factory=Rows)
    changed: bool = False

    def encode(self) -> bytes:
        count = len(self.entries)
        # A sealed page only gets emptier: once empty it needs no room.
        if self.state != OPEN and not count:
            self.slots = 0
        # It keeps its size: memcached takes the room of the new item from the class in which it frees the old one.
        self.slots = max(self.slots, next(slots for slots in _SLOTS if slots >= count))
        head = _PAGE.pack(_PAGE_MAGIC, self.state, self.low, self.last, self.stamp, self.slots, count)
        return b"".join([head, self.entries.encode(), bytes((self.slots - count) * ROW)])

    @staticmethod
    def decode(data: bytes) -> "Page":
        if len(data) < _PAGE.size or not data.startswith(_PAGE_MAGIC):
            raise RemoteError(_OTHER_DATA)
        _, state, low, last, stamp, slots, count = _PAGE.unpack_from(data)
        return Page(low, last, state, stamp, slots, Rows.decode(memoryview(data)[_PAGE.size :], count))

    def find(self, qid: str, receipt: Receipt) -> int:
        """Returns the index of the message that a receipt names. NoSuchMessageError, StaleReceiptError."""
        index = self.entries.find(receipt.mid)
        if index is None:
            raise no_such_message(qid, receipt.mid)
        receives = self.entries.receives[index]
        if receipt.receives is not None and receives != receipt.receives:
            raise StaleReceiptError(
                f"message {receipt.mid} of queue {qid!r} has been received {receives} times by now, "
                f"not {receipt.receives}"
            )
        return index

    def put(self, index: int, entry: Entry) -> None:
        self.entries[index] = entry
        self.changed = True

    def insert(self, entry: Entry) -> None:
        self.entries.insert(entry)
        self.last = max(self.last, entry.mid)
        self.changed = True

    def remove(self, mids: Iterable[int]) -> list[Entry]:
        """Removes messages. Returns those that were in the page."""
        indexes = [index for mid in mids if (index := self.entries.find(mid)) is not None]
        removed = [self.entries[index] for index in indexes]
        for index in sorted(indexes, reverse=True):
            del self.entries[index]
        self.changed = self.changed or bool(removed)
        return removed

    def expire(self, now: int) -> int:
        """Ends windows and delays that are due, in memory only. Returns the number of windows ended."""
        rows, ended = self.entries, 0
        for index, visible_at in enumerate(rows.visible_at):
            if 0 < visible_at <= now:
                ended += not rows.delayed[index]
                rows.visible_at[index] = rows.delayed[index] = 0
        return ended


def no_such_message(qid: str, mid: int) -> NoSuchMessageError:
    return NoSuchMessageError(f"queue {qid!r} holds no message {mid}")
