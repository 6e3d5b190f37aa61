"""Deletes messages of a queue of the log. Each deletion appends a record, the message's tombstone."""

from ...engine import Receipt
from ...names import WITHHELD
from ..log import records
from .claims import LogClaims
from .store import Store
from .table import MessageTable


class Deletion:
    """Deletes the messages of one queue. Every method may raise OSError."""

    __slots__ = ("_claims", "_log", "_table")

    def __init__(self, table: MessageTable, claims: LogClaims, store: Store) -> None:
        self._table = table
        self._claims = claims
        self._log = store.log

    def delete(self, receipt: Receipt) -> None:
        """Removes a message in any state. NoSuchMessageError, StaleReceiptError."""
        self.remove(receipt.mid, self._table.held_until(receipt))
        self._table.counts.deleted += 1

    def remove(self, mid: int, expiry: int) -> bool:
        """Removes a message. expiry: the time until which it is hidden, 0: visible. Returns True."""
        self._log.reserve(records.SMALL)
        self._log.append(records.delete(self._table.number, mid))
        self._table.delete(mid, expiry)
        if expiry == WITHHELD:
            self._claims.removed(mid)
        return True

    def purge(self, upto: int, count: int) -> int:
        """Removes the oldest messages with ids up to upto, at most count. Returns how many."""
        index = self._table.index
        removed = 0
        while removed < count and (mid := index.messages.first()) is not None and mid <= upto:
            removed += self.remove(mid, index.expiry(mid) or 0)
        self._table.counts.deleted += removed
        return removed
