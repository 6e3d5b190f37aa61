"""Changes the head and the pages of one queue by compare-and-swap, with any number of other processes.

A process that finds a step that another one left unfinished (a sealed page without a next one, an empty first page)
finishes it.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from ...engine import Clock, Receipt, RemoteError
from .layout import LOG, OPEN, RETIRED, SEALED, Head, Page, no_such_message
from .page_index import NEVER
from .page_reader import PageReader, Snapshot
from .servers import NoRoomError, Servers, UnsureError

_T = TypeVar("_T")
TRIES = 60
"""Swaps that may fail in a row; each time, another process succeeds."""
_PAUSE = 0.0005
_LONGEST_PAUSE = 0.03
"""Seconds between swaps, at random up to this."""
_GRAVE = 60
"""Seconds for which a retired page's key stays, so that a process that was stopped does not make the page again."""
_TRIM = 100
"""Empty pages that one `trim` removes."""


class PageWriter:
    """Call methods inside PageReader.locked. They raise RemoteError and NoRoomError."""

    def __init__(self, reader: PageReader, servers: Servers, clock: Clock) -> None:
        self.expired = 0
        """Windows that ended in pages written here."""
        self._reader = reader
        self._servers = servers
        self._clock = clock
        self._trim_due = False

    # -- a page

    def change(
        self, snapshot: Snapshot, number: int, edit: Callable[[Page], _T], *, use_reserve: bool = True
    ) -> _T | None:
        """Lets `edit` change a page and swaps it, again with the newer page if another process was faster.
        use_reserve: the change makes room later, so it must not fail for want of room. Returns the result of `edit`,
        None if the page is gone."""
        written: dict[bytes, _T] = {}
        for count in range(TRIES):
            if count:
                _pause(count)
                snapshot.pages.pop(number, None)
            page = self._reader.page(snapshot, number)
            if page is None:
                return None
            if page.stamp in written:
                return written[page.stamp]
            expired = page.expire(self._clock())
            page.changed = False
            result = edit(page)
            if not page.changed:
                return result
            page.stamp = os.urandom(8)
            written[page.stamp] = result
            if self._swap(snapshot, number, page, use_reserve=use_reserve, stamps=written):
                self.expired += expired
                return result
        raise self.busy()

    def change_message(self, receipt: Receipt, edit: Callable[[Page, int], _T]) -> tuple[_T, int]:
        """Lets `edit` change a message, given its page and index. Returns its result and the page's number.
        NoSuchMessageError, StaleReceiptError."""
        reader = self._reader
        with reader.locked():
            if (snapshot := reader.look_for(receipt.mid)) is not None:
                number = reader.locate(snapshot, receipt.mid)
                result = self.change(snapshot, number, lambda page: (edit(page, page.find(reader.qid, receipt)),))
                if result is not None:
                    return result[0], number
        raise no_such_message(reader.qid, receipt.mid)

    def busy(self) -> RemoteError:
        return RemoteError(f"queue {self._reader.qid!r}: too many change it at once; try again")

    def _swap(
        self,
        snapshot: Snapshot,
        number: int,
        page: Page,
        *,
        use_reserve: bool = True,
        stamps: dict[bytes, _T] | None = None,
        expire: int = 0,
    ) -> bool:
        """stamps: of all writes to the page here, to recognise a swap whose answer was lost."""
        found = snapshot.pages.pop(number)
        token = found[1] if found is not None else b"0"
        key, slots, data = self._reader.keys.page(snapshot.head.generation, number), page.slots, page.encode()
        cas = self._servers.cas_in_reserve if use_reserve else self._servers.cas
        try:
            done = cas(key, data, token, expire)
        except UnsureError as error:
            return self._was_swapped(key, token, stamps or {}, error)
        if done:
            self._reader.last_mid = max(self._reader.last_mid, page.last)
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

    def note_due(self, snapshot: Snapshot, number: int, page: Page) -> None:
        due = min(page.entries.visible_at, default=NEVER)
        if number == snapshot.head.last:
            self._reader.index.tail_due = due
            return
        if due == NEVER and number == snapshot.head.first:
            self._trim_due = True
        self._reader.index.note_due(number, due)

    # -- the head, and which pages there are

    def make(self) -> Snapshot:
        """Returns the queue; makes it if memcached does not have it."""
        for count in range(TRIES):
            if (snapshot := self._reader.look()) is not None:
                return snapshot
            _pause(count)
            head = Head(os.urandom(6))
            self._add_page(head, 0, self._reader.last_mid)  # before the head, so that a missing page is a lost one
            if not self._servers.add(self._reader.keys.head, head.encode()):
                self._servers.delete([self._reader.keys.page(head.generation, 0)])
            self._servers.keep_reserve(self._reader.keys.head, head.encode())
        raise self.busy()

    def generation(self) -> bytes:
        """Returns the queue's generation; makes the queue if memcached does not have it."""
        with self._reader.locked():
            return self.make().head.generation

    def _swap_head(self, snapshot: Snapshot) -> bool:
        """Returns False if another process was faster, or the answer was lost; look again."""
        try:
            return self._servers.cas_in_reserve(self._reader.keys.head, snapshot.head.encode(), snapshot.token)
        except UnsureError:
            return False

    def tail(self) -> tuple[Snapshot, Page]:
        """Returns the last page, which is open; adds one if needed."""
        for count in range(TRIES):
            if count > 2:
                _pause(count)
            snapshot = self.make()
            head = snapshot.head
            page = self._reader.page(snapshot, head.last)
            if page is None:
                before = self._reader.page(snapshot, head.last - 1) if head.last > head.first else None
                self._add_page(head, head.last, max(self._reader.last_mid, before.last if before is not None else -1))
            elif page.state == OPEN:
                return snapshot, page
            else:
                self._grow(snapshot, page)
        raise self.busy()

    def _add_page(self, head: Head, number: int, low: int) -> None:
        key, value = self._reader.keys.page(head.generation, number), Page(low, low).encode()
        self._servers.add(key, value)
        self._servers.keep_reserve(key, value)  # it gets as small again when it is sealed and used up

    def _grow(self, snapshot: Snapshot, sealed: Page) -> None:
        head = snapshot.head
        self._add_page(head, head.last + 1, sealed.last)
        head.last += 1
        if not self._swap_head(snapshot):
            # Whoever was faster may have used the page and retired it: then nobody else would remove this one.
            now = self._reader.look()
            if now is not None and now.head.generation == head.generation and now.head.first > head.last:
                self.delete_page(now.head, head.last)

    def log_change(self, number: int) -> None:
        """Logs in the head that a message in a page is visible sooner than other processes know."""
        for count in range(TRIES):
            if count:
                _pause(count)
            snapshot = self._reader.look()
            if snapshot is None or not snapshot.head.first <= number < snapshot.head.last:
                return
            snapshot.head.log[snapshot.head.changes % LOG] = number
            snapshot.head.changes += 1
            if self._swap_head(snapshot):
                return
        raise self.busy()

    def trim(self) -> None:
        """Removes empty pages at the beginning, if the first one was seen to be empty."""
        if self._trim_due:
            self._trim_due = False
            with contextlib.suppress(NoRoomError):  # then later: whoever removed the last message is done
                self._trim()

    def _trim(self) -> None:
        snapshot = self._reader.look()
        if snapshot is None:
            return
        head = snapshot.head
        first = head.first
        while head.first < min(head.last, first + _TRIM):
            page = self._reader.page(snapshot, head.first)
            if page is not None and page.state != RETIRED:
                if page.entries or page.state != SEALED:
                    break
                page.state = RETIRED
                if not self._swap(snapshot, head.first, page, expire=_GRAVE):
                    break
            head.first += 1
        if head.first > first:
            self._trim_due = head.first == first + _TRIM
            self._swap_head(snapshot)

    # -- removing the queue

    def seal(self, snapshot: Snapshot) -> bool:
        """Seals the last page of an empty queue, so that a push changes the head. False after a push; look again."""
        page = self._reader.page(snapshot, snapshot.head.last)
        if page is None or page.entries:
            return page is None
        page.state = SEALED
        return self._swap(snapshot, snapshot.head.last, page)

    def drop_head(self, snapshot: Snapshot) -> bool:
        """Removes the head. False: it has changed; look again."""
        done = self._servers.cas(self._reader.keys.head, snapshot.head.encode(), snapshot.token, expire=-1)
        if done:
            self._reader.note_removed()
        return done

    def delete_page(self, head: Head, number: int) -> None:
        self._servers.delete([self._reader.keys.page(head.generation, number)])


def _pause(count: int) -> None:
    time.sleep(random.uniform(0, min(_PAUSE * 2**count, _LONGEST_PAUSE)))  # noqa: S311
