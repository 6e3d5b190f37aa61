"""The keys of idempotent pushes: which message a key stands for, while a repeated push has to be recognised.

A known key is needed, and counts as live bytes of the segment that says it, as a message does. Without that, compaction
would copy segments of nothing else round and round.
"""

from collections import Counter, deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from ..engine import SECOND
from .places import place_of
from .records import KEY_SIZE
from .store import Store

WINDOW = 300 * SECOND
"""How long a key is remembered after its push."""

_LOOK = 256
"""Keys that are looked at together."""


def digest(key: str) -> bytes:
    """What stands for a key: 16 bytes, as two keys with the same ones are not to be expected."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Known(NamedTuple):
    """key: its digest; mid: the message that was pushed with it; at: when; segment: the one that says so."""

    key: bytes
    mid: int
    at: int
    segment: int


class Keys:
    """The idempotency keys of one queue, each remembered for `WINDOW` after its push."""

    def __init__(self, store: Store) -> None:
        """store: counts their bytes."""
        self._store = store
        self.known: dict[bytes, Known] = {}
        """By their digests."""
        self._order: deque[list[Known]] = deque()  # as they were noted; also what was forgotten or noted anew since

    def find(self, key: bytes, now: int) -> int | None:
        """The message that was pushed with a key, if that was not too long ago."""
        found = self.known.get(key)
        return found.mid if found is not None and found.at > now - WINDOW else None

    def note(self, key: bytes, mid: int, at: int, segment: int) -> None:
        """A message has been pushed with a key."""
        self.forget(key)
        self.known[key] = known = Known(key, mid, at, segment)
        if not self._order or len(self._order[-1]) >= _LOOK:
            self._order.append([])
        self._order[-1].append(known)
        self._store.usage.add(place_of(segment, 0), KEY_SIZE)
        self._store.keyed.add(self)

    def forget(self, key: bytes) -> None:
        """Forgets a key: its push did not happen, or was too long ago."""
        known = self.known.pop(key, None)
        if known is not None:
            self._store.usage.drop(place_of(known.segment, 0), KEY_SIZE)

    def forget_old(self, now: int, count: int) -> bool:
        """Forgets those whose time is over, a few for each of so many pushes. Whether there may be more of them."""
        for _ in range(4 * count):
            if not self._order:
                return False
            first = self._order[0][0]
            if self.known.get(first.key) is first:
                if first.at > now - WINDOW:
                    return False
                self.forget(first.key)
            del self._order[0][0]
            if not self._order[0]:
                self._order.popleft()
        return True

    def __bool__(self) -> bool:
        return bool(self.known)

    def pages(self) -> Iterator[list[Known]]:
        """All of them, some at a time, as there may be a million. They may change between two pages: those that are
        noted meanwhile are among them or not."""
        for chunk in list(self._order):
            yield [each for each in chunk if self.known.get(each.key) is each]

    def clear(self) -> None:
        """Forgets all of them."""
        for segment, count in Counter(known.segment for known in self.known.values()).items():
            self._store.usage.drop(place_of(segment, 0), count * KEY_SIZE)
        self.known.clear()
        self._order.clear()
