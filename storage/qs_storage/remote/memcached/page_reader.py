"""Reads the head and the pages of one queue."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...engine import RemoteError
from .layout import Head, Keys, Page
from .page_index import NEVER, PageIndex
from .servers import CALL_TIMEOUT, Servers

_logger = logging.getLogger(__name__)
_SCAN = 16

_BEGUN_ANEW = (
    "queue %r has begun anew, empty: memcached at %s was restarted or flushed, gave the queue up for want of memory, "
    "or another server removed it"
)
_GIVEN_UP = (
    "queue %r: memcached at %s has given up messages for want of memory: start it with more (-m), and with -M, so that "
    "it refuses new ones instead"
)


@dataclass(slots=True)
class Snapshot:
    """A queue as it was read: its head, and pages with tokens for compare-and-swap. None: there is no such page."""

    head: Head
    token: bytes
    pages: dict[int, tuple[Page, bytes] | None] = field(default_factory=dict)


class PageReader:
    """Reads pages and updates `index`. Call all but `scan` inside `locked`. Methods raise RemoteError."""

    def __init__(self, qid: str, keys: Keys, servers: Servers) -> None:
        self.qid = qid
        self.keys = keys
        self.index = PageIndex()
        self.last_mid = -1
        """The greatest id seen here. A queue that is made anew after a restart of memcached goes on from it."""
        self._servers = servers
        self._lock = threading.RLock()
        self._generation = b""
        self._last = 0
        self._loss_logged = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lets one thread in at a time, instead of failing swaps. RemoteError after CALL_TIMEOUT."""
        if not self._lock.acquire(timeout=CALL_TIMEOUT):
            raise RemoteError(
                f"memcached at {self._servers.describe()} does not answer: others wait for queue {self.qid!r} already"
            )
        try:
            yield
        finally:
            self._lock.release()

    def look(self, guess: int | None = None) -> Snapshot | None:
        """Reads the head and, mostly in one round trip, a page (None: the last). None if there is no such queue."""
        number, generation = self._last if guess is None else guess, self._generation
        keys = [self.keys.head]
        if generation:
            keys.append(self.keys.page(generation, number))
        found = self._servers.gets(keys)
        data, token = found.get(self.keys.head, (None, b""))
        if data is None:
            self._forget()
            return None
        head = Head.decode(data)
        if head.generation != self._generation:
            self._forget()
            self._generation = head.generation
            self.index = PageIndex(head.first, head.changes)
        self.index.note_head(head.first, head.last, head.changes, head.log)
        snapshot = Snapshot(head, token)
        if head.generation == generation and head.first <= number <= head.last:
            self._enter(snapshot, number, found.get(keys[1]))
        self._last = head.last
        return snapshot

    def look_for(self, mid: int) -> Snapshot | None:
        low, high = self.index.range_of(mid, self._last)
        return self.look(low if low == high else None)

    def generation(self) -> bytes | None:
        """Returns the queue's random number, None if memcached has no such queue."""
        snapshot = self.look()
        return None if snapshot is None else snapshot.head.generation

    def _forget(self) -> None:
        if self._generation:
            _logger.warning(_BEGUN_ANEW, self.qid, self._servers.describe())
        self.note_removed()
        self._loss_logged = False
        self.index.tail_due = NEVER

    def note_removed(self) -> None:
        """Notes that this process removed the queue: the next look logs no loss."""
        self._generation = b""

    def page(self, snapshot: Snapshot, number: int) -> Page | None:
        """Returns a page, from the snapshot or memcached; None if it does not exist."""
        if number not in snapshot.pages:
            key = self.keys.page(snapshot.head.generation, number)
            self._enter(snapshot, number, self._servers.gets([key]).get(key))
        found = snapshot.pages[number]
        return None if found is None else found[0]

    def _enter(self, snapshot: Snapshot, number: int, found: tuple[bytes, bytes] | None) -> None:
        if found is None:
            snapshot.pages[number] = None
            if number == snapshot.head.last:
                self.index.tail_due = NEVER
            if number >= snapshot.head.first:
                self.note_loss()
            return
        page = Page.decode(found[0])
        snapshot.pages[number] = page, found[1]
        self.index.note_low(number, page.low)
        self.last_mid = max(self.last_mid, page.last)

    def note_loss(self) -> None:
        """Logs the first eviction of a page or a payload."""
        if not self._loss_logged:
            _logger.warning(_GIVEN_UP, self.qid, self._servers.describe())
        self._loss_logged = True

    def scan(self, after: int) -> Iterator[Page]:
        """Yields the pages that may have ids greater than `after`, ascending."""
        with self.locked():
            snapshot = self.look()
            if snapshot is None:
                return
            start = self.locate(snapshot, after + 1)
        generation, end = snapshot.head.generation, snapshot.head.last + 1
        size = 1
        while start < end:
            keys = [self.keys.page(generation, number) for number in range(start, min(start + size, end))]
            found = self._servers.get(keys)
            for key in keys:
                if key in found:
                    yield Page.decode(found[key])
            start += size
            size = min(size * 2, _SCAN)

    def locate(self, snapshot: Snapshot, mid: int) -> int:
        """Returns the number of the only page that may hold an id."""
        low, high = self.index.range_of(mid, snapshot.head.last)
        while low < high:
            middle = (low + high + 1) // 2
            number = middle
            while number <= high and (page := self.page(snapshot, number)) is None:
                number += 1  # memcached has given that page up
            if number > high or page is None or page.low >= mid:
                high = middle - 1
            else:
                low = number
        return low
