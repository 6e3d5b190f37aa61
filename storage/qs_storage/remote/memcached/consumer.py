"""Receives and removes messages of one queue in memcached: looks what is visible, swaps, reads payloads."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from ...engine import Clock, Message, NoSuchMessageError, Receipt, RemoteError, StaleReceiptError
from ..registry import Counters
from .capacity import Capacity
from .layout import Entry, Page, no_such_message
from .page_index import NEVER
from .page_reader import PageReader, Snapshot
from .page_writer import PageWriter
from .payloads import Payloads

POLL_INTERVAL = 0.5
"""Seconds between two looks for pushes of other processes, a round trip a queue. Those of this one wake at once."""


class Visible(NamedTuple):
    mid: int
    size: int
    number: int


@dataclass(slots=True)
class Consumer:
    """Several threads may use it. Methods raise RemoteError."""

    reader: PageReader
    writer: PageWriter
    payloads: Payloads
    capacity: Capacity
    counters: Counters
    clock: Clock
    visibility: int
    """Microseconds: the queue's own window."""
    _looked: float = 0.0
    """When, by time.monotonic."""

    def look(self, count: int, max_bytes: int) -> tuple[Snapshot | None, list[Visible]]:
        """Returns the oldest visible messages, enough for such a receive. Hold PageReader.locked until `take`."""
        found: list[Visible] = []
        self._looked = time.monotonic()
        snapshot = self.reader.look(next(self.reader.index.candidates(self.clock()), None))
        if snapshot is None:
            return None, found
        now, size = self.clock(), 0
        for number in self.reader.index.candidates(now):
            more = self._look_at(snapshot, number, now, count)
            found += more
            size += sum(each.size for each in more)
            if len(found) >= count or size > max_bytes:
                return snapshot, found
        found += self._look_at(snapshot, snapshot.head.last, now, count)
        return snapshot, found

    def _look_at(self, snapshot: Snapshot, number: int, now: int, count: int) -> list[Visible]:
        page = self.reader.page(snapshot, number)
        if page is None:
            self.reader.index.note_due(number, NEVER)
            return []
        rows = page.entries
        visible = (
            Visible(mid, size, number)
            for mid, size, visible_at in zip(rows.mids, rows.sizes, rows.visible_at, strict=True)
            if visible_at <= now
        )
        found = list(islice(visible, count))
        if not found or number == snapshot.head.last:
            self.writer.note_due(snapshot, number, page)
        return found

    def next_due(self) -> int:
        return self.reader.index.next_due()

    def start_poll(self) -> bool:
        """Tells one of the waiting threads that it is time to look again."""
        now = time.monotonic()
        if now < self._looked + POLL_INTERVAL and self.next_due() > self.clock():
            return False
        self._looked = now
        return True

    def take(self, snapshot: Snapshot, chosen: Sequence[Visible], visibility: int | None) -> list[tuple[Entry, int]]:
        """Receives the messages that are still visible. Returns each with its page."""
        taken: list[tuple[Entry, int]] = []
        for number in dict.fromkeys(each.number for each in chosen):
            mids = [each.mid for each in chosen if each.number == number]
            try:
                entries = self.writer.change(snapshot, number, partial(self.hide, mids=mids, visibility=visibility))
            except RemoteError:
                if taken:  # from the pages before it
                    break
                raise
            taken += [(entry, number) for entry in entries or ()]
        return taken

    def hide(self, page: Page, mids: Sequence[int], visibility: int | None) -> list[Entry]:
        """Receives the visible messages among `mids`."""
        until = self.clock() + (self.visibility if visibility is None else visibility)
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
            payloads = self.payloads.find([entry for entry, _ in taken])
        except RemoteError:
            self._put_back([entry for entry, _ in taken])
            raise
        messages = []
        for entry, number in taken:
            if (payload := payloads.get(entry.token)) is None:
                self._remove_lost(entry, number)
            else:
                messages.append(message_of(self.reader.qid, entry, "delivered", payload))
        self.counters.add("delivered", len(messages))
        return messages

    def payload(self, entry: Entry, number: int) -> bytes:
        """Raises NoSuchMessageError if memcached has evicted the payload."""
        payload = self.payloads.find([entry]).get(entry.token)
        if payload is None:
            self._remove_lost(entry, number)
            raise no_such_message(self.reader.qid, entry.mid)
        return payload

    def _put_back(self, entries: Sequence[Entry]) -> None:
        """Makes messages visible again after a failure; otherwise they are visible when their windows end."""

        def edit(page: Page, index: int) -> None:
            entry = page.entries[index]
            page.put(index, entry._replace(visible_at=0, receives=entry.receives - 1))

        try:
            for entry in entries:
                self.writer.change_message(Receipt(entry.mid, entry.receives), edit)
        except (RemoteError, NoSuchMessageError, StaleReceiptError):
            return

    def _remove_lost(self, entry: Entry, number: int) -> None:
        """Removes a message whose payload is gone: evicted by memcached, or deleted with the message."""

        def edit(page: Page) -> bool:
            index = page.entries.find(entry.mid)
            return index is not None and page.entries[index].token == entry.token and bool(page.remove([entry.mid]))

        with self.reader.locked():
            snapshot = self.reader.look()
            if snapshot is None or not self.writer.change(snapshot, number, edit):
                return
            self._note_removed(1)
        self.payloads.remove([entry])
        self.reader.note_loss()

    def _note_removed(self, count: int) -> None:
        self.capacity.give_back(count)
        self.writer.trim()

    def delete(self, receipt: Receipt) -> None:
        with self.reader.locked():
            [entry], _ = self.writer.change_message(receipt, lambda page, at: page.remove([page.entries[at].mid]))
            self._note_removed(1)
        self.payloads.remove([entry])
        self.counters.add("deleted")

    def purge(self, upto: int, count: int) -> int:
        removed = number = 0
        done = False

        def edit(page: Page) -> tuple[list[Entry], bool]:
            mids = [mid for mid in page.entries.mids[: count - removed] if mid <= upto]
            return page.remove(mids), page.low >= upto

        while removed < count and not done:
            with self.reader.locked():
                snapshot = self.reader.look()
                if snapshot is None or (number := max(number, snapshot.head.first)) > snapshot.head.last:
                    break
                gone, done = self.writer.change(snapshot, number, edit) or ([], False)
                if gone:
                    self._note_removed(len(gone))
            self.payloads.remove(gone)
            removed += len(gone)
            number += 1
        self.counters.add("deleted", removed)
        return removed


def status_of(entry: Entry) -> str:
    if not entry.visible_at:
        return "ready"
    return "delayed" if entry.delayed else "in-flight"


def message_of(qid: str, entry: Entry, status: str, payload: bytes | None) -> Message:
    return Message(qid, entry.mid, status, entry.receives, entry.mid, entry.visible_at or None, payload)
