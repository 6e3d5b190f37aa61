"""Ends and moves the visibility windows of messages in a queue of the log."""

from collections.abc import Sequence

from ...engine import Clock, Receipt, not_in_flight
from ...names import MAX_MID
from ...policy import backoff_of
from ..log import records
from .store import Store
from .table import MessageTable


class Windows:
    """The visibility windows of one queue. Every method may raise OSError: then nothing has changed."""

    __slots__ = ("_clock", "_store", "_table")

    def __init__(self, table: MessageTable, store: Store, clock: Clock) -> None:
        self._table = table
        self._store = store
        self._clock = clock

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        """Makes a message visible, now or after a delay in microseconds, None for the queue's back-off. Returns when,
        None for now. Instead, a message that was received too often goes to the dead-letter queue, and one that is too
        old is removed. count: False to take back the receive of a message in flight; reason: kept with the message.
        NoSuchMessageError; StaleReceiptError: nobody holds it."""
        table, mid = self._table, receipt.mid
        table.expire()
        expiry = table.held_until(receipt)
        delayed = table.index.is_delayed(mid)
        if not expiry or (delayed and receipt.receives is not None):
            raise not_in_flight(table.qid, mid)
        receives = table.receives.get(mid, 0)
        counted = receives if count or delayed else receives - 1
        if delay is None:
            delay = backoff_of(table.options, mid, receives) if count and not delayed else 0
        until = min((self._clock() + delay) // table.unit, MAX_MID) if delay else 0
        if table.is_exhausted(mid, counted) and table.bury(mid, None, counted, reason):
            return None
        if mid <= table.too_old_upto():
            table.remove_old([mid], None)
            return None
        size = records.SMALL if reason is None else records.SMALL + len(reason.encode())
        self._store.log.reserve(size, back=True)
        if counted != receives:
            self._store.undo.append((table.set_receives, mid, receives))
            table.set_receives(mid, counted)
        self._change(mid, expiry, until, delayed=bool(until), reason=reason)
        table.counts.released += 1
        table.note("released", mid)
        return table.time(until) if until else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Sets the end of the window of a message in flight, and returns it. visibility: microseconds from now, None
        for the queue's own. NoSuchMessageError, StaleReceiptError."""
        table, mid = self._table, receipt.mid
        table.expire()
        expiry = table.held_until(receipt)
        if not expiry or table.index.is_delayed(mid):
            raise not_in_flight(table.qid, mid)
        until = table.window_end(visibility)
        self._store.log.reserve(records.SMALL, back=True)
        self._change(mid, expiry, until, delayed=False, held=mid in table.held)
        table.note("extended", mid)
        return table.time(until)

    def back_off(self, mids: Sequence[int], now: int) -> list[int]:
        """Hides those of these messages whose windows are over, and whose back-off is not. Returns the others. now:
        microseconds since the Epoch.

        A back-off begins with the end of the window, whenever a server notices that, and follows from the message's id
        and receives: so the record need not be durable. A start computes the same, unless the options have changed."""
        table, index = self._table, self._table.index
        ordered = sorted(mids)
        delayed = set(index.delayed.among(ordered))
        untils: dict[int, int] = {}
        for mid, end in zip(ordered, index.hidden.values_of(ordered), strict=True):
            wait = 0 if mid in delayed else backoff_of(table.options, mid, table.receives.get(mid, 0))
            until = min((end or 0) + wait // table.unit, MAX_MID)
            if wait and until > now // table.unit:
                untils[mid] = until
        if not untils:
            return list(mids)
        self._store.log.note_all(
            [records.state(table.number, mid, table.receives.get(mid, 0), untils[mid], delayed=True) for mid in untils]
        )
        self._store.refer_all(table, table.places.values_of(list(untils)))
        table.delay_all(untils)
        table.note_expired([mid for mid in mids if mid in untils], now)
        return [mid for mid in mids if mid not in untils]

    def _change(
        self, mid: int, old: int, new: int, *, delayed: bool, held: bool = False, reason: str | None = None
    ) -> None:
        """Changes a message's state. The caller has reserved the room."""
        table, log = self._table, self._store.log
        state = table.number, mid, table.receives.get(mid, 0), 0 if held else new, delayed
        if reason is None:
            log.append(records.state(*state))
        else:
            log.append(records.reason(*state, reason))
            self._store.undo.append((table.set_reason, mid, table.reasons.get(mid)))
            table.set_reason(mid, reason)
        self._store.refer(table, table.places.get(mid) or 0)
        was_delayed = old != 0 and table.index.is_delayed(mid)
        was_new = mid in table.index.new
        was_held = mid in table.held
        self._store.undo.append((self._change_back, mid, old, was_delayed, was_new, was_held))
        table.show(mid, new, delayed=delayed)
        if held:
            table.held.add(mid)

    def _change_back(self, mid: int, old: int, delayed: bool, new: bool, held: bool) -> None:
        self._table.show(mid, old, delayed=delayed)
        if held:
            self._table.held.add(mid)
        if new:
            self._table.index.new.add(mid)
