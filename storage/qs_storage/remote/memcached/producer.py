"""Stores messages in one queue in memcached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...engine import Clock, Draft, NoSuchMessageError, QueueFullError, Receipt, UnsupportedError
from ...names import MAX_MID
from ..registry import Counters
from .capacity import Capacity
from .layout import MOST, OPEN, PAGE, SEALED, Entry, Page
from .page_reader import PageReader, Snapshot
from .page_writer import TRIES, PageWriter
from .payloads import Payloads
from .push_keys import PushKeys
from .servers import Servers

_T = TypeVar("_T")


@dataclass(slots=True)
class Producer:
    """Pushes and copies. Several threads may use it, without waiting for each other's payloads. Methods raise
    RemoteError and QueueFullError. changed: called after each push."""

    reader: PageReader
    writer: PageWriter
    servers: Servers
    payloads: Payloads
    capacity: Capacity
    counters: Counters
    clock: Clock
    changed: Callable[[], None]

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """See Queue. UnsupportedError for more messages than a page can have."""
        if len(drafts) > MOST:
            raise UnsupportedError(f"a list of {len(drafts)} messages is too long for memcached: {MOST} is the most")
        if not drafts:
            return []
        payloads = [draft.payload for draft in drafts]
        tokens = self.payloads.store(payloads)
        keys = PushKeys(self.reader, self.servers, self.clock, tokens)
        try:
            fresh = keys.claim(self.writer.generation, [draft.key for draft in drafts])
            try:
                mids = self._store([drafts[index] for index in fresh], [tokens[index] for index in fresh])
            except QueueFullError:
                keys.release()
                raise
        except QueueFullError:
            self.payloads.remove_stored(tokens, payloads)
            raise
        old = set(range(len(drafts))).difference(fresh)
        self.payloads.remove_stored([tokens[index] for index in old], [payloads[index] for index in old])
        mids = keys.settle(dict(zip(fresh, mids, strict=True)))
        self.changed()
        return mids

    def _store(self, drafts: Sequence[Draft], tokens: Sequence[bytes]) -> list[int]:
        if not drafts:
            return []
        with self.reader.locked(), self.capacity.reserve(len(drafts)):
            for _ in range(TRIES):
                snapshot, _ = self.writer.tail()
                mids = self._append(snapshot, len(drafts), lambda page: self._add(page, drafts, tokens))
                if mids is not None:
                    self.counters.add("pushed", len(mids))
                    return mids
        raise self.writer.busy()

    def _add(self, page: Page, drafts: Sequence[Draft], tokens: Sequence[bytes]) -> list[int]:
        now = self.clock()
        first = max(now, page.last + 1, self.reader.last_mid + 1)
        if first + len(drafts) - 1 > MAX_MID:
            raise QueueFullError(
                f"queue {self.reader.qid!r} has had the id {page.last}: no room is left for another one"
            )
        for mid, (draft, token) in enumerate(zip(drafts, tokens, strict=True), first):
            visible_at = now + draft.delay if draft.delay else 0
            page.insert(Entry(mid, visible_at, 0, len(draft.payload), draft.delay > 0, token))
        return list(range(first, first + len(drafts)))

    def _append(self, snapshot: Snapshot, count: int, add: Callable[[Page], _T | None]) -> _T | None:
        """Lets `add` put messages into the last page. None: the queue changed; look again."""

        def edit(page: Page) -> _T | None:
            if page.state != OPEN:
                return None
            if page.entries and len(page.entries) + count > PAGE:
                page.state, page.changed = SEALED, True
                return None
            return add(page)

        return self.writer.change(snapshot, snapshot.head.last, edit, use_reserve=False)

    def insert(self, mid: int, payload: bytes) -> bool:
        """Stores a copy under its id. False if the queue holds that id."""
        if self._holds(mid):  # then it needs no room
            return False
        [token] = self.payloads.store([payload])
        try:
            with self.reader.locked(), self.capacity.reserve(1):
                done = self._insert(Entry(mid, 0, 0, len(payload), False, token))
                if not done:
                    self.capacity.give_back(1)
        except QueueFullError:
            self.payloads.remove_stored([token], [payload])
            raise
        if done:
            self.counters.add("pushed")
            self.changed()
        else:
            self.payloads.remove_stored([token], [payload])
        return done

    def _holds(self, mid: int) -> bool:
        try:
            return self.writer.change_message(Receipt(mid), lambda page, index: True)[0]
        except NoSuchMessageError:
            return False

    def _insert(self, entry: Entry) -> bool:
        def add(page: Page) -> bool | None:
            if page.state not in (OPEN, SEALED):
                return None
            if page.entries.find(entry.mid) is not None:
                return False
            if len(page.entries) == MOST:
                raise QueueFullError(f"queue {self.reader.qid!r} has no room left for a message between others")
            page.insert(entry)
            return True

        for _ in range(TRIES):
            snapshot, tail = self.writer.tail()
            if entry.mid > tail.last:
                done = self._append(snapshot, 1, lambda page: add(page) if entry.mid > page.last else None)
            else:
                number = self.reader.locate(snapshot, entry.mid)
                done = self.writer.change(snapshot, number, add, use_reserve=False)
                if done and number != snapshot.head.last:
                    self.writer.log_change(number)
            if done is not None:
                return done
        raise self.writer.busy()
