"""The head and the pages of one queue in memcached: reads them, and changes them by compare-and-swap, with any number
of other processes.

A process that finds a step that another one left unfinished (a sealed page without a next one, an empty first page)
finishes it. One that makes a message of a sealed page visible early logs the page in the head; if it is killed before,
the message is received when its window would have ended.
"""

import contextlib
import logging
import os
import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeVar

from ..engine import Clock, Receipt, RemoteError
from .memcached_layout import LOG, OPEN, RETIRED, SEALED, Head, ItemKeys, Page, no_such_message
from .memcached_servers import CALL_TIMEOUT, MemcachedServers, NoRoomError, UnsureError

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
NEVER = 1 << 63
"""When a message becomes visible in a page in which none is hidden."""
_SCAN = 16
"""Pages read at once by `scan`, at most."""
_TRIES = 60
"""Swaps that may fail in a row; each time, another process succeeds."""
_AT_ONCE = 1
"""Repetitions without a pause: the first one mostly goes on with what this process itself has just begun."""
_PAUSE = 0.0005
_LONGEST_PAUSE = 0.03
"""Seconds between swaps, at random up to this."""
_GRAVE = 60
"""Seconds for which a retired page's key stays, so that a process that was stopped does not make the page again."""
_TRIM = 100
"""Empty pages that one `trim` removes, as each is a swap."""
_BEGUN_ANEW = (
    "queue %r has begun anew, empty: memcached at %s was restarted or flushed, gave the queue up for want of memory, "
    "or another server removed it"
)
_GIVEN_UP = (
    "queue %r: memcached at %s has given up messages for want of memory: start it with more (-m), and with -M, so that "
    "it refuses new ones instead"
)


class PageIndex:
    """Remembers which pages of one generation of a queue may have a visible message, and which ids each page may hold.
    For one thread at a time.

    The index is a guess that saves reads: each page is read before its messages are used."""

    def __init__(self, first: int = 0, changes: int = 0) -> None:
        self._changes = changes
        self._sealed = range(first, first)
        self._due: dict[int, int] = {}  # when a message of a sealed page becomes visible; not there: maybe now
        self._lows: list[tuple[int, int]] = []  # pages, and what their ids are greater than; both ascending
        self.tail_due = NEVER

    def note_head(self, head: Head) -> None:
        # More changes than the log of the head has: any page may have a visible message.
        if head.changes - self._changes > LOG:
            self._due.clear()
        for change in range(max(self._changes, head.changes - LOG), head.changes):
            self._due.pop(head.log[change % LOG], None)
        self._changes = head.changes
        for number in range(self._sealed.start, head.first):
            self._due.pop(number, None)
        self._sealed = range(head.first, head.last)
        del self._lows[: bisect_left(self._lows, (head.first,))]

    def note_due(self, number: int, due: int) -> None:
        if number in self._sealed:
            self._due[number] = due

    def candidates(self, now: int) -> Iterator[int]:
        """Yields the sealed pages that may have a visible message, ascending."""
        return (number for number in self._sealed if self._due.get(number, 0) <= now)

    def next_due(self) -> int:
        return min(self.tail_due, *self._due.values(), NEVER)

    def note_low(self, number: int, low: int) -> None:
        at = bisect_left(self._lows, (number,))
        if at == len(self._lows) or self._lows[at][0] != number:
            self._lows.insert(at, (number, low))

    def range_of(self, mid: int, last: int) -> tuple[int, int]:
        """Returns the first and the last page that may hold an id. last: the queue's last page."""
        at = bisect_left(self._lows, mid, key=itemgetter(1))
        lowest = self._lows[at - 1][0] if at else self._sealed.start
        highest = self._lows[at][0] - 1 if at < len(self._lows) else last
        return lowest, max(lowest, highest)


@dataclass(slots=True)
class QueueSnapshot:
    """A queue as it was read: its head, and pages with tokens for compare-and-swap. A page that does not exist is
    None."""

    head: Head
    token: bytes
    pages: dict[int, tuple[Page, bytes] | None] = field(default_factory=dict)


class Pages:
    """The pages of one queue, and its head.

    Ensures that a page or a head is written only if nobody has changed it since it was read: by compare-and-swap,
    repeated while other processes are faster. A swap whose answer was lost is recognized by the stamp in the page.
    Steps that another process left unfinished are finished.

    Call all but `locked`, `scan`, `change_message` and `generation` inside `locked`. Methods raise RemoteError, those
    that write also NoRoomError."""

    def __init__(self, qid: str, keys: ItemKeys, servers: MemcachedServers, clock: Clock) -> None:
        self.qid = qid
        self.keys = keys
        self.index = PageIndex()
        self.last_mid = -1
        """The greatest id seen here. A queue that is made anew after a restart of memcached goes on from it."""
        self.expired = 0
        """Windows that ended in pages written here."""
        self._servers = servers
        self._clock = clock
        self._lock = threading.RLock()
        self._generation = b""
        self._last = 0
        self._loss_logged = False
        self._trim_due = False

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

    def look(self, guess: int | None = None) -> QueueSnapshot | None:
        """Reads the head and, mostly in one round trip, a page (None for the last page). Returns None if there is no
        such queue."""
        # One round trip for both, as the queue mostly is as it was.
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
        self.index.note_head(head)
        snapshot = QueueSnapshot(head, token)
        if head.generation == generation and head.first <= number <= head.last:
            self._enter(snapshot, number, found.get(keys[1]))
        self._last = head.last
        return snapshot

    def _forget(self) -> None:
        if self._generation:
            _logger.warning(_BEGUN_ANEW, self.qid, self._servers.describe())
        self._generation = b""
        self._loss_logged = False
        self.index.tail_due = NEVER

    def page(self, snapshot: QueueSnapshot, number: int) -> Page | None:
        """Returns a page, from the snapshot or from memcached; None if the page does not exist."""
        if number not in snapshot.pages:
            key = self.keys.page(snapshot.head.generation, number)
            self._enter(snapshot, number, self._servers.gets([key]).get(key))
        found = snapshot.pages[number]
        return None if found is None else found[0]

    def _enter(self, snapshot: QueueSnapshot, number: int, found: tuple[bytes, bytes] | None) -> None:
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

    def locate(self, snapshot: QueueSnapshot, mid: int) -> int:
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

    # -- a page

    def change(
        self, snapshot: QueueSnapshot, number: int, edit: Callable[[Page], _T], *, use_reserve: bool = True
    ) -> _T | None:
        """Lets `edit` change a page and swaps it, again with the newer page if another process was faster. use_reserve:
        True for a change that frees memory later, and must not fail for want of memory. Returns the result of `edit`,
        None if the page is gone."""
        written: dict[bytes, _T] = {}
        for _ in tries():
            page = self.page(snapshot, number)
            if page is None:
                return None
            if page.stamp in written:
                return written[page.stamp]
            expired = page.expire(self._clock())
            page.changed = False
            result = edit(page)
            if not page.changed:
                return result
            # A new one for each try: it tells our own swap from another's if the answer is lost.
            page.stamp = os.urandom(8)
            written[page.stamp] = result
            if self._swap(snapshot, number, page, use_reserve=use_reserve, stamps=written):
                self.expired += expired
                return result
        raise self.busy()

    def busy(self) -> RemoteError:
        return RemoteError(f"queue {self.qid!r}: too many change it at once; try again")

    def change_message(self, receipt: Receipt, edit: Callable[[Page, int], _T]) -> tuple[_T, int]:
        """Lets `edit` change a message. `edit` gets the message's page and index. Returns its result and the page's
        number. NoSuchMessageError, StaleReceiptError."""
        with self.locked():
            low, high = self.index.range_of(receipt.mid, self._last)
            if (snapshot := self.look(low if low == high else None)) is not None:
                number = self.locate(snapshot, receipt.mid)
                result = self.change(snapshot, number, lambda page: (edit(page, page.find(self.qid, receipt)),))
                if result is not None:
                    return result[0], number
        raise no_such_message(self.qid, receipt.mid)

    def _swap(
        self,
        snapshot: QueueSnapshot,
        number: int,
        page: Page,
        *,
        use_reserve: bool = True,
        stamps: dict[bytes, _T] | None = None,
        expire: int = 0,
    ) -> bool:
        """Swaps a page. Returns False if another process was faster. stamps: the stamps of all writes to the page in
        this call, by which a swap whose answer was lost is recognized."""
        found = snapshot.pages.pop(number)
        token = found[1] if found is not None else b"0"
        key, slots, data = self.keys.page(snapshot.head.generation, number), page.slots, page.encode()
        cas = self._servers.cas_in_reserve if use_reserve else self._servers.cas
        try:
            done = cas(key, data, token, expire)
        except UnsureError as error:
            return self._was_swapped(key, token, stamps or {}, error)
        if done:
            self.last_mid = max(self.last_mid, page.last)
            self.note_due(snapshot, number, page)
            if page.slots > slots:
                self._servers.keep_reserve(key, data)
        return done

    def _was_swapped(self, key: str, token: bytes, stamps: dict[bytes, _T], error: UnsureError) -> bool:
        found = self._servers.gets([key]).get(key)
        if found is None or found[1] == token:
            return False
        if Page.decode(found[0]).stamp in stamps:
            return True
        raise RemoteError(f"{error}; whether it has been done is not known: look before you repeat it") from None

    def note_due(self, snapshot: QueueSnapshot, number: int, page: Page) -> None:
        due = min(page.entries.visible_at, default=NEVER)
        if number == snapshot.head.last:
            self.index.tail_due = due
            return
        if due == NEVER and number == snapshot.head.first:
            self._trim_due = True
        self.index.note_due(number, due)

    # -- the head, and which pages there are

    def make(self) -> QueueSnapshot:
        """Returns the queue, which is made if memcached does not have it."""
        for _ in tries():
            if (snapshot := self.look()) is not None:
                return snapshot
            head = Head(os.urandom(6))
            self._add_page(head, 0, self.last_mid)  # before the head, so that a missing page is a lost one
            if not self._servers.add(self.keys.head, head.encode()):
                self._servers.delete([self.keys.page(head.generation, 0)])
            self._servers.keep_reserve(self.keys.head, head.encode())
        raise self.busy()

    def generation(self) -> bytes:
        """Returns the queue's generation. Makes the queue if memcached does not have it."""
        with self.locked():
            return self.make().head.generation

    def _swap_head(self, snapshot: QueueSnapshot) -> bool:
        """Swaps the head. Returns False if another process was faster, or the answer was lost: then look again."""
        try:
            return self._servers.cas_in_reserve(self.keys.head, snapshot.head.encode(), snapshot.token)
        except UnsureError:
            return False

    def tail(self) -> tuple[QueueSnapshot, Page]:
        """Returns the last page, which is open. Adds a page if needed."""
        for _ in tries():
            snapshot = self.make()
            head = snapshot.head
            page = self.page(snapshot, head.last)
            if page is None:
                before = self.page(snapshot, head.last - 1) if head.last > head.first else None
                self._add_page(head, head.last, max(self.last_mid, before.last if before is not None else -1))
            elif page.state == OPEN:
                return snapshot, page
            else:
                self._grow(snapshot, page)
        raise self.busy()

    def _add_page(self, head: Head, number: int, low: int) -> None:
        key, value = self.keys.page(head.generation, number), Page(low, low).encode()
        self._servers.add(key, value)
        self._servers.keep_reserve(key, value)  # it gets as small again when it is sealed and used up

    def _grow(self, snapshot: QueueSnapshot, sealed: Page) -> None:
        head = snapshot.head
        self._add_page(head, head.last + 1, sealed.last)
        # The page is there before the head names it: a process that reads the head finds it.
        head.last += 1
        if not self._swap_head(snapshot):
            # A faster process may have used the page and retired it: then nobody else would remove this one.
            now = self.look()
            if now is not None and now.head.generation == head.generation and now.head.first > head.last:
                self.delete_page(now.head, head.last)

    def log_change(self, number: int) -> None:
        """Notes in the head that a message in a page is visible sooner than other processes know."""
        for _ in tries():
            snapshot = self.look()
            if snapshot is None or not snapshot.head.first <= number < snapshot.head.last:
                return
            snapshot.head.log[snapshot.head.changes % LOG] = number
            snapshot.head.changes += 1
            if self._swap_head(snapshot):
                return
        raise self.busy()

    def trim(self) -> None:
        """Removes empty pages at the beginning, if the first page was seen to be empty."""
        if self._trim_due:
            self._trim_due = False
            with contextlib.suppress(NoRoomError):  # then later: the removal of the last message is done
                self._trim()

    def _trim(self) -> None:
        snapshot = self.look()
        if snapshot is None:
            return
        head = snapshot.head
        first = head.first
        while head.first < min(head.last, first + _TRIM):
            page = self.page(snapshot, head.first)
            if page is not None and page.state != RETIRED:
                if page.entries or page.state != SEALED:
                    break
                # A retired page takes no more messages, so it can go though others may be looking at it.
                page.state = RETIRED
                if not self._swap(snapshot, head.first, page, expire=_GRAVE):
                    break
            head.first += 1
        if head.first > first:
            self._trim_due = head.first == first + _TRIM
            self._swap_head(snapshot)

    # -- removing the queue

    def seal(self, snapshot: QueueSnapshot) -> bool:
        """Seals the last page of an empty queue, so that a push changes the head. Returns False after a push: then look
        again."""
        page = self.page(snapshot, snapshot.head.last)
        if page is None or page.entries:
            return page is None
        page.state = SEALED
        return self._swap(snapshot, snapshot.head.last, page)

    def drop_head(self, snapshot: QueueSnapshot) -> bool:
        """Removes the head. Returns False if the head has changed: then look again."""
        done = self._servers.cas(self.keys.head, snapshot.head.encode(), snapshot.token, expire=-1)
        if done:
            self._generation = b""  # the next look logs no loss
        return done

    def delete_page(self, head: Head, number: int) -> None:
        self._servers.delete([self.keys.page(head.generation, number)])


def tries() -> Iterator[int]:
    """Yields 0, 1, 2, … with growing random pauses, so that processes which disturb each other get out of step."""
    for count in range(_TRIES):
        if count > _AT_ONCE:
            time.sleep(random.uniform(0, min(_PAUSE * 2**count, _LONGEST_PAUSE)))  # noqa: S311
        yield count
