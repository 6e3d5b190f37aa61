"""One queue in memcached: connects its parts, and looks at messages."""

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import ClassVar

from ...backoff import refuse_backoff
from ...dead_letter_policy import refuse_dead_letters, refuse_reason, refuse_reject, refuse_uncounted
from ...engine import (
    Clock,
    Message,
    Options,
    QueueNotEmptyError,
    Receipt,
    RemoteError,
    State,
    Stats,
    UnsupportedError,
    not_in_flight,
)
from ...retention import refuse_retention
from ..registry import Counters
from .capacity import Capacity
from .consumer import Consumer, message_of, status_of
from .layout import RETIRED, Entry, Keys, Page, no_such_message
from .page_reader import PageReader
from .page_writer import TRIES, PageWriter
from .payloads import Payloads
from .producer import Producer
from .servers import Servers

_logger = logging.getLogger(__name__)


class MemcachedQueue:
    """See Queue. Several threads may use it. Methods also raise RemoteError."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None
    redrive: None = None

    def __init__(  # noqa: PLR0917
        self, qid: str, options: Options, keys: Keys, servers: Servers, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """changed: called when a message is visible, or will be sooner than was known."""
        self.qid = qid
        self.options = options
        self.reader = PageReader(qid, keys, servers)
        self.writer = PageWriter(self.reader, servers, clock)
        self.payloads = Payloads(keys, servers)
        self._clock = clock
        self._changed = changed
        self._counters = Counters()
        capacity = Capacity(self.reader, servers, options.capacity, self.writer.generation)
        self.producer = Producer(
            self.reader, self.writer, servers, self.payloads, capacity, self._counters, clock, changed
        )
        self.consumer = Consumer(
            self.reader, self.writer, self.payloads, capacity, self._counters, clock, options.visibility
        )
        self.push, self.delete, self.purge = self.producer.push, self.consumer.delete, self.consumer.purge

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        def edit(page: Page, index: int) -> tuple[Entry, str]:
            entry = page.entries[index]
            if entry.visible_at or peek:
                return entry, status_of(entry)
            return self.consumer.hide(page, [mid], visibility)[0], "delivered"

        (entry, status), number = self.writer.change_message(Receipt(mid), edit)
        if status in ("in-flight", "delayed"):
            return message_of(self.qid, entry, status, None)
        if status == "delivered":
            for message in self.consumer.deliver([(entry, number)]):
                return message
            raise no_such_message(self.qid, mid)
        return message_of(self.qid, entry, status, self.consumer.payload(entry, number))

    def read(self, receipt: Receipt) -> Message:
        entry, number = self.writer.change_message(receipt, lambda page, index: page.entries[index])
        return message_of(self.qid, entry, "delivered", self.consumer.payload(entry, number))

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        refuse_uncounted("memcached", count=count)
        refuse_reason("memcached", reason)
        after = delay or 0

        def released(entry: Entry) -> Entry:
            if not entry.visible_at or (entry.delayed and receipt.receives is not None):
                raise not_in_flight(self.qid, entry.mid)
            return entry._replace(visible_at=self._clock() + after if after else 0, delayed=after > 0)

        return self._reschedule(receipt, released) or None

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        raise refuse_reject("memcached")

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
            return new.visible_at, new.visible_at < old.visible_at

        with self.reader.locked():
            (visible_at, sooner), number = self.writer.change_message(receipt, edit)
            if sooner:
                self.writer.log_change(number)
        self._changed()
        return visible_at

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        found: list[int] = []
        for page in self.reader.scan(after):
            if len(found) >= count:
                break
            page.expire(self._clock())
            mids = page.entries.mids
            if state is State.ALL:
                found += mids[bisect_right(mids, after) :]
            else:
                found += [entry.mid for entry in page.entries if entry.mid > after and _is(entry, state)]
        return found[:count]

    def prepare_stats(self) -> bool:
        return False

    def stats(self) -> Stats:
        """Reads all pages, and no payloads."""
        stats = Stats(storage=self.options.storage, **self._counters.counts())
        now, oldest = self._clock(), None
        stats.expired = self.writer.expired
        for page in self.reader.scan(-1):
            stats.expired += page.expire(now)
            rows = page.entries
            if rows and oldest is None:
                oldest = rows.mids[0]
            stats.bytes += sum(rows.sizes)
            stats.new += rows.receives.count(0)
            stats.ready += rows.visible_at.count(0)
            stats.delayed += sum(rows.delayed)
            stats.in_flight += len(rows) - rows.visible_at.count(0) - sum(rows.delayed)
        stats.oldest = None if oldest is None else max(now - oldest, 0)
        return stats

    @property
    def last_mid(self) -> int:
        with self.reader.locked():
            snapshot = self.reader.look()
            if snapshot is not None:
                self.reader.page(snapshot, snapshot.head.last)
            return self.reader.last_mid

    def make(self) -> None:
        if self.options.timestamps != "us":
            raise UnsupportedError("the storage 'memcached' has no files: timestamps cannot be chosen")
        refuse_dead_letters(self.options)
        refuse_retention(self.options)
        refuse_backoff(self.options)
        self.writer.generation()

    def unmake(self, *, force: bool) -> None:
        for _ in range(TRIES):
            if not force and any(page.entries for page in self.reader.scan(-1)):
                raise QueueNotEmptyError(f"queue {self.qid!r} is not empty")
            with self.reader.locked():
                snapshot = self.reader.look()
                if snapshot is None:
                    return
                if (force or self.writer.seal(snapshot)) and self.writer.drop_head(snapshot):
                    break
        else:
            raise self.writer.busy()
        try:
            for number in range(snapshot.head.first, snapshot.head.last + 1):
                page = self.reader.page(snapshot, number)
                if page is not None and page.state != RETIRED:
                    self.payloads.remove(page.entries)
                self.writer.delete_page(snapshot.head, number)
        except RemoteError as error:
            _logger.warning("queue %r is removed, and not all of its memory is free yet: %s", self.qid, error)


def _is(entry: Entry, state: State) -> bool:
    return not entry.receives if state is State.NEW else status_of(entry) == state.value
