"""The head and the pages of one queue: reading them."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...engine import Clock
from ..engine import RemoteError
from .known import NEVER, KnownPages
from .layout import Head, Keys, Page
from .servers import CALL_TIMEOUT, Servers

_logger = logging.getLogger(__name__)
_SCAN = 16
"""Pages that are read at one time by what looks at all of them."""

_BEGUN_ANEW = (
    "queue %r has begun anew, empty: memcached at %s was restarted or flushed, gave the queue up for want of memory, "
    "or another server removed it"
)
_GIVEN_UP = (
    "queue %r: memcached at %s has given up messages for want of memory: start it with more (-m), and with -M, so that "
    "it refuses new ones instead"
)


@dataclass(slots=True)
class Look:
    """What was read of a queue: its head, and pages with the tokens for changing them. None: there is no such page."""

    head: Head
    token: bytes
    pages: dict[int, tuple[Page, bytes] | None] = field(default_factory=dict)


class PageReader:
    """The methods are called by one thread at a time, which has entered `alone`, but for `scan`. They raise
    RemoteError."""

    def __init__(self, qid: str, keys: Keys, servers: Servers, clock: Clock) -> None:
        self.qid = qid
        self.last_mid = -1
        """The greatest id that was seen here: what is made anew after a restart of memcached goes on from it."""
        self.expired = 0
        """Windows that have ended, of those that were written down here."""
        self.tail_bound = NEVER
        """When something in the last page becomes visible, as of the last look."""
        self.keys = keys
        self._servers = servers
        self._clock = clock
        self._lock = threading.RLock()
        self.sweep_due = False
        """Whether the first page was seen to be empty."""
        self._generation = b""
        self._last = 0
        self.known = KnownPages(Head(b""))
        self._lost: set[int] = set()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Threads of this process wait for each other here, and not by failing swaps. RemoteError when it is long."""
        if not self._lock.acquire(timeout=CALL_TIMEOUT):
            raise RemoteError(
                f"memcached at {self._servers.describe()} does not answer: others wait for queue {self.qid!r} already"
            )
        try:
            yield
        finally:
            self._lock.release()

    def look(self, guess: int | None = None) -> Look | None:
        """The head, and a page in the same round trip as a rule: that with a number, or the last one. None: there is
        nothing of the queue."""
        number, generation = self._last if guess is None else guess, self._generation
        keys = [self.keys.head]
        if generation:
            keys.append(self.keys.page(generation, number))
        found = self._servers.gets(keys)
        data, token = found.get(self.keys.head, (None, b""))
        if data is None:
            self._lose()
            return None
        head = Head.decode(data)
        if head.generation != self._generation:
            self._lose()
            self._generation = head.generation
            self.known = KnownPages(head)
        self.known.notice(head)
        look = Look(head, token)
        if head.generation == generation and head.first <= number <= head.last:
            self._enter(look, number, found.get(keys[1]))
        self._last = head.last
        return look

    def look_for(self, mid: int) -> Look | None:
        """The head, and the page of an id if it is known which that is."""
        low, high = self.known.range_of(mid, self._last)
        return self.look(low if low == high else None)

    def _lose(self) -> None:
        """What was known of the queue is not so any more."""
        if self._generation:
            _logger.warning(_BEGUN_ANEW, self.qid, self._servers.describe())
        self._generation = b""
        self._lost.clear()
        self.tail_bound = NEVER

    def page(self, look: Look, number: int) -> Page | None:
        """A page of the queue."""
        if number not in look.pages:
            key = self.keys.page(look.head.generation, number)
            self._enter(look, number, self._servers.gets([key]).get(key))
        found = look.pages[number]
        return None if found is None else found[0]

    def _enter(self, look: Look, number: int, found: tuple[bytes, bytes] | None) -> None:
        if found is None:
            look.pages[number] = None
            if number == look.head.last:
                self.tail_bound = NEVER
            if number >= look.head.first:
                self.note_lost(number)
            return
        page = Page.decode(found[0])
        look.pages[number] = page, found[1]
        self.known.note_low(number, page.low)
        self.last_mid = max(self.last_mid, page.last)

    def note_lost(self, number: int) -> None:
        """A page is not there: memcached has given it up."""
        if not self._lost:
            _logger.warning(_GIVEN_UP, self.qid, self._servers.describe())
        self._lost.add(number)

    def scan(self, after: int) -> Iterator[Page]:
        """The pages that may have ids greater than that, ascending, as they are by then; for looking only."""
        with self.alone():
            look = self.look()
            if look is None:
                return
            start = self.locate(look, after + 1)
        size = 1
        while start <= look.head.last:
            keys = [
                self.keys.page(look.head.generation, number)
                for number in range(start, min(start + size, look.head.last + 1))
            ]
            found = self._servers.get(keys)
            for key in keys:
                if key in found:
                    yield Page.decode(found[key])
            start += size
            size = min(size * 2, _SCAN)

    def locate(self, look: Look, mid: int) -> int:
        """The page in which an id is, if it is anywhere."""
        low, high = self.known.range_of(mid, look.head.last)
        while low < high:
            middle = (low + high + 1) // 2
            number = middle
            while number <= high and (page := self.page(look, number)) is None:
                number += 1  # memcached has given that page up
            if number > high or page is None or page.low >= mid:
                high = middle - 1
            else:
                low = number
        return low
