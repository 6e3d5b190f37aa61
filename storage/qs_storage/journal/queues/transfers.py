"""Moves messages between queues of one log. A move is one record, so the message is always in exactly one queue."""

from ...engine import Origin
from ..log import records
from ..log.transfer_record import Transfer
from .store import Store, record_size
from .table import MessageTable


class Move:
    """Prepares the move of one message, and makes it. The caller reserves `size` bytes of the log before `make`."""

    __slots__ = ("_mid", "_origin", "_payload", "_reason", "_source", "_store", "_target", "size")

    def __init__(  # noqa: PLR0917
        self,
        store: Store,
        source: MessageTable,
        mid: int,
        target: MessageTable,
        origin: Origin | None,
        reason: str | None = None,
    ) -> None:
        """Reads the payload. mid: the message's in `source`; origin: set if it becomes a dead letter; reason: of the
        release or reject, None to keep the message's last one. DamagedRecordError, OSError."""
        self._store, self._source, self._target = store, source, target
        self._mid, self._origin = mid, origin
        self._reason = source.reasons.get(mid) if reason is None else reason
        self._payload = store.payload(source.number, mid, source.places.get(mid) or 0)
        self.size = records.HEAD.size + len(self._record(0).body()) + len(self._payload)
        if self._reason is not None:
            self.size += records.SMALL + len(self._reason.encode())

    def _record(self, new: int) -> Transfer:
        return Transfer(self._target.number, new, self._source.number, self._mid, 0, 0, False, self._origin, b"")

    def make(self, now: int) -> int:
        """Moves the message to the end of the target, visible and never received. Returns its new id.
        QueueFullError."""
        source, target, store = self._source, self._target, self._store
        new = target.free_ids(1, now)[0]
        place = store.log.append(self._record(new).body(), self._payload)
        mid, expiry = self._mid, source.index.expiry(self._mid) or 0
        store.undo.append((source.put_back, mid, expiry, source.drop(mid)))
        store.undo.append((target.unpush, (new,)))
        target.add(new, place, len(self._payload), 0)
        target.last_mid = new
        target.counts.pushed += 1
        if self._origin is not None:
            target.origins[new] = self._origin
        if self._reason is not None:  # in the frame of the TRANSFER: it came along, or the message did not move
            store.log.append(records.reason(target.number, new, 0, 0, False, self._reason))
            target.set_reason(new, self._reason)
        store.usage.add(place, record_size(len(self._payload)))
        store.cache.put((place,), (self._payload,), len(self._payload))
        target.arrived()
        target.note("pushed", new)
        return new
