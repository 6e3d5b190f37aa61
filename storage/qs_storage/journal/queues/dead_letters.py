"""Moves messages that were received too often, or that were rejected, to the dead-letter queue of their queue."""

from collections.abc import Callable
from functools import partial

from ...engine import Clock, Origin, Receipt, StorageError
from ...policy import DeadLetterMoves, new_origin, require_room
from ..log.log_interface import Moving
from .store import Store
from .table import MessageTable


class DeadLetters:
    """Moves the messages of one queue."""

    def __init__(
        self,
        table: MessageTable,
        store: Store,
        clock: Clock,
        find: Callable[[], MessageTable],
        begin_move: Callable[[int, MessageTable, Origin, str | None], Moving],
    ) -> None:
        """find: returns the table of the dead-letter queue, which it makes if missing; StorageError, OSError.
        begin_move: see `Move`."""
        self._table = table
        self._store = store
        self._clock = clock
        self._find = find
        self._begin_move = begin_move
        self._moves = DeadLetterMoves(table.qid, table.options, lambda: store.rollbacks)

    def bury(self, mid: int, peer: str | None, receives: int, reason: str | None) -> bool:
        """Moves a message to the dead-letter queue. peer: see Lifecycle; receives: how often it was received; reason:
        of its release, None without one. Returns False if it cannot be moved and has to become visible. OSError:
        earlier changes of this batch were taken back."""
        return self._moves.attempt(partial(self._move, mid, peer, receives, "receives", reason))

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        """See Queue."""
        table, mid = self._table, receipt.mid
        table.expire()
        table.held_until(receipt)
        receives = table.receives.get(mid, 0)
        self._moves.reject(mid, partial(self._move, mid, None, receives, "rejected", reason))

    def _move(self, mid: int, peer: str | None, receives: int, why: str, reason: str | None) -> None:
        table = self._table
        target = self._find()
        if target is table:
            raise StorageError("it is the same queue")
        require_room(target.qid, target.options.capacity, target.__len__, 1)
        now = self._clock()
        before = table.origins.get(mid)
        origin = new_origin(table.qid, mid, receives, now, pushed_at=table.time(mid), before=before, reason=why)
        move = self._begin_move(mid, target, origin, reason)
        self._store.log.reserve(move.size, push=True)
        table.note("dead", mid, more=receives - table.receives.get(mid, 0), peer=peer)
        move.make(now)
        rejected = why == "rejected"
        table.counts.dead += 1
        table.counts.rejected += rejected
        self._store.undo.append((self._uncount, rejected))

    def _uncount(self, rejected: bool) -> None:
        self._table.counts.dead -= 1
        self._table.counts.rejected -= rejected
