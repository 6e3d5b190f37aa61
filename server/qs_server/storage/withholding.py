"""What a queue in the vsqs layout does with messages that are in a claim: their files are named MID.WITHHELD."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from .attributes import Attributes
from .engine import Durability, Message, StaleReceiptError
from .indexed import IndexedQueue
from .names import WITHHELD, message_name
from .publishing import PublishingDirectory


class WithholdingQueue(PublishingDirectory, IndexedQueue):
    """See Withholding (claimable.py)."""

    alone = False
    is_closed = False

    def close(self) -> list[int]:
        self.is_closed = True
        return super().close()

    def is_there(self) -> bool:
        return not self.is_closed and self.in_place()

    @abstractmethod
    def _content(self, mid: int, expiry: int, max_bytes: int | None) -> bytes | None:
        """The payload of a message in a state; None when it is gone, or over max_bytes."""

    def check_free(self, mid: int, expiry: int) -> None:
        """StaleReceiptError when a message in that state is in a claim: nobody else may do anything with it."""
        if expiry == WITHHELD:
            raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is in a claim: list-claims says whose")

    def ready_after(self, after: int, count: int) -> list[int]:
        return self._index.ready.after(after, count)

    def measure(self, mids: Sequence[int]) -> list[int | None]:
        sizes = self._index.sizes(mids)
        for at, mid in enumerate(mids):
            if sizes[at] is None and self.load(mid):
                sizes[at] = self._index.size(mid)
        return sizes

    def catch_up(self) -> None:
        self._watch.refresh()
        self.expire()

    def hold_fast(self) -> None:
        if self._durability is Durability.ALWAYS:
            self.commit()
        elif self._durability is Durability.INTERVAL:
            self._disk.sync_file_system(self.path)

    def withhold(self, mids: Sequence[int], done: list[int]) -> None:
        for mid in mids:
            while self._index.expiry(mid) == 0:
                if self.rename(mid, 0, WITHHELD):
                    self._index.withhold(mid)
                    self.touch()
                    done.append(mid)

    def withhold_again(self, mid: int) -> bool:
        while (expiry := self._index.expiry(mid)) is not None and expiry != WITHHELD:
            if self.rename(mid, expiry, WITHHELD):
                self._index.withhold(mid)
                self.touch()
        return expiry is not None

    def withheld_of(self, mids: Sequence[int]) -> list[int]:
        return self._index.withheld_of(mids)

    def _has_withheld(self, mid: int) -> bool:
        """Whether a message is withheld, also when it is another server that did it, just now."""
        if self._index.expiry(mid) != WITHHELD and not self.alone:
            self.changed(message_name(mid, WITHHELD).encode(), appeared=True)
        return self._index.expiry(mid) == WITHHELD

    def give_up(self, mid: int) -> None:
        if self._index.expiry(mid) == WITHHELD and self.rename(mid, WITHHELD, 0):
            self.show_again(mid)
            self.touch()

    def show_again(self, mid: int) -> None:
        """A withheld message is visible, and new if it was."""
        self._index.show(mid)
        self.arrived()
        if self._receives(mid, 0) == 0:
            self._index.new.add(mid)

    def hand_back(self, mid: int) -> None:
        if not self._has_withheld(mid) or not self.load(mid):
            return
        path = self.name_path(mid, WITHHELD)
        receives = self._attributes.receives(path, mid) + 1
        self._attributes.write(path, mid, Attributes(receives))
        self.give_up(mid)
        self.touch(mid)
        self.note("released", mid, receives)

    def read_all_withheld(self, mids: Sequence[int]) -> Iterator[Message]:
        return filter(None, map(self._read_withheld, mids))

    def _read_withheld(self, mid: int) -> Message | None:
        while self._has_withheld(mid):
            payload = self._content(mid, WITHHELD, None)
            if payload is not None:
                receives = self._attributes.receives(self.name_path(mid, WITHHELD), mid) + 1
                return Message(self.qid, mid, "delivered", receives, self.time(mid), None, payload)
        return None

    def remove_withheld(self, mids: Sequence[int]) -> int:
        mid = mids[0]
        while self._has_withheld(mid):
            if self.remove(mid, WITHHELD):
                self.counts.deleted += 1
                self.touch()
        return 1

    def withheld(self) -> list[int]:
        hidden = self._index.hidden
        return [mid for mid in hidden.after(-1, len(hidden)) if hidden.get(mid) == WITHHELD]

    def note_claimed(self, mids: Sequence[int]) -> None:
        self.counts.delivered += len(mids)
        if self._shared.lifecycle is not None:
            for mid in mids:
                self.note("received", mid)

    def _receives(self, mid: int, expiry: int) -> int | None:
        """That a message is in a claim counts, though it is written nowhere."""
        found = super()._receives(mid, expiry)
        return found + 1 if found is not None and expiry == WITHHELD else found
