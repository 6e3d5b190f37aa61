"""Moves messages that were received too often to the dead-letter queue of their queue."""

import logging
from collections.abc import Callable

from ..capacity import require_room
from ..engine import Clock, Origin, StorageError
from .log_interface import Moving
from .store import Store
from .table import MessageTable

_logger = logging.getLogger(__name__)


class DeadLetters:
    """Moves the messages of one queue."""

    def __init__(
        self,
        table: MessageTable,
        store: Store,
        clock: Clock,
        find: Callable[[str], MessageTable],
        begin_move: Callable[[int, MessageTable, Origin], Moving],
    ) -> None:
        """find: returns the messages of the queue of a name, which it makes if there is none; StorageError, OSError.
        begin_move: see `Move`."""
        self._table = table
        self._store = store
        self._clock = clock
        self._find = find
        self._begin_move = begin_move
        self._failing = False  # whether the last message could not be moved, and the log says so

    def bury(self, mid: int, peer: str | None) -> bool:
        """Moves a message to the dead-letter queue. peer: see Lifecycle. Returns False if it cannot be moved:
        the caller makes it visible. OSError: what was changed before in this batch has been taken back."""
        rollbacks = self._store.rollbacks
        try:
            self._move(mid, peer)
        except (OSError, StorageError) as error:
            if self._store.rollbacks != rollbacks:
                raise
            if not self._failing:
                _logger.error(
                    "messages of queue %r that were received %s times cannot be moved to the dead-letter queue %r, and "
                    "stay: %s",
                    self._table.qid,
                    self._table.options.max_receives,
                    self._table.options.dead_letter,
                    error,
                )
            self._failing = True
            return False
        self._failing = False
        return True

    def _move(self, mid: int, peer: str | None) -> None:
        table = self._table
        target = self._find(table.options.dead_letter)
        if target is table:
            raise StorageError("it is the same queue")
        require_room(target.qid, target.options.capacity, target.__len__, 1)
        now, before = self._clock(), table.origins.get(mid)
        pushed_at = table.time(mid) if before is None else before.pushed_at
        origin = Origin(table.qid, mid, table.receives.get(mid, 0), now, "receives", pushed_at)
        move = self._begin_move(mid, target, origin)
        self._store.log.reserve(move.size, push=True)
        table.note("dead", mid, peer=peer)
        move.make(now)
        table.counts.dead += 1
        self._store.undo.append((self._uncount,))

    def _uncount(self) -> None:
        self._table.counts.dead -= 1
