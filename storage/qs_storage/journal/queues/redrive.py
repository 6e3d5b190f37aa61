"""Moves dead letters of one queue to other queues of the log."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from ...engine import Clock, Queue
from ...names import WITHHELD
from ...policy import other_storage, require_room
from ..log.log_interface import Moving
from ..log.reader import DamagedRecordError
from .store import Store
from .table import MessageTable

_logger = logging.getLogger(__name__)
_AT_ONCE = 1000
_BYTES = 8 << 20
"""The most bytes of records that one call moves, except for a larger first message."""


class Redrive:
    """Moves the dead letters of one queue. Every method may raise OSError: then nothing has changed."""

    def __init__(
        self,
        table: MessageTable,
        store: Store,
        clock: Clock,
        begin_move: Callable[[int, MessageTable, None], Moving],
    ) -> None:
        """begin_move: see `Move`."""
        self._table = table
        self._store = store
        self._clock = clock
        self._begin_move = begin_move

    def letters(self, mids: Sequence[int], count: int) -> list[tuple[int, str]]:
        """Returns (id, queue it came from) of dead letters that are in no claim, oldest first, at most count. mids: the
        ids to consider, empty for all."""
        table = self._table
        chosen = (mid for mid in (sorted(set(mids)) if mids else self._all()) if mid in table.origins)
        free = (mid for mid in chosen if table.index.expiry(mid) != WITHHELD)
        return [(mid, table.origins[mid].qid) for mid in islice(free, count)]

    def _all(self) -> Iterator[int]:
        """Yields the ids of all dead letters, oldest first, and perhaps of other messages. Does not sort a million to
        find some."""
        origins, messages = self._table.origins, self._table.index.messages
        if len(origins) <= _AT_ONCE:
            yield from sorted(origins)
            return
        after = -1
        while block := messages.after(after, _AT_ONCE):
            yield from block
            after = block[-1]

    def move(self, letters: Sequence[tuple[int, Queue]]) -> list[tuple[int, int]]:
        """Moves dead letters, each to the end of a queue, visible and never received: as many as fit into one write,
        without damaged ones. Returns (id, new id) of each. QueueFullError; UnsupportedError for a queue of another
        storage."""
        moves: list[tuple[int, MessageTable, Moving]] = []
        size = 0
        for mid, queue in letters:
            target = getattr(queue, "table", None)
            if not isinstance(target, MessageTable):
                raise other_storage(self._table.options.storage, queue.options.storage)
            try:
                move = self._begin_move(mid, target, None)
            except DamagedRecordError as error:
                _logger.error("the dead letter %d of queue %r cannot be moved: %s", mid, self._table.qid, error)
                continue
            size += move.size
            if moves and size > _BYTES:
                break
            moves.append((mid, target, move))
        return self._make(moves)

    def _make(self, moves: Sequence[tuple[int, MessageTable, Moving]]) -> list[tuple[int, int]]:
        targets = [target for _, target, _ in moves]
        for target in {target.qid: target for target in targets}.values():
            require_room(target.qid, target.options.capacity, target.__len__, targets.count(target))
        self._store.log.reserve(sum(move.size for _, _, move in moves), push=True)
        now = self._clock()
        moved: list[tuple[int, int]] = []
        for mid, _, move in moves:
            self._table.note("redriven", mid)
            moved.append((mid, move.make(now)))
        return moved
