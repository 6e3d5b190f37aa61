"""One queue in memcached: what can be done with its messages."""

import logging
from bisect import bisect_right
from typing import ClassVar

from ...engine import Message, Receipt, StaleReceiptError, State, Stats
from ..engine import RemoteError
from .layout import RETIRED, Page, missing
from .pages import TRIES
from .reading import Look
from .receiving import ReceivingQueue
from .rows import Entry

_logger = logging.getLogger(__name__)


class MemcachedQueue(ReceivingQueue):
    """A queue, for those who hold messages of it, look at it, or remove it."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None

    # -- one message

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """One message: received if it is visible and not peeked at; its state and no payload if it is hidden."""
        window = self.options.visibility if visibility is None else visibility

        def do(page: Page, index: int) -> tuple[Entry, str]:
            entry = page.entries[index]
            if entry.visible_at or peek:
                return entry, self._status(entry)
            return self._hide(page, [mid], window)[0], "delivered"

        (entry, status), number = self._change(Receipt(mid), do)
        if status in ("in-flight", "delayed"):
            return self._message(entry, status, None)
        if status == "delivered":
            for message in self.deliver([(entry, number)]):
                return message
            raise missing(self.qid, mid)
        return self._message(entry, status, self._payload(entry, number))

    def read(self, receipt: Receipt) -> Message:
        """A message and its payload, for whoever holds the receipt."""
        entry, number = self._change(receipt, lambda page, index: page.entries[index])
        return self._message(entry, "delivered", self._payload(entry, number))

    def _payload(self, entry: Entry, number: int) -> bytes:
        payload = self.payloads.find([entry]).get(entry.token)
        if payload is None:
            self._drop(entry, number)
            raise missing(self.qid, entry.mid)
        return payload

    def delete(self, receipt: Receipt) -> None:
        """Removes a message, in whatever state it is."""
        with self.pages.alone():
            [entry], _ = self._change(receipt, lambda page, index: page.remove([page.entries[index].mid]))
            self._removed(1)
        self.payloads.remove([entry])
        self._count("deleted", 1)

    def release(self, receipt: Receipt, delay: int) -> int | None:
        """Makes a message visible, now (None) or later (when)."""

        def do(page: Page, index: int) -> tuple[int, bool]:
            entry = page.entries[index]
            until = self._clock() + delay if delay else 0
            if until or entry.visible_at:
                page.put(index, entry._replace(visible_at=until, delayed=until > 0))
            return until, until < entry.visible_at

        with self.pages.alone():
            (until, sooner), number = self._change(receipt, do)
            if sooner:
                self.pages.announce(number)
        self._changed()
        return until or None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Moves the end of the window of a message in flight."""
        window = self.options.visibility if visibility is None else visibility

        def do(page: Page, index: int) -> tuple[int, bool]:
            entry = page.entries[index]
            if not entry.visible_at or entry.delayed:
                raise StaleReceiptError(f"message {entry.mid} of queue {self.qid!r} is not in flight")
            until = self._clock() + window
            page.put(index, entry._replace(visible_at=max(until, 1)))
            return until, until < entry.visible_at

        with self.pages.alone():
            (until, sooner), number = self._change(receipt, do)
            if sooner:
                self.pages.announce(number)
        self._changed()
        return until

    # -- looking at many

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        """Ids greater than after, oldest first."""
        found: list[int] = []
        for page in self.pages.scan(after):
            if len(found) >= count:
                break
            page.settle(self._clock())
            mids = page.entries.mids
            if state is State.ALL:
                found += mids[bisect_right(mids, after) :]
            else:
                found += [entry.mid for entry in page.entries if entry.mid > after and self._is(entry, state)]
        return found[:count]

    def _is(self, entry: Entry, state: State) -> bool:
        if state is State.NEW:
            return not entry.receives
        return bool(self._status(entry) == state.value)

    def prepare_stats(self) -> bool:
        """Has nothing to prepare."""
        return False

    def stats(self) -> Stats:
        """Figures of the queue. It reads all pages, and no payloads."""
        stats = Stats(storage=self.options.storage, **self._counts)
        now, oldest = self._clock(), None
        stats.expired = self.pages.expired
        for page in self.pages.scan(-1):
            stats.expired += page.settle(now)
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

    def purge(self, upto: int, count: int) -> int:
        """Removes the oldest messages with ids up to upto."""
        removed = 0
        with self.pages.alone():
            look = self.pages.look()
        number = look.head.first if look is not None else 0
        while look is not None and removed < count and number <= look.head.last:
            gone, done = self._purge_page(number, upto, count - removed)
            self.payloads.remove(gone)
            removed += len(gone)
            if done:
                break
            number += 1
        self._count("deleted", removed)
        return removed

    def _purge_page(self, number: int, upto: int, count: int) -> tuple[list[Entry], bool]:
        """What has been removed from a page, and whether the next ones have only greater ids."""

        def do(page: Page) -> tuple[list[Entry], bool]:
            mids = [mid for mid in page.entries.mids[:count] if mid <= upto]
            return page.remove(mids), page.low >= upto

        with self.pages.alone():
            look = self.pages.look()
            if look is None or number > look.head.last:
                return [], True
            gone, done = self.pages.change(look, number, do) or ([], False)
            if gone:
                self._removed(len(gone))
            return gone, done

    @property
    def last_mid(self) -> int:
        """The greatest id that the queue has given or seen, -1 when none."""
        with self.pages.alone():
            look = self.pages.look()
            if look is not None:
                self.pages.page(look, look.head.last)
            return self.pages.last_mid

    # -- the queue itself

    def make(self) -> None:
        """Sees to it that there is something of it."""
        with self.pages.alone():
            self.pages.make()

    def unmake(self, *, force: bool) -> bool:
        """Removes it. False when it holds messages and there is no force."""
        for _ in range(TRIES):
            if not force and any(page.entries for page in self.pages.scan(-1)):
                return False
            with self.pages.alone():
                look = self.pages.look()
                if look is None:
                    return True
                if (force or self.pages.close(look)) and self.pages.drop_head(look):
                    break
        else:
            raise self.pages.busy()
        self._clear(look)
        return True

    def _clear(self, look: Look) -> None:
        """Removes what nobody can find any more: what fails here takes room, and no more."""
        try:
            for number in range(look.head.first, look.head.last + 1):
                page = self.pages.page(look, number)
                if page is not None and page.state != RETIRED:
                    self.payloads.remove(page.entries)
                self.pages.delete_page(look, number)
        except RemoteError as error:
            _logger.warning("queue %r is removed, and not all of its memory is free yet: %s", self.qid, error)
