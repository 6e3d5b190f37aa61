"""A queue of the journal and the claims on its messages: a claim is its file, and nothing about it is in the journal.

For the journal, and for the directory while the server runs, the messages of a claim are ready. So making a claim costs
one small file, whatever it holds, and a start looks the claims up again.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from ..claiming import MOST
from ..directory import READ
from ..engine import Durability, Message
from ..names import WITHHELD
from . import records
from .entries import CLEAN, IN_FILE, NOWHERE, Entry
from .recorded import ANNOUNCE, RecordedQueue


class ClaimedQueue(RecordedQueue):
    """See Withholding (claimable.py)."""

    most_claimed = MOST
    alone = True

    def _settle(self) -> None:
        """Not before the journal has been replayed."""

    def settle(self) -> None:
        """Everything is known of the messages that the last server has left."""
        for mid in self.withheld():
            if self.entries.get(mid) is None:
                self.entries.add(mid, Entry(None, IN_FILE, WITHHELD, CLEAN, self._clock()))
        self.hides_withheld = True
        if not all([self.claims.settle(), self.batches.settle()]):
            with suppress(OSError):
                self.ledger.commit()  # that it failed has been said, and nothing else hangs on it

    def come_to_rest(self) -> None:
        """Other programs may consume soon: what is in a claim is to be hidden from them."""
        self.hides_withheld = False
        for mid in self.withheld():
            if self.entries.get(mid) is None:
                self.entries.add(mid, Entry(None, IN_FILE, 0, CLEAN, self._clock()))

    def hold_fast(self) -> None:
        self.ledger.commit_early()
        if self._durability is Durability.INTERVAL and (sync := self._journal.background_sync()) is not None:
            sync()

    def withhold(self, mids: Sequence[int], done: list[int]) -> None:
        """In memory: the claim's file is what lasts. They are visible: nobody else could have been faster."""
        self._index.withhold_all(mids)
        done += mids

    def read_all_withheld(self, mids: Sequence[int]) -> Iterator[Message]:
        """Of a claim that was made some time ago, most are in files, and nothing is changing: these without a look at
        what else could be."""
        withheld = self.withheld_of(mids)
        for mid, size in zip(withheld, self._index.sizes(withheld), strict=True):
            if self.entries.get(mid) is None and mid not in self.writing and size:
                path = self.file_path(mid, self._disk_of(WITHHELD))
                payload = self._read_file(path, size)
                if payload is not None:
                    receives = self.files.receives(path, mid) + 1
                    yield Message(self.qid, mid, "delivered", receives, self.time(mid), None, payload)
                    continue
            if (message := self._read_withheld(mid)) is not None:
                yield message

    def _read_file(self, path: str, size: int) -> bytes | None:
        """None when there is anything about it that has to be looked at."""
        try:
            fd = self._disk.open(path, READ)
        except OSError:
            return None
        try:
            payload = self._disk.read(fd, size + 1)
        except OSError:
            return None
        finally:
            self._disk.close(fd)
        return payload if len(payload) == size else None

    def _read_withheld(self, mid: int) -> Message | None:
        entry = self.entries.get(mid)
        if entry is None or entry.payload is None:
            return super()._read_withheld(mid)
        receives = 0 if entry.receives == IN_FILE else entry.receives
        return Message(self.qid, mid, "delivered", receives + 1, self.time(mid), None, entry.payload)

    def remove_withheld(self, mids: Sequence[int]) -> int:
        """Committed before anything changes in memory, so that nothing has to be taken back."""
        gone = self.withheld_of(mids)
        if not gone:
            return len(mids)
        self.ledger.reserve(records.SMALL * len(gone) + ANNOUNCE)
        for mid in gone:
            self._append(records.delete(self.journal_number, mid))
        clean = Entry(None, 0, 0, self._journal.number, self._clock())
        self.hold_fast()
        for mid in gone:
            if self._shared.lifecycle is not None:
                self.note("deleted", mid)
            entry = self.entries.pop(mid)
            if entry is None:
                self.entries.bury(mid, clean)
            elif entry.disk != NOWHERE:
                segment = clean.segment if entry.segment == CLEAN else entry.segment
                self.entries.bury(mid, clean._replace(disk=entry.disk, segment=segment, since=entry.since))
        self._index.remove_withheld(gone)
        self.counts.deleted += len(gone)
        return len(mids)

    def withhold_again(self, mid: int) -> bool:
        expiry = self._index.expiry(mid)
        if expiry is None:
            return False
        if expiry not in (0, WITHHELD) and self.entries.get(mid) is None:
            self.entries.add(mid, Entry(None, IN_FILE, expiry, CLEAN, self._clock()))
        self._index.withhold(mid)
        return True

    def give_up(self, mid: int) -> None:
        if self._index.expiry(mid) == WITHHELD:
            self.show_again(mid)

    def hand_back(self, mid: int) -> None:
        """Visible first: the claim is gone, whatever becomes of the batch that counts it."""
        if self._index.expiry(mid) != WITHHELD:
            return
        receives = self._attributes.receives(self.name_path(mid, WITHHELD), mid) + 1
        self._index.show(mid)
        self.arrived()
        with suppress(OSError):  # then it counts as received once less
            self._change(mid, self.entries.get(mid), 0, receives, 0, delayed=False)
        self.note("released", mid, receives)
