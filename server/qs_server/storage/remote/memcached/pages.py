"""The head and the pages of one queue: changing them by compare-and-swap.

Any number of processes do this at once. Whoever finds a step that another one has begun and not finished (a sealed page
without a next one, an empty first page) does the rest of it.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..engine import RemoteError
from .known import NEVER
from .layout import LOG, OPEN, RETIRED, SEALED, Head, Page
from .reading import Look, PageReader
from .servers import NoRoomError, UnsureError

_T = TypeVar("_T")
TRIES = 60
"""Swaps that may fail because somebody else was faster; one of those who try succeeds each time."""
_PAUSE = 0.0005
_LONGEST_PAUSE = 0.03
"""Seconds between them, at random up to this, so that many processes do not meet again and again."""
_GRAVE = 60
"""Seconds for which a retired page's key stays: a process that had stopped meanwhile must not make the page anew."""
_SWEEP = 100
"""Empty pages that are given up at one time."""


class Pages(PageReader):
    """As PageReader says. Methods also raise NoRoomError."""

    # -- a page

    def change(self, look: Look, number: int, do: Callable[[Page], _T], *, makes_room: bool = True) -> _T | None:
        """Lets `do` change a page, and swaps it; again with what is there by then, when somebody else was faster.
        None: there is no such page any more. makes_room: it must not fail for want of room."""
        written: dict[bytes, _T] = {}
        for count in range(TRIES):
            if count:
                self.pause(count)
                look.pages.pop(number, None)
            page = self.page(look, number)
            if page is None:
                return None
            if page.stamp in written:
                return written[page.stamp]
            lapsed = page.settle(self._clock())
            page.changed = False
            result = do(page)
            if not page.changed:
                return result
            written[self._stamp(page)] = result
            if self._swap(look, number, page, makes_room=makes_room, unsure_of=written):
                self.expired += lapsed
                return result
        raise self.busy()

    @staticmethod
    def pause(count: int) -> None:
        """Before another attempt."""
        time.sleep(random.uniform(0, min(_PAUSE * 2**count, _LONGEST_PAUSE)))  # noqa: S311

    def busy(self) -> RemoteError:
        """The error for when others are always faster."""
        return RemoteError(f"queue {self.qid!r}: too many change it at once; try again")

    @staticmethod
    def _stamp(page: Page) -> bytes:
        page.stamp = os.urandom(8)
        return page.stamp

    def _swap(
        self, look: Look, number: int, page: Page, *, makes_room: bool, unsure_of: dict[bytes, _T], expire: int = 0
    ) -> bool:
        found = look.pages.pop(number)
        token = found[1] if found is not None else b"0"
        key, slots, data = self.keys.page(look.head.generation, number), page.slots, page.encode()
        cas = self._servers.cas_in_reserve if makes_room else self._servers.cas
        try:
            done = cas(key, data, token, expire)
        except UnsureError as error:
            return self._find_out(key, token, unsure_of, error)
        if done:
            self.last_mid = max(self.last_mid, page.last)
            self._bound(look.head, number, page)
            if page.slots > slots:
                self._servers.keep_reserve(key, data)
        return done

    def _find_out(self, key: str, token: bytes, written: dict[bytes, _T], error: UnsureError) -> bool:
        """Whether a swap has been made whose answer was lost. False: it has not; it is an error when nobody knows."""
        found = self._servers.gets([key]).get(key)
        if found is None or found[1] == token:
            return False
        if Page.decode(found[0]).stamp in written:
            return True
        raise RemoteError(f"{error}; whether it has been done is not known: look before you repeat it") from None

    def _bound(self, head: Head, number: int, page: Page) -> None:
        """A page is known as it is now."""
        bound = min(page.entries.visible_at, default=NEVER)
        if number == head.last:
            self.tail_bound = bound
            return
        if bound == NEVER and number == head.first:
            self.sweep_due = True
        if bound > self._clock():
            self.known.nothing_before(number, bound)
        else:
            self.known.look_again(number)

    def looked(self, look: Look, number: int, page: Page) -> None:
        """A page has been looked at for what is visible."""
        self._bound(look.head, number, page)

    # -- the head

    def make(self) -> Look:
        """The head, made if there is none."""
        for count in range(TRIES):
            if (look := self.look()) is not None:
                return look
            self.pause(count)
            head = self._new_head()
            if not self._servers.add(self.keys.head, head.encode()):
                self._servers.delete([self.keys.page(head.generation, 0)])
            self._servers.keep_reserve(self.keys.head, head.encode())
        raise self.busy()

    def _new_head(self) -> Head:
        """With its first page, so that one that is missing has been lost."""
        head = Head(os.urandom(6))
        self._add_page(head, 0, self.last_mid)
        return head

    def swap_head(self, look: Look) -> bool:
        """Writes a changed head. False: somebody else was faster, or nobody knows; look again."""
        try:
            return self._servers.cas_in_reserve(self.keys.head, look.head.encode(), look.token)
        except UnsureError:
            return False

    def tail(self) -> tuple[Look, Page]:
        """The page that pushes go to, open."""
        for count in range(TRIES):
            if count > 2:
                self.pause(count)
            look = self.make()
            page = self.page(look, look.head.last)
            if page is None:
                self._add_page(look.head, look.head.last, self._floor(look))
            elif page.state == OPEN:
                return look, page
            else:
                self.grow(look, page)
        raise self.busy()

    def _floor(self, look: Look) -> int:
        """Ids of a page that replaces a lost one are greater than that."""
        before = self.page(look, look.head.last - 1) if look.head.last > look.head.first else None
        return max(self.last_mid, before.last if before is not None else -1)

    def _add_page(self, head: Head, number: int, low: int) -> None:
        key, value = self.keys.page(head.generation, number), Page(low, low).encode()
        self._servers.add(key, value)
        self._servers.keep_reserve(key, value)  # it gets as small again when it is sealed and used up

    def grow(self, look: Look, sealed: Page) -> None:
        """A page after the last one, which is sealed."""
        head = look.head
        self._add_page(head, head.last + 1, sealed.last)
        head.last += 1
        if not self.swap_head(look):
            # Whoever was faster may have used the page and retired it: then nobody else would remove this one.
            now = self.look()
            if now is not None and now.head.generation == head.generation and now.head.first > head.last:
                self._servers.delete([self.keys.page(head.generation, head.last)])

    def announce(self, number: int) -> None:
        """Something in a page is visible sooner than others may know."""
        for count in range(TRIES):
            if count:
                self.pause(count)
            look = self.look()
            if look is None or not look.head.first <= number < look.head.last:
                return
            look.head.log[look.head.changes % LOG] = number
            look.head.changes += 1
            if self.swap_head(look):
                return
        raise self.busy()

    def sweep(self) -> None:
        """Gives up the first pages, as far as they are empty or gone."""
        self.sweep_due = False
        with contextlib.suppress(NoRoomError):  # then later: whoever removed the last message has done what was asked
            self._sweep()

    def _sweep(self) -> None:
        look = self.look()
        if look is None:
            return
        head = look.head
        first = head.first
        while head.first < min(head.last, first + _SWEEP):
            page = self.page(look, head.first)
            if page is not None and page.state != RETIRED:
                if page.entries or page.state != SEALED:
                    break
                page.state = RETIRED
                if not self._swap(look, head.first, page, makes_room=True, unsure_of={}, expire=_GRAVE):
                    break
            self._lost.discard(head.first)
            head.first += 1
        if head.first > first:
            self.sweep_due = head.first == first + _SWEEP
            self.swap_head(look)

    # -- removing the queue

    def close(self, look: Look) -> bool:
        """Seals the last page, unless something has been pushed: who pushes from now on changes the head, and it cannot
        be dropped. False: something has; look again."""
        page = self.page(look, look.head.last)
        if page is None or page.entries:
            return page is None
        page.state = SEALED
        return self._swap(look, look.head.last, page, makes_room=True, unsure_of={})

    def delete_page(self, look: Look, number: int) -> None:
        """Of a queue that has no head any more."""
        self._servers.delete([self.keys.page(look.head.generation, number)])

    def drop_head(self, look: Look) -> bool:
        """Removes the head. False: it has changed; look again."""
        done = self._servers.cas(self.keys.head, look.head.encode(), look.token, expire=-1)
        if done:
            self._generation = b""  # by our own hand: nothing is lost
        return done
