"""Holds the state of one queue that is in the log: a start restores it, and a checkpoint contains it."""

from collections.abc import Iterator

from ...engine import Options
from ...names import WITHHELD
from ...shared import Shared
from ..log import records
from ..log.places import segment_of
from .batches import LogBatches
from .claims import LogClaims
from .keys import Keys
from .store import Store
from .table import MessageTable


class QueueState:
    """The messages, keys, claims, batches and taken-in files of one queue."""

    def __init__(self, qid: str, number: int, options: Options, shared: Shared, store: Store) -> None:
        """number: the queue's in the log."""
        self.qid = qid
        self.options = options
        self._store = store
        self._clock = shared.clock
        self.table = MessageTable(qid, number, options, shared, store)
        self.keys = Keys(store)
        self.claims = LogClaims(self.table, store, shared.clock)
        self.batches = LogBatches(self.table, store, shared.clock)
        self.table.id_of_staged = self.batches.id_of
        self.taken: dict[int, int] = {}
        """The places of TAKEN records, by token, whose files may still exist."""

    def __len__(self) -> int:
        return len(self.table.index)

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""
        return self.table.last_mid

    @property
    def number(self) -> int:
        return self.table.number

    def time(self, number: int) -> int:
        """Converts an id, or a time in the unit of ids, to microseconds since the Epoch."""
        return self.table.time(number)

    def record(self) -> bytes:
        """Returns the body of the QUEUE record, which comes before all other records of the queue in a segment."""
        return records.queue(self.number, self.last_mid, self.qid)

    def announce(self) -> None:
        """Appends the QUEUE record. OSError."""
        body, log = self.record(), self._store.log
        last = log.number
        log.reserve(records.HEAD.size + len(body))
        if log.number == last:  # else the new segment begins with it
            log.append_required(body)

    def reset(self) -> None:
        """Forgets everything, so that the log can be read again."""
        self.keys.clear()
        self.table.reset()
        self.taken.clear()
        self.claims.consumers.clear()
        self.batches.producers.clear()

    def clear(self) -> None:
        """Drops all state, as the queue is gone."""
        self.table.clear()
        self.batches.clear()
        self._store.leave(self.number)
        self.reset()

    def settle(self) -> None:
        """Ends a start: announces visible messages and what is due next."""
        self.table.known_upto.clear()
        self.keys.cut(self._clock())
        self.claims.settle()
        self.table.end_exhausted()
        if self.table.index.ready:
            self.table.arrived()
        self.table.announce()

    # -- a start, and compaction ----------------------------------------------------------------------------------

    def restore_shared(self, record: records.Shared) -> None:
        """Replays a SHARED record. A checkpoint may contain the message as one that is not shared: it is dropped before
        the queues are joined, so that its live bytes count once."""
        if record.mid in self.table.index.messages:
            self.table.drop(record.mid)
        self._store.join(record.source, self.number)
        self._store.note_copied(record.place)
        self.table.restore(record.mid, record.place, record.size, (record.receives, record.visible, record.delayed))

    def restore_deletion(self, mid: int) -> None:
        """Removes a message, if the queue has it."""
        if self.table.index.expiry(mid) == WITHHELD:
            self.claims.removed(mid)
        self.table.restore_deletion(mid)

    def carry(self, segment: int) -> Iterator[None]:
        """Copies the records other than messages and keys in the segments up to this one, which must be the oldest, to
        the end of the log: they may be about any older segment. Yields where a slice may end. OSError."""
        self.claims.carry(segment)
        self.batches.carry(segment)
        for token, place in list(self.taken.items()):
            if segment_of(place) <= segment:
                self._store.log.reserve(records.SMALL)
                self.taken[token] = self._store.log.append(records.taken(self.number, token))
                self._store.undo.append((self.taken.__setitem__, token, place))
        yield
