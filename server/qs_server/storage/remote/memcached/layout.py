"""What stands in memcached under which key: names of keys, and the two records that make a queue, as bytes.

    NAMESPACE:QUEUE:h              head: which pages there are
    NAMESPACE:QUEUE:GENERATION:pN  page N: some messages in the order of their ids, each with its state
    NAMESPACE:QUEUE:GENERATION:n   how many messages there are; of queues with a capacity
    NAMESPACE:QUEUE:GENERATION:kD  a key of a push: which message it stands for
    NAMESPACE:QUEUE:mTOKEN[.C]     a payload, or its chunk C

Heads and pages are changed by compare-and-swap only, payloads never. A page keeps its size when what it holds changes:
memcached then takes the room for the new one from the same slab class in which it frees the old one.
"""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from ...engine import NoSuchMessageError, Receipt, StaleReceiptError, UnsupportedError
from ...names import directory_of
from ..engine import RemoteError
from .rows import ROW, Entry, Rows

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_LONGEST = 120
"""Bytes of a queue's name in keys, which have 250 at most."""

PAGE = 200
"""Messages after which another page is begun: some 7 KiB that each change of one of them writes."""
_SLOTS = (0, PAGE, 1_200, 5_000, 20_000)
"""How many messages a page has room for. A list is in one page, so that one swap makes all of it visible. The largest
is 740,000 bytes; memcached takes items up to 1 MiB."""
MOST = _SLOTS[-1]
LOG = 32
"""Pages that a head names as having something to receive sooner than was known."""

OPEN, SEALED, RETIRED = range(3)
"""Of a page. OPEN: pushes go there; SEALED: they go to the next one; RETIRED: it is empty and no page of the
queue any more."""

_HEAD = struct.Struct(f">2s6sQQQ{LOG}Q")
_PAGE = struct.Struct(">2sBqq8sII")
_HEAD_MAGIC = b"h1"
_PAGE_MAGIC = b"p1"


class Keys:
    """The keys of one queue."""

    def __init__(self, namespace: str, qid: str) -> None:
        """BadQueueNameError; UnsupportedError for a namespace that keys cannot have."""
        if not _NAMESPACE.fullmatch(namespace):
            raise UnsupportedError(f"a namespace is 1 to 40 of A-Za-z0-9_.-; this is {namespace!r}")
        name = directory_of(qid)
        if len(name) > _LONGEST:  # "=" is in no directory's name
            name = "=" + blake2b(qid.encode(), digest_size=16).hexdigest()
        self._queue = f"{namespace}:{name}"
        self.head = f"{self._queue}:h"

    def page(self, generation: bytes, number: int) -> str:
        return f"{self._queue}:{generation.hex()}:p{number}"

    def count(self, generation: bytes) -> str:
        return f"{self._queue}:{generation.hex()}:n"

    def push_key(self, generation: bytes, digest: bytes) -> str:
        return f"{self._queue}:{generation.hex()}:k{digest.hex()}"

    def chunk(self, token: bytes, chunk: int) -> str:
        """Of a payload, from 0."""
        return f"{self._queue}:m{token.hex()}" + (f".{chunk}" if chunk else "")


@dataclass(slots=True)
class Head:
    """first, last: the pages there are. changes: how often `log` got another page number, in place changes % LOG."""

    generation: bytes
    first: int = 0
    last: int = 0
    changes: int = 0
    log: list[int] = field(default_factory=lambda: [0] * LOG)

    def encode(self) -> bytes:
        return _HEAD.pack(_HEAD_MAGIC, self.generation, self.first, self.last, self.changes, *self.log)

    @staticmethod
    def decode(data: bytes) -> "Head":
        """RemoteError when these are other bytes."""
        if len(data) != _HEAD.size or not data.startswith(_HEAD_MAGIC):
            raise RemoteError("memcached holds something else under a key of the queue: choose another namespace")
        _, generation, first, last, changes, *log = _HEAD.unpack(data)
        return Head(generation, first, last, changes, log)


@dataclass(slots=True)
class Page:
    """Messages with ids greater than low. last: the greatest id that was ever in it, low before there was one; stamp:
    who wrote it, so that a writer who lost the answer can tell; slots: what its size is made for."""

    low: int
    last: int
    state: int = OPEN
    stamp: bytes = bytes(8)
    slots: int = 0
    entries: Rows = field(default_factory=Rows)
    changed: bool = False

    def encode(self) -> bytes:
        count = len(self.entries)
        if self.state != OPEN and not count:
            self.slots = 0
        self.slots = max(self.slots, next(slots for slots in _SLOTS if slots >= count))
        head = _PAGE.pack(_PAGE_MAGIC, self.state, self.low, self.last, self.stamp, self.slots, count)
        return b"".join([head, self.entries.encode(), bytes((self.slots - count) * ROW)])

    @staticmethod
    def decode(data: bytes) -> "Page":
        """RemoteError when these are other bytes."""
        if len(data) < _PAGE.size or not data.startswith(_PAGE_MAGIC):
            raise RemoteError("memcached holds something else under a key of the queue: choose another namespace")
        _, state, low, last, stamp, slots, count = _PAGE.unpack_from(data)
        return Page(low, last, state, stamp, slots, Rows.decode(memoryview(data)[_PAGE.size :], count))

    def find(self, mid: int) -> int | None:
        """The index of a message."""
        index = self.entries.place(mid)
        return index if index < len(self.entries) and self.entries.mids[index] == mid else None

    def held(self, qid: str, receipt: Receipt) -> int:
        """The index of a message, if it is still as the holder of the receipt saw it. NoSuchMessageError,
        StaleReceiptError."""
        index = self.find(receipt.mid)
        if index is None:
            raise missing(qid, receipt.mid)
        receives = self.entries.receives[index]
        if receipt.receives is not None and receives != receipt.receives:
            raise StaleReceiptError(
                f"message {receipt.mid} of queue {qid!r} has been received {receives} times by now, "
                f"not {receipt.receives}"
            )
        return index

    # -- changes

    def put(self, index: int, entry: Entry) -> None:
        """Changes a message's state."""
        self.entries[index] = entry
        self.changed = True

    def insert(self, entry: Entry) -> None:
        """A message more, at the place of its id."""
        self.entries.insert(entry)
        self.last = max(self.last, entry.mid)
        self.changed = True

    def remove(self, mids: Iterable[int]) -> list[Entry]:
        """Messages less; those that were there."""
        indexes = [index for mid in mids if (index := self.find(mid)) is not None]
        removed = [self.entries[index] for index in indexes]
        for index in sorted(indexes, reverse=True):
            del self.entries[index]
        self.changed = self.changed or bool(removed)
        return removed

    def settle(self, now: int) -> int:
        """What is due becomes visible; how many windows have ended. That alone is no reason to write the page."""
        rows, ended = self.entries, 0
        for index, visible_at in enumerate(rows.visible_at):
            if 0 < visible_at <= now:
                ended += not rows.delayed[index]
                rows.visible_at[index] = rows.delayed[index] = 0
        return ended


def missing(qid: str, mid: int) -> NoSuchMessageError:
    """The error for a message that is not there."""
    return NoSuchMessageError(f"queue {qid!r} holds no message {mid}")
