"""One queue in memcached."""

import contextlib
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from ..engine import (
    Clock,
    Draft,
    Headers,
    Message,
    NoSuchMessageError,
    Options,
    OtherMessageError,
    QueueFullError,
    QueueNotEmptyError,
    Receipt,
    RemoteError,
    StaleReceiptError,
    State,
    Stats,
    UnsupportedError,
    not_in_flight,
)
from ..names import MAX_MID
from ..policy import PLAIN, refuse_attributes
from ..remote_engine import RemoteQueue
from .memcached_items import Capacity, Payloads, PushKeys, StoredPayload
from .memcached_layout import MOST, OPEN, PAGE, RETIRED, SEALED, Entry, ItemKeys, Page, no_such_message
from .memcached_pages import NEVER, Pages, QueueSnapshot, tries
from .memcached_servers import MemcachedServers

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
POLL_INTERVAL = 0.5
"""Seconds between two looks for pushes of other processes, a round trip a queue. Pushes of this process
wake receives at once."""


class Visible(NamedTuple):
    """A visible message that was seen in a page. size: the bytes of its payload; number: the page's."""

    mid: int
    size: int
    number: int


class MemcachedQueue(RemoteQueue):
    """A queue in memcached.

    Ensures, with any number of other processes:
    1. An answered push is complete, and all its messages become visible at one moment: they are in one page.
    2. A message is in one window at a time.
    3. Ids increase.
    4. A process that is killed may leave unused items, but no incomplete message.

    Assumes that memcached evicts nothing. An eviction is noticed and logged, and its messages are lost. Threads push
    without waiting for each other's payloads; everything else is done inside Pages.locked."""

    redrive: None = None

    def __init__(  # noqa: PLR0917
        self,
        qid: str,
        options: Options,
        keys: ItemKeys,
        servers: MemcachedServers,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """changed: called when a message becomes visible, or will be visible sooner than was known."""
        super().__init__(qid, options)
        self.pages = Pages(qid, keys, servers, clock)
        self._servers = servers
        self._payloads = Payloads(keys, servers)
        self._capacity = Capacity(self.pages, servers, options.capacity)
        self._clock = clock
        self._changed = changed
        self._looked = 0.0
        """The time of the last look, by time.monotonic."""

    # -- the queue itself

    def make(self) -> None:
        self.pages.generation()

    def unmake(self, *, force: bool) -> None:
        for _ in tries():
            if not force and any(page.entries for page in self.pages.scan(-1)):
                raise QueueNotEmptyError(f"queue {self.qid!r} is not empty")
            with self.pages.locked():
                snapshot = self.pages.look()
                if snapshot is None:
                    return
                if (force or self.pages.seal(snapshot)) and self.pages.drop_head(snapshot):
                    break
        else:
            raise self.pages.busy()
        try:
            for number in range(snapshot.head.first, snapshot.head.last + 1):
                page = self.pages.page(snapshot, number)
                if page is not None and page.state != RETIRED:
                    self._payloads.remove(page.entries)
                self.pages.delete_page(snapshot.head, number)
        except RemoteError as error:
            _logger.warning("queue %r is removed, and not all of its memory is free yet: %s", self.qid, error)

    @property
    def last_mid(self) -> int:
        with self.pages.locked():
            snapshot = self.pages.look()
            if snapshot is not None:
                self.pages.page(snapshot, snapshot.head.last)
            return self.pages.last_mid

    # -- messages that come

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Implements `Queue.push`. UnsupportedError for more messages than a page can have, and for attributes other
        than keys and headers."""
        if len(drafts) > MOST:
            raise UnsupportedError(f"a list of {len(drafts)} messages is too long for memcached: {MOST} is the most")
        if not drafts:
            return []
        for draft in drafts:
            if draft[2:] != PLAIN:
                refuse_attributes(self.options.storage, draft)
        # Outside of the lock: payloads may be large, and other threads need not wait for them.
        stored = self._payloads.store([(draft.payload, draft.headers) for draft in drafts])
        keys = PushKeys(self.pages, self._servers, self._clock, stored)
        try:
            fresh = keys.claim([draft.key for draft in drafts])
            mids = self._store([(drafts[index].delay, stored[index]) for index in fresh])
        except QueueFullError:
            keys.release()
            self._payloads.remove(stored)
            raise
        self._payloads.remove([stored[index] for index in set(range(len(drafts))).difference(fresh)])
        mids = keys.settle(dict(zip(fresh, mids, strict=True)))
        self._changed()
        return mids

    def _store(self, delayed: Sequence[tuple[int, StoredPayload]]) -> list[int]:
        """Makes messages of payloads, each with its delay."""
        if not delayed:
            return []
        with self.pages.locked(), self._capacity.reserve(len(delayed)):
            for _ in tries():
                snapshot, _ = self.pages.tail()
                mids = self._append(snapshot, len(delayed), lambda page: self._add(page, delayed))
                if mids is not None:
                    self.count("pushed", len(mids))
                    return mids
        raise self.pages.busy()

    def _add(self, page: Page, delayed: Sequence[tuple[int, StoredPayload]]) -> list[int]:
        now = self._clock()
        # Greater than all in memcached, and than all that this server has seen if memcached has forgotten.
        first = max(now, page.last + 1, self.pages.last_mid + 1)
        if first + len(delayed) - 1 > MAX_MID:
            raise QueueFullError(f"queue {self.qid!r} has had the id {page.last}: no room is left for another one")
        for mid, (delay, payload) in enumerate(delayed, first):
            page.insert(Entry(mid, now + delay if delay else 0, 0, payload.size, delay > 0, payload.token))
        return list(range(first, first + len(delayed)))

    def _append(self, snapshot: QueueSnapshot, count: int, add: Callable[[Page], _T | None]) -> _T | None:
        """Lets `add` put messages into the last page. Returns None if the queue has changed: then look again."""

        def edit(page: Page) -> _T | None:
            if page.state != OPEN:
                return None
            # A list goes into one page, however long, so that it becomes visible at one moment.
            if page.entries and len(page.entries) + count > PAGE:
                page.state, page.changed = SEALED, True
                return None
            return add(page)

        return self.pages.change(snapshot, snapshot.head.last, edit, use_reserve=False)

    def insert(self, message: Message) -> bool:
        """Stores a copy under the original's id. Returns False if the queue has the message already.
        OtherMessageError."""
        if self._has(message):  # then it needs no room
            return False
        [stored] = self._payloads.store([(message.payload or b"", message.headers)])
        try:
            with self.pages.locked(), self._capacity.reserve(1):
                done = self._insert(Entry(message.mid, 0, 0, stored.size, False, stored.token))
                if not done:
                    self._capacity.give_back(1)
        except QueueFullError:
            self._payloads.remove([stored])
            raise
        if done:
            self.count("pushed")
            self._changed()
        else:
            self._payloads.remove([stored])
            self._has(message)
        return done

    def _has(self, message: Message) -> bool:
        """Tells whether the queue has a message. OtherMessageError if another message has the id."""
        try:
            other = self.read(Receipt(message.mid))
        except NoSuchMessageError:
            return False
        if (other.payload, other.headers) != (message.payload, message.headers):
            raise OtherMessageError(f"queue {self.qid!r} holds another message with the id {message.mid}")
        return True

    def _insert(self, entry: Entry) -> bool:
        def add(page: Page) -> bool | None:
            if page.state not in (OPEN, SEALED):
                return None
            if page.entries.find(entry.mid) is not None:
                return False
            if len(page.entries) == MOST:
                raise QueueFullError(f"queue {self.qid!r} has no room left for a message between others")
            page.insert(entry)
            return True

        for _ in tries():
            snapshot, tail = self.pages.tail()
            if entry.mid > tail.last:
                done = self._append(snapshot, 1, lambda page: add(page) if entry.mid > page.last else None)
            else:
                number = self.pages.locate(snapshot, entry.mid)
                done = self.pages.change(snapshot, number, add, use_reserve=False)
                if done and number != snapshot.head.last:
                    self.pages.log_change(number)
            if done is not None:
                return done
        raise self.pages.busy()

    # -- receiving, which the engine does over several queues: look, choose, take, deliver

    def look(self, count: int, max_bytes: int) -> tuple[QueueSnapshot | None, list[Visible]]:
        """Returns the oldest visible messages, enough for a receive of count and max_bytes. Hold Pages.locked until
        `take`."""
        found: list[Visible] = []
        self._looked = time.monotonic()
        snapshot = self.pages.look(next(self.pages.index.candidates(self._clock()), None))
        if snapshot is None:
            return None, found
        now, size = self._clock(), 0
        for number in self.pages.index.candidates(now):
            more = self._look_at(snapshot, number, now, count)
            found += more
            size += sum(each.size for each in more)
            if len(found) >= count or size > max_bytes:
                return snapshot, found
        found += self._look_at(snapshot, snapshot.head.last, now, count)
        return snapshot, found

    def _look_at(self, snapshot: QueueSnapshot, number: int, now: int, count: int) -> list[Visible]:
        page = self.pages.page(snapshot, number)
        if page is None:
            self.pages.index.note_due(number, NEVER)
            return []
        rows = page.entries
        visible = (
            Visible(mid, size, number)
            for mid, size, visible_at in zip(rows.mids, rows.sizes, rows.visible_at, strict=True)
            if visible_at <= now
        )
        found = list(islice(visible, count))
        if not found or number == snapshot.head.last:
            self.pages.note_due(snapshot, number, page)
        return found

    def next_due(self) -> int:
        return self.pages.index.next_due()

    def start_poll(self) -> bool:
        """Wakes one of the waiting threads, to look for messages again."""
        now = time.monotonic()
        if now < self._looked + POLL_INTERVAL and self.next_due() > self._clock():
            return False
        self._looked = now
        return True

    def take(
        self, snapshot: QueueSnapshot, chosen: Sequence[Visible], visibility: int | None
    ) -> list[tuple[Entry, int]]:
        """Receives those of the messages that are still visible. Returns each with its page."""
        taken: list[tuple[Entry, int]] = []
        for number in dict.fromkeys(each.number for each in chosen):
            # One swap for each page.
            mids = [each.mid for each in chosen if each.number == number]
            try:
                entries = self.pages.change(snapshot, number, partial(self._hide, mids=mids, visibility=visibility))
            except RemoteError:
                if taken:  # from the pages before it
                    break
                raise
            taken += [(entry, number) for entry in entries or ()]
        return taken

    def _hide(self, page: Page, mids: Sequence[int], visibility: int | None) -> list[Entry]:
        """Receives the visible messages among `mids`."""
        until = self._clock() + (self.options.visibility if visibility is None else visibility)
        taken = []
        for mid in mids:
            index = page.entries.find(mid)
            if index is not None and not page.entries.visible_at[index]:
                entry = page.entries[index]
                entry = entry._replace(visible_at=max(until, 1), receives=entry.receives + 1, delayed=False)
                page.put(index, entry)
                taken.append(entry)
        return taken

    def deliver(self, taken: Sequence[tuple[Entry, int]]) -> list[Message]:
        """Returns the messages with their payloads. Removes those whose payload memcached has evicted."""
        try:
            contents = self._payloads.find([entry for entry, _ in taken])
        except RemoteError:
            self._put_back([entry for entry, _ in taken])
            raise
        messages = []
        for entry, number in taken:
            if (content := contents.get(entry.token)) is None:
                self._remove_lost(entry, number)
            else:
                messages.append(self._message(entry, "delivered", content))
        self.count("delivered", len(messages))
        return messages

    def _put_back(self, entries: Sequence[Entry]) -> None:
        """Makes messages visible again after a failure. If that fails, they are visible when their windows end."""

        def edit(page: Page, index: int) -> None:
            entry = page.entries[index]
            page.put(index, entry._replace(visible_at=0, receives=entry.receives - 1))

        with contextlib.suppress(RemoteError, NoSuchMessageError, StaleReceiptError):
            for entry in entries:
                self.pages.change_message(Receipt(entry.mid, entry.receives), edit)

    def _remove_lost(self, entry: Entry, number: int) -> None:
        """Removes a message whose payload is gone, because memcached has evicted the payload, or another process has
        deleted the message."""

        def edit(page: Page) -> bool:
            index = page.entries.find(entry.mid)
            return index is not None and page.entries[index].token == entry.token and bool(page.remove([entry.mid]))

        with self.pages.locked():
            snapshot = self.pages.look()
            if snapshot is None or not self.pages.change(snapshot, number, edit):
                return
            self._note_removed(1)
        self._payloads.remove([entry])
        self.pages.note_loss()

    # -- looking at messages

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        def edit(page: Page, index: int) -> tuple[Entry, str]:
            entry = page.entries[index]
            if entry.visible_at or peek:
                return entry, entry.status
            return self._hide(page, [mid], visibility)[0], "delivered"

        (entry, status), number = self.pages.change_message(Receipt(mid), edit)
        if status in ("in-flight", "delayed"):
            return self._message(entry, status, None)
        if status == "delivered":
            for message in self.deliver([(entry, number)]):
                return message
            raise no_such_message(self.qid, mid)
        return self._message(entry, status, self._content(entry, number))

    def read(self, receipt: Receipt) -> Message:
        entry, number = self.pages.change_message(receipt, lambda page, index: page.entries[index])
        return self._message(entry, "delivered", self._content(entry, number))

    def _message(self, entry: Entry, status: str, content: tuple[bytes, Headers] | None) -> Message:
        message = Message(self.qid, entry.mid, status, entry.receives, entry.mid, entry.visible_at or None)
        if content is not None:
            message.payload, message.headers = content
        return message

    def _content(self, entry: Entry, number: int) -> tuple[bytes, Headers]:
        """Returns the payload and the headers of a message. NoSuchMessageError if memcached has evicted them."""
        content = self._payloads.find([entry]).get(entry.token)
        if content is None:
            self._remove_lost(entry, number)
            raise no_such_message(self.qid, entry.mid)
        return content

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        found: list[int] = []
        for page in self.pages.scan(after):
            if len(found) >= count:
                break
            page.expire(self._clock())
            mids = page.entries.mids
            if state is State.ALL:
                found += mids[bisect_right(mids, after) :]
            else:
                found += [entry.mid for entry in page.entries if entry.mid > after and entry.is_in(state)]
        return found[:count]

    def stats(self) -> Stats:
        """Counts the messages by reading all pages, but no payloads."""
        stats = Stats(storage=self.options.storage, expired=self.pages.expired)
        for name, number in self.counts().items():
            setattr(stats, name, number)
        now = self._clock()
        for page in self.pages.scan(-1):
            stats.expired += page.expire(now)
            rows = page.entries
            if rows and stats.oldest is None:
                stats.oldest = max(now - rows.mids[0], 0)
            delayed, ready = sum(rows.delayed), rows.visible_at.count(0)
            stats.bytes += sum(rows.sizes)
            stats.new += rows.receives.count(0)
            stats.ready += ready
            stats.delayed += delayed
            stats.in_flight += len(rows) - ready - delayed
        return stats

    # -- changing and removing messages

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        self.check_release(count=count, reason=reason)
        after = delay or 0

        def released(entry: Entry) -> Entry:
            if not entry.visible_at or (entry.delayed and receipt.receives is not None):
                raise not_in_flight(self.qid, entry.mid)
            return entry._replace(visible_at=self._clock() + after if after else 0, delayed=after > 0)

        return self._reschedule(receipt, released) or None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        window = self.options.visibility if visibility is None else visibility

        def extended(entry: Entry) -> Entry:
            if not entry.visible_at or entry.delayed:
                raise not_in_flight(self.qid, entry.mid)
            return entry._replace(visible_at=max(self._clock() + window, 1))

        return self._reschedule(receipt, extended)

    def _reschedule(self, receipt: Receipt, change: Callable[[Entry], Entry]) -> int:
        """Changes when a message becomes visible. Returns the time, 0 for now."""

        def edit(page: Page, index: int) -> tuple[int, bool]:
            old = page.entries[index]
            new = change(old)
            if new != old:
                page.put(index, new)
            # Only what is visible sooner has to be told: others look again when the later time comes.
            return new.visible_at, new.visible_at < old.visible_at

        with self.pages.locked():
            (visible_at, sooner), number = self.pages.change_message(receipt, edit)
            if sooner:
                self.pages.log_change(number)
        self._changed()
        return visible_at

    def delete(self, receipt: Receipt) -> None:
        with self.pages.locked():
            [entry], _ = self.pages.change_message(receipt, lambda page, at: page.remove([page.entries[at].mid]))
            self._note_removed(1)
        self._payloads.remove([entry])
        self.count("deleted")

    def purge(self, upto: int, count: int) -> int:
        removed = number = 0
        done = False

        def edit(page: Page) -> tuple[list[Entry], bool]:
            mids = [mid for mid in page.entries.mids[: count - removed] if mid <= upto]
            return page.remove(mids), page.low >= upto

        while removed < count and not done:
            with self.pages.locked():
                snapshot = self.pages.look()
                if snapshot is None or (number := max(number, snapshot.head.first)) > snapshot.head.last:
                    break
                gone, done = self.pages.change(snapshot, number, edit) or ([], False)
                if gone:
                    self._note_removed(len(gone))
            self._payloads.remove(gone)
            removed += len(gone)
            number += 1
        self.count("deleted", removed)
        return removed

    def _note_removed(self, count: int) -> None:
        self._capacity.give_back(count)
        self.pages.trim()
