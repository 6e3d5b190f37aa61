"""One queue in memcached: storing messages, and changing one."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...engine import Clock, Draft, NoSuchMessageError, Options, QueueFullError, Receipt, UnsupportedError
from ...names import MAX_MID
from .capacity import Capacity
from .layout import MOST, OPEN, PAGE, SEALED, Keys, Page, missing
from .pages import TRIES, Pages
from .payloads import Payloads
from .push_keys import PushKeys
from .reading import Look
from .rows import Entry
from .servers import Servers

_T = TypeVar("_T")


class StoringQueue:
    """May be used by several threads at once: they wait for each other, but not while payloads are on their way.

    Methods raise RemoteError, and those that store anything QueueFullError.
    """

    def __init__(  # noqa: PLR0917
        self, qid: str, options: Options, keys: Keys, servers: Servers, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """changed: called when there may be something to receive, or sooner than was known."""
        self.qid = qid
        self.options = options
        self.pages = Pages(qid, keys, servers, clock)
        self.payloads = Payloads(keys, servers)
        self.lost = 0
        """Messages that were found without their payloads."""
        self._clock = clock
        self._changed = changed
        self._capacity = Capacity(self.pages, options.capacity, servers)
        self._keys = PushKeys(self.pages, servers, clock)
        self._counting = threading.Lock()
        self._counts = {"pushed": 0, "delivered": 0, "deleted": 0}

    def _count(self, what: str, count: int) -> None:
        """For `stats`. Many threads do this."""
        with self._counting:
            self._counts[what] += count

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, all or none; their ids. UnsupportedError for more than a page can have."""
        if len(drafts) > MOST:
            raise UnsupportedError(f"a list of {len(drafts)} messages is too long for memcached: {MOST} is the most")
        if not drafts:
            return []
        payloads = [draft.payload for draft in drafts]
        tokens = self.payloads.store(payloads)
        try:
            keyed = any(draft.key is not None for draft in drafts)
            mids = self._push_keyed(drafts, tokens) if keyed else self._push_stored(drafts, tokens)
        except QueueFullError:
            self.payloads.remove_stored(tokens, payloads)
            raise
        self._changed()
        return mids

    def _push_keyed(self, drafts: Sequence[Draft], tokens: Sequence[bytes]) -> list[int]:
        claims = self._keys.claim(drafts, tokens)
        fresh = claims.fresh()
        try:
            mids = self._push_stored([drafts[index] for index in fresh], [tokens[index] for index in fresh])
        except QueueFullError:
            claims.release()
            raise
        old = [index for index in range(len(drafts)) if index not in set(fresh)]
        self.payloads.remove_stored([tokens[index] for index in old], [drafts[index].payload for index in old])
        return claims.settle(mids, tokens)

    def _push_stored(self, drafts: Sequence[Draft], tokens: Sequence[bytes]) -> list[int]:
        if not drafts:
            return []
        with self.pages.alone(), self._capacity.room_for(len(drafts)):
            for _ in range(TRIES):
                look, _ = self.pages.tail()
                mids = self._append(look, len(drafts), lambda page: self._enter(page, drafts, tokens))
                if mids is not None:
                    self._count("pushed", len(mids))
                    return mids
        raise self.pages.busy()

    def _enter(self, page: Page, drafts: Sequence[Draft], tokens: Sequence[bytes]) -> list[int]:
        now = self._clock()
        first = max(now, page.last + 1, self.pages.last_mid + 1)
        if first + len(drafts) - 1 > MAX_MID:
            raise QueueFullError(f"queue {self.qid!r} has had the id {page.last}: no room is left for another one")
        for mid, (draft, token) in enumerate(zip(drafts, tokens, strict=True), first):
            visible_at = now + draft.delay if draft.delay else 0
            page.insert(Entry(mid, visible_at, 0, len(draft.payload), draft.delay > 0, token))
        return list(range(first, first + len(drafts)))

    def _append(self, look: Look, count: int, enter: Callable[[Page], _T | None]) -> _T | None:
        """Lets `enter` put messages at the end of the queue. None: it has changed, or got another page; look again."""

        def do(page: Page) -> _T | None:
            if page.state != OPEN:
                return None
            if page.entries and len(page.entries) + count > PAGE:
                page.state, page.changed = SEALED, True
                return None
            return enter(page)

        return self.pages.change(look, look.head.last, do, makes_room=False)

    def insert(self, mid: int, payload: bytes) -> bool:
        """Stores a message under an id that it has elsewhere. False when the queue holds that id."""
        if self._holds(mid):  # then it needs no room
            return False
        [token] = self.payloads.store([payload])
        entry = Entry(mid, 0, 0, len(payload), False, token)
        try:
            with self.pages.alone(), self._capacity.room_for(1):
                done = self._insert(entry)
                if not done:
                    self._capacity.left(1)
        except QueueFullError:
            self.payloads.remove_stored([token], [payload])
            raise
        if not done:
            self.payloads.remove_stored([token], [payload])
        self._count("pushed", done)
        if done:
            self._changed()
        return done

    def _holds(self, mid: int) -> bool:
        try:
            return self._change(Receipt(mid), lambda page, index: True)[0]
        except NoSuchMessageError:
            return False

    def _insert(self, entry: Entry) -> bool:
        def do(page: Page) -> bool | None:
            if page.state not in (OPEN, SEALED):
                return None
            if page.find(entry.mid) is not None:
                return False
            if len(page.entries) == MOST:
                raise QueueFullError(f"queue {self.qid!r} has no room left for a message between others")
            page.insert(entry)
            return True

        for _ in range(TRIES):
            look, tail = self.pages.tail()
            if entry.mid > tail.last:
                done = self._append(look, 1, lambda page: do(page) if entry.mid > page.last else None)
            else:
                number = self.pages.locate(look, entry.mid)
                done = self.pages.change(look, number, do, makes_room=False)
                if done and number != look.head.last:
                    self.pages.announce(number)
            if done is not None:
                return done
        raise self.pages.busy()

    # -- one message

    def _change(self, receipt: Receipt, do: Callable[[Page, int], _T]) -> tuple[_T, int]:
        """Lets `do` change a message in its page, in which it has an index; what that gives, and the page's number."""

        def in_page(page: Page) -> tuple[_T]:
            return (do(page, page.held(self.qid, receipt)),)

        with self.pages.alone():
            look = self.pages.look_for(receipt.mid)
            if look is None:
                raise missing(self.qid, receipt.mid)
            number = self.pages.locate(look, receipt.mid)
            result = self.pages.change(look, number, in_page)
            if result is None:
                raise missing(self.qid, receipt.mid)
            return result[0], number

    def _removed(self, count: int) -> None:
        """Messages have been removed."""
        self._capacity.left(count)
        if self.pages.sweep_due:
            self.pages.sweep()
