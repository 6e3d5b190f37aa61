"""Removes messages that are older than the retention of their queue, many with one record."""

from collections.abc import Sequence

from ...engine import Clock
from ..log import records
from ..log.retired_record import Retired
from .store import Store
from .table import Dropped, MessageTable


class Retirement:
    """Retires the messages of one queue. Every method may raise OSError: then nothing has changed."""

    __slots__ = ("_clock", "_store", "_table")

    def __init__(self, table: MessageTable, store: Store, clock: Clock) -> None:
        self._table = table
        self._store = store
        self._clock = clock

    def retire(self, count: int) -> int:
        """Removes visible and delayed messages that are too old, oldest first, at most count. Returns how many."""
        upto = self._table.too_old_upto(self._clock())
        mids = self._table.index.old(upto, count) if upto >= 0 else []
        if mids:
            self.remove(mids, "")
        return len(mids)

    def remove(self, mids: Sequence[int], peer: str | None) -> None:
        """Removes messages that are in no claim. mids: increasing; peer: see Lifecycle."""
        table = self._table
        body = Retired(table.number, mids).body()
        self._store.log.reserve(records.HEAD.size + len(body))
        self._store.log.append(body)
        for mid in mids if table.lifecycle is not None else ():
            table.note("retired", mid, peer=peer)
        expiries = table.index.hidden.values_of(mids)
        self._store.undo.append((self._put_back, mids, expiries, table.drop_all(mids)))
        table.counts.retired += len(mids)

    def _put_back(self, mids: Sequence[int], expiries: Sequence[int | None], dropped: Sequence[Dropped]) -> None:
        for mid, expiry, each in zip(mids, expiries, dropped, strict=True):
            self._table.put_back(mid, expiry or 0, each)
        self._table.counts.retired -= len(mids)
