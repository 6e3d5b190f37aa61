"""A queue of the journal and the claims on its messages: a claim is its file, and nothing about it is in the journal.

For the journal, and for the directory while the server runs, the messages of a claim are ready. So making a claim costs
one small file, whatever it holds, and a start looks the claims up again.
"""

from ..claiming import MOST
from ..names import WITHHELD
from .entries import CLEAN, IN_FILE, Entry
from .recorded import RecordedQueue


class ClaimedQueue(RecordedQueue):
    """See Withholding."""

    most_claimed = MOST

    def _settle(self) -> None:
        """Not before the journal has been replayed."""

    def settle(self) -> None:
        """Everything is known of the messages that the last server has left."""
        for mid in self.withheld():
            if self.entries.get(mid) is None:
                self.entries.add(mid, Entry(None, IN_FILE, WITHHELD, CLEAN, self._clock()))
        self.hides_withheld = True
        self.claims.settle()
        self.batches.settle()

    def come_to_rest(self) -> None:
        """Other programs may consume soon: what is in a claim is to be hidden from them."""
        self.hides_withheld = False
        for mid in self.withheld():
            if self.entries.get(mid) is None:
                self.entries.add(mid, Entry(None, IN_FILE, 0, CLEAN, self._clock()))

    def hold_fast(self) -> None:
        self.ledger.commit_early()

    def withhold(self, mid: int) -> bool:
        """In memory: the claim's file is what lasts."""
        expiry = self._index.expiry(mid)
        if expiry is None:
            return False
        if expiry not in (0, WITHHELD) and self.entries.get(mid) is None:
            self.entries.add(mid, Entry(None, IN_FILE, expiry, CLEAN, self._clock()))
        self._index.withhold(mid)
        return True

    def give_up(self, mid: int) -> None:
        self._index.show(mid)
        self.arrived()

    def hand_back(self, mid: int) -> None:
        if self._index.expiry(mid) != WITHHELD:
            return
        receives = self._attributes.receives(self.name_path(mid, WITHHELD), mid) + 1
        self._change(mid, self.entries.get(mid), WITHHELD, receives, 0, delayed=False)
        self._index.show(mid)
        self.arrived()
        self.note("released", mid, receives)
