"""What a queue in the vsqs layout does with messages that are in a claim: their files are named MID.WITHHELD."""

from abc import abstractmethod
from collections.abc import Sequence

from .attributes import Attributes
from .engine import Durability, Message, StaleReceiptError
from .indexed import IndexedQueue
from .names import WITHHELD
from .publishing import PublishingDirectory


class WithholdingQueue(PublishingDirectory, IndexedQueue):
    """See Withholding."""

    @abstractmethod
    def _content(self, mid: int, expiry: int, max_bytes: int | None) -> bytes | None:
        """The payload of a message in a state; None when it is gone, or over max_bytes."""

    def check_free(self, mid: int, expiry: int) -> None:
        """StaleReceiptError when a message in that state is in a claim: nobody else may do anything with it."""
        if expiry == WITHHELD:
            raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is in a claim: list-claims says whose")

    def ready_after(self, after: int, count: int) -> list[int]:
        return self._index.ready.after(after, count)

    def measure(self, mid: int) -> int | None:
        return self._index.size(mid) if self.load(mid) else None

    def hold_fast(self) -> None:
        if self._durability is Durability.ALWAYS:
            self.commit()

    def withhold(self, mid: int) -> bool:
        while (expiry := self._index.expiry(mid)) is not None and expiry != WITHHELD:
            if self.rename(mid, expiry, WITHHELD):
                self._index.withhold(mid)
        self.touch()
        return expiry is not None

    def give_up(self, mid: int) -> None:
        if self._index.expiry(mid) == WITHHELD and self.rename(mid, WITHHELD, 0):
            self._index.show(mid)
            self.arrived()
            self.touch()

    def hand_back(self, mid: int) -> None:
        if self._index.expiry(mid) != WITHHELD or not self.load(mid):
            return
        path = self.name_path(mid, WITHHELD)
        receives = self._attributes.receives(path, mid) + 1
        self._attributes.write(path, mid, Attributes(receives))
        self.give_up(mid)
        self.touch(mid)
        self.note("released", mid, receives)

    def read_withheld(self, mid: int) -> Message | None:
        while self._index.expiry(mid) == WITHHELD:
            payload = self._content(mid, WITHHELD, None)
            if payload is not None:
                receives = self._attributes.receives(self.name_path(mid, WITHHELD), mid) + 1
                return Message(self.qid, mid, "delivered", receives, self.time(mid), None, payload)
        return None

    def remove_withheld(self, mid: int) -> None:
        while self._index.expiry(mid) == WITHHELD:
            if self.remove(mid, WITHHELD):
                self.counts.deleted += 1
                self.touch()

    def withheld(self) -> list[int]:
        hidden = self._index.hidden
        return [mid for mid in hidden.after(-1, len(hidden)) if hidden.get(mid) == WITHHELD]

    def note_claimed(self, mids: Sequence[int]) -> None:
        self.counts.delivered += len(mids)
        if self._shared.lifecycle is not None:
            for mid in mids:
                self.note("received", mid, self._receives(mid, WITHHELD))
