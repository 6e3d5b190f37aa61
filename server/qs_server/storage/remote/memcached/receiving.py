"""One queue in memcached: receiving messages."""

import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from ...engine import Message, NoSuchMessageError, Receipt, StaleReceiptError
from ..engine import RemoteError
from .known import NEVER
from .layout import Page
from .reading import Look
from .rows import Entry
from .storing import StoringQueue
from .waiting import LOOK_EVERY


class Found(NamedTuple):
    """A visible message, and its page."""

    mid: int
    size: int
    number: int


class ReceivingQueue(StoringQueue):
    """First it is looked what is visible, in all the queues that are asked for; what is chosen of that is taken by a
    swap; then its payloads are fetched."""

    _looked = 0.0

    def visible(self, count: int, max_bytes: int) -> tuple[Look | None, list[Found]]:
        """The oldest visible messages, for `take`, as many as anybody could have of so many and so large ones. The
        caller is alone with the pages until it has taken them."""
        found: list[Found] = []
        self._looked = time.monotonic()
        look = self.pages.look(self.pages.known.first_candidate())
        if look is None:
            return None, found
        now, size = self._clock(), 0
        for number in self.pages.known.candidates(now):
            more = self._visible_in(look, number, now, count)
            found += more
            size += sum(each.size for each in more)
            if len(found) >= count or size > max_bytes:
                return look, found
        found += self._visible_in(look, look.head.last, now, count)
        return look, found

    def _visible_in(self, look: Look, number: int, now: int, count: int) -> list[Found]:
        """The first that are visible in a page."""
        page = self.pages.page(look, number)
        if page is None:
            self.pages.known.nothing_before(number, NEVER)
            return []
        rows = page.entries
        all_visible = (
            Found(mid, size, number)
            for mid, size, visible_at in zip(rows.mids, rows.sizes, rows.visible_at, strict=True)
            if visible_at <= now
        )
        visible = list(islice(all_visible, count))
        if not visible or number == look.head.last:
            self.pages.looked(look, number, page)
        return visible

    def next_visible(self) -> int:
        """When something becomes visible, as far as is known: far away when it is not."""
        return min(self.pages.tail_bound, self.pages.known.next_bound())

    def claim_look(self, now: float) -> bool:
        """Whether nobody has looked for so long that it is time to. now: as of time.monotonic."""
        if now < self._looked + LOOK_EVERY and self.next_visible() > self._clock():
            return False
        self._looked = now
        return True

    def take(self, look: Look, chosen: Sequence[Found], visibility: int | None) -> list[tuple[Entry, int]]:
        """Receives messages that are visible still: each as it is now, and its page."""
        window = self.options.visibility if visibility is None else visibility
        taken: list[tuple[Entry, int]] = []
        for number in dict.fromkeys(found.number for found in chosen):
            mids = [found.mid for found in chosen if found.number == number]
            try:
                entries = self.pages.change(look, number, partial(self._hide, mids=mids, window=window))
            except RemoteError:
                if taken:  # those before it are taken already
                    break
                raise
            taken += [(entry, number) for entry in entries or ()]
        return taken

    def _hide(self, page: Page, mids: Sequence[int], window: int) -> list[Entry]:
        until = self._clock() + window
        taken = []
        for mid in mids:
            index = page.find(mid)
            if index is not None and not page.entries.visible_at[index]:
                entry = page.entries[index]
                entry = entry._replace(visible_at=max(until, 1), receives=entry.receives + 1, delayed=False)
                page.put(index, entry)
                taken.append(entry)
        return taken

    def deliver(self, taken: Sequence[tuple[Entry, int]]) -> list[Message]:
        """What was taken, with payloads. Messages that have none any more are removed."""
        try:
            payloads = self.payloads.find([entry for entry, _ in taken])
        except RemoteError:
            self._put_back(taken)
            raise
        messages = []
        for entry, number in taken:
            if (payload := payloads.get(entry.token)) is None:
                self._drop(entry, number)
            else:
                messages.append(self._message(entry, "delivered", payload))
        self._count("delivered", len(messages))
        return messages

    def _put_back(self, taken: Sequence[tuple[Entry, int]]) -> None:
        """Nobody will get these. If memcached cannot even be told that, they come back when their windows end."""
        try:
            for entry, _ in taken:
                self._change(Receipt(entry.mid, entry.receives), self._untake)
        except (RemoteError, NoSuchMessageError, StaleReceiptError):
            return

    @staticmethod
    def _untake(page: Page, index: int) -> None:
        entry = page.entries[index]
        page.put(index, entry._replace(visible_at=0, receives=entry.receives - 1))

    def _drop(self, entry: Entry, number: int) -> None:
        """A message has no payload any more. Unless somebody has deleted it, memcached has given that up."""

        def do(page: Page) -> bool:
            index = page.find(entry.mid)
            return index is not None and page.entries[index].token == entry.token and bool(page.remove([entry.mid]))

        with self.pages.alone():
            look = self.pages.look()
            if look is None or not self.pages.change(look, number, do):
                return
            self._removed(1)
        self.payloads.remove([entry])
        self.lost += 1
        if self.lost == 1:
            self.pages.note_lost(number)

    @staticmethod
    def _status(entry: Entry) -> str:
        if not entry.visible_at:
            return "ready"
        return "delayed" if entry.delayed else "in-flight"

    def _message(self, entry: Entry, status: str, payload: bytes | None) -> Message:
        visible_at = entry.visible_at or None
        return Message(self.qid, entry.mid, status, entry.receives, entry.mid, visible_at, payload)
