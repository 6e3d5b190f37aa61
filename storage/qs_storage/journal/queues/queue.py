"""A queue of the log. Each change appends a record and changes the memory at once; the store commits the record, or
takes both back.

Each group of operations has a module: `pushing`, `delivery`, `windows`, `deletion`, `claims`, `batches`. `table` holds
the messages, `door` takes in files that other programs put into the directory.
"""

from functools import partial
from typing import ClassVar

from ...engine import Options, State, Stats
from ...index.queries import IndexQueries
from ...policy import dead_letter_queue
from ...shared import EngineQueue, Shared
from ..upkeep.door import Door, Doors
from .dead_letters import DeadLetters
from .deletion import Deletion
from .delivery import Delivery
from .foreign_files import ForeignFiles
from .pushing import Pushing
from .queue_state import QueueState
from .redrive import Redrive
from .retirement import Retirement
from .store import Store
from .table import MessageTable
from .transfers import Move
from .windows import Windows


class LogQueue(QueueState):
    """Puts the parts of a queue together. Use it in one thread at a time."""

    merges_pushes: ClassVar[bool] = True

    def __init__(  # noqa: PLR0917
        self, path: str, qid: str, options: Options, shared: Shared, store: Store, number: int, doors: Doors
    ) -> None:
        """path: of its directory, empty if it has none; number: the queue's in the log."""
        super().__init__(qid, number, options, shared, store)
        self.path = path
        self._shared = shared
        table, clock = self.table, shared.clock
        self.counts = table.counts
        pushing = self._pushing = Pushing(table, self.keys, store, clock)
        delivery = Delivery(table, store)
        windows = Windows(table, store, clock)
        deletion = Deletion(table, self.claims, store)
        begin_move = partial(Move, store, table)
        self.redrive: Redrive | None = Redrive(table, store, clock, begin_move)
        dead_letters = DeadLetters(table, store, clock, self._find_dead_letter_table, begin_move)
        table.bury, table.back_off = dead_letters.bury, windows.back_off
        retirement = Retirement(table, store, clock)
        table.remove_old = retirement.remove
        # These are called for every message: no method of this class in between.
        self.push, self.reserve_copies = pushing.push, pushing.reserve_copies
        self.take, self.take_first = delivery.take, delivery.take_first
        self.get, self.read, self.payload_of = delivery.get, delivery.read, delivery.payload_of
        self.release, self.reject, self.extend = windows.release, dead_letters.reject, windows.extend
        self.delete, self.remove, self.purge = deletion.delete, deletion.remove, deletion.purge
        self.expire, self.retire = table.expire, retirement.retire
        self.first_ready, self.next_expiry, self.arrived = table.first_ready, table.next_expiry, table.arrived
        self.files = ForeignFiles(table, self.taken, pushing.append_run, store, clock)
        self.door = Door(path, shared.disk, doors, clock, self.files) if path else None
        self._watched = shared.watch.add(path, self) if path else -1
        self.is_closed = False

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """Stores a copy of another queue's message; queues of the log share its payload. Returns False if this queue
        has the message. NoSuchMessageError, OtherMessageError, QueueFullError."""
        return self._pushing.copy(mid, source, source.table if isinstance(source, LogQueue) else None)

    def _find_dead_letter_table(self) -> MessageTable:
        """Returns the table of the dead-letter queue, which is made if missing. StorageError, OSError."""
        return dead_letter_queue(self._shared.find_or_make, self.options, LogQueue).table

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return self.table.index.ready.count

    @property
    def _queries(self) -> IndexQueries:
        return IndexQueries(self.table.index, lambda mid: True, 1)  # all messages are loaded

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        self.expire()
        return self._queries.list_mids(state, count, after)

    def prepare_stats(self) -> bool:
        return False

    def stats(self) -> Stats:
        self.expire()
        return self._queries.stats(self.table.counts, lambda mid: self._shared.clock() - self.time(mid))

    # -- the directory --------------------------------------------------------------------------------------------

    def in_place(self) -> bool:
        """Tells whether the directory is still the one that was opened."""
        return self.door is not None and self.door.in_place()

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """Takes in a file that was made or renamed in the directory (called by Watch)."""
        if appeared and self.door is not None:
            self.door.appeared(name)

    def rescan(self) -> None:
        """Takes in all files in the directory (called by Watch when reports were lost)."""
        if self.door is not None:
            self.door.list_again()

    def dismantle(self) -> None:
        """Removes files that are messages already. OSError."""
        if self.door is not None:
            self.door.clear()

    def vanished(self) -> None:
        """Reports that the directory is gone (called by Watch)."""
        self._shared.vanished(self.qid)

    def commit(self) -> None:
        """Does nothing, as no message is in the directory."""

    def note_removed(self) -> None:
        """Reports all messages as deleted to the lifecycle record, as the queue is removed."""
        lifecycle, index = self.table.lifecycle, self.table.index
        if lifecycle is not None:
            for mid in index.messages.after(-1, len(index)):
                lifecycle.note("deleted", self.qid, mid, index.size(mid), None)

    def close(self) -> list[int]:
        """Stops watching the directory. Returns an empty list, as no push is unfinished."""
        self.is_closed = True
        if self.door is not None:
            self.door.close()
        if self._watched >= 0:
            self._shared.watch.remove(self._watched)
        return []
