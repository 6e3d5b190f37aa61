"""The idempotency keys of pushes: maps each key to its message while a repeated push must be recognized.

A key counts as live bytes of its segment; otherwise compaction would copy segments full of keys again and again. All
queues together have at most `KnownKeys.most` keys, because keys are in memory, and clients choose how many there are.
"""

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from ...engine import SECOND, QueueFullError
from ..log.log import Transaction
from ..log.places import place_of, segment_of
from ..log.records import KEY_SIZE, Key
from ..log.segments import Usage

WINDOW = 300 * SECOND
"""Microseconds for which a key is remembered after its push."""

KEYS = 800_000
"""The default for the most keys of pushes in memory: each takes some 300 bytes, so some 240 MB."""
_PAGE = 256
"""Keys of a page. Pages are read while keys come and go, and a page is short enough for one slice of upkeep."""


def digest(key: str) -> bytes:
    """Returns 16 bytes that stand for a key. Two keys with the same digest are too unlikely to consider."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class KeyEntry(NamedTuple):
    """A remembered key. key: its digest; mid: the message pushed with the key; at: the time of the push; segment: the
    segment of the key's record, by which compaction knows the keys to carry."""

    key: bytes
    mid: int
    at: int
    segment: int


class KnownKeys:
    """The number of keys in all queues of a log, and the queues that have any."""

    def __init__(self, most: int) -> None:
        self.most = most
        """The most keys of all queues together."""
        self.reset()

    def reset(self) -> None:
        """Forgets the keys of all queues."""
        self.keyed: set[Keys] = set()
        """The `Keys` of each queue with at least one key."""
        self.count = 0
        """The number of keys in all queues."""


class Keys:
    """Remembers the idempotency keys of one queue, each for `WINDOW` after its push.

    Ensures:
    1. A push that is repeated within `WINDOW` gets the id of the first one, also after a start.
    2. Memory is bounded: all queues together remember at most `KnownKeys.most`, and a further key is refused. Without
       an older key, a repeated push would be stored twice.

    Assumes that a push whose transaction is taken back forgets its key. Never forgets a key within `WINDOW`."""

    def __init__(self, known: KnownKeys, usage: Usage, transaction: Transaction) -> None:
        self._known = known
        self._usage = usage
        self._transaction = transaction
        self.entries: dict[bytes, KeyEntry] = {}
        """The remembered keys by their digests."""
        self._pages: list[list[KeyEntry]] = []  # in the order of `note`; also entries forgotten or replaced since

    def find(self, key: bytes, now: int) -> int | None:
        """Returns the id of the message that was pushed with a key within `WINDOW`, None without one."""
        entry = self.entries.get(key)
        return entry.mid if entry is not None and entry.at > now - WINDOW else None

    def require_room(self, count: int, now: int) -> None:
        """Checks that so many further keys may be remembered, after forgetting expired keys of all queues.
        QueueFullError."""
        known = self._known
        # Keys of other queues may be over: only then is there reason to go through these.
        for keys in list(known.keyed) if known.count + count > known.most else ():
            while known.count + count > known.most and keys.forget_old(now, count):
                pass
        if known.count + count > known.most:
            raise QueueFullError(
                f"the server remembers {known.count} keys of pushes of the last {WINDOW // SECOND // 60} minutes, "
                f"and {known.most} is the most: push without a key, or later, or start it with more --max-keys"
            )

    def note(self, key: bytes, mid: int, at: int, segment: int) -> None:
        """Remembers a key. Replaces an earlier push with the same key."""
        self.forget(key)
        self.entries[key] = entry = KeyEntry(key, mid, at, segment)
        # In the order of the pushes, so that those that are over are at the front.
        if not self._pages or len(self._pages[-1]) >= _PAGE:
            self._pages.append([])
        self._pages[-1].append(entry)
        self._usage.add(place_of(segment, 0), KEY_SIZE)
        self._known.count += 1
        self._known.keyed.add(self)

    def cut(self, now: int) -> None:
        """Ends a start: gives the present time to keys that were noted later than now, by a clock that was ahead."""
        for key, mid, _, segment in [entry for entry in self.entries.values() if entry.at > now]:
            self.note(key, mid, now, segment)

    def forget(self, key: bytes) -> None:
        """Forgets a key whose push was undone, or is older than `WINDOW`."""
        entry = self.entries.pop(key, None)
        if entry is not None:
            self._usage.drop(place_of(entry.segment, 0), KEY_SIZE)
            self._known.count -= 1

    def forget_old(self, now: int, count: int) -> bool:
        """Forgets expired keys, at most four for each of `count` pushes. Returns True if there may be more."""
        for _ in range(4 * count):  # more than are added, so that a steady load keeps up without a long step
            if not self._pages:
                return False
            first = self._pages[0][0]
            # Compared as an object: a later push with the same key has an entry of its own, further back.
            if self.entries.get(first.key) is first:
                if first.at > now - WINDOW:
                    return False
                self.forget(first.key)
            del self._pages[0][0]
            if not self._pages[0]:
                del self._pages[0]
        return True

    def __bool__(self) -> bool:
        return bool(self.entries)

    def pages(self) -> Iterator[list[KeyEntry]]:
        """Yields all keys, a page at a time because there may be a million. Keys noted meanwhile may be left out."""
        for page in list(self._pages):
            yield [entry for entry in page if self.entries.get(entry.key) is entry]

    def clear(self) -> None:
        """Forgets all keys. Called when the queue is removed."""
        for segment, count in Counter(entry.segment for entry in self.entries.values()).items():
            self._usage.drop(place_of(segment, 0), count * KEY_SIZE)
        self._known.count -= len(self.entries)
        self.entries.clear()
        self._pages.clear()

    def copy_records(self, number: int, segment: int, now: int) -> Iterator[int]:
        """Copies the keys in a segment to the end of the log, and forgets expired keys. Before each copy, yields the
        bytes to append. number: the queue's."""
        transaction = self._transaction
        for page in self.pages():
            yield len(page) * KEY_SIZE
            for entry in page:
                if self.entries.get(entry.key) is not entry:
                    continue  # it was over, and somebody has pushed with the same key meanwhile
                if entry.at <= now - WINDOW:
                    self.forget(entry.key)
                elif entry.segment == segment:
                    place = transaction.append(Key(number, entry.mid, entry.key, entry.at).write())
                    transaction.undo(self.note, *entry)
                    self.note(entry.key, entry.mid, entry.at, segment_of(place))
