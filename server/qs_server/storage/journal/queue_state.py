"""Holds all that the log says of one queue: what a start restores, a checkpoint contains and compaction copies."""

from collections.abc import Iterator

from ..engine import Options
from ..names import WITHHELD
from ..shared import Shared
from . import records
from .batches import LogBatches
from .claims import LogClaims
from .keys import Keys
from .places import segment_of
from .store import Store
from .table import MessageTable


class QueueState:
    """The messages, keys, claims and batches of one queue, and the files that were taken in."""

    def __init__(self, qid: str, number: int, options: Options, shared: Shared, store: Store) -> None:
        """number: what the queue is called in the log."""
        self.qid = qid
        self.options = options
        self._store = store
        self.table = MessageTable(qid, number, options, shared, store)
        self.keys = Keys(store)
        self.claims = LogClaims(self.table, store, shared.clock)
        self.batches = LogBatches(self.table, store, shared.clock)
        self.taken: dict[int, int] = {}
        """Tokens of files that are messages, and may be there still: where their records stand."""

    def __len__(self) -> int:
        return len(self.table.index)

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""
        return self.table.last_mid

    @property
    def number(self) -> int:
        """The number of the queue in the log."""
        return self.table.number

    def time(self, number: int) -> int:
        """Returns when a message was pushed, from its id: microseconds since the Epoch."""
        return self.table.time(number)

    def record(self) -> bytes:
        """Returns the record that introduces the queue in a segment, before any other of the queue."""
        return records.queue(self.number, self.last_mid, self.qid)

    def announce(self) -> None:
        """Appends the record that introduces the queue. OSError."""
        body, log = self.record(), self._store.log
        last = log.number
        log.reserve(records.HEAD.size + len(body))
        if log.number == last:  # else the new segment says so already
            log.name(body)

    def reset(self) -> None:
        """Forgets everything, to be read in another way."""
        self.keys.clear()
        self.table.reset()
        self.taken.clear()
        self.claims.consumers.clear()
        self.batches.producers.clear()

    def clear(self) -> None:
        """Drops all messages and all else: the queue is gone."""
        self.table.clear()
        self.batches.clear()
        self._store.leave(self.number)
        self.reset()

    def settle(self) -> None:
        """Ends a start: announces visible messages and what is due next."""
        self.table.known_upto.clear()
        self.claims.settle()
        self.table.end_exhausted()
        if self.table.index.ready:
            self.table.arrived()
        self.table.announce()

    # -- a start, and compaction ----------------------------------------------------------------------------------

    def restore_shared(self, record: records.Shared) -> None:
        """Replays the record of a message that shares its payload with another queue's. A checkpoint may have the
        message without knowing that it is shared: it is dropped while it counts on its own."""
        if record.mid in self.table.index.messages:
            self.table.drop(record.mid)
        self._store.join(record.source, self.number)
        self.table.restore(record.mid, record.place, record.size, (record.receives, record.visible, record.delayed))

    def restore_deletion(self, mid: int) -> None:
        """Removes a message, if it is here."""
        if self.table.index.expiry(mid) == WITHHELD:
            self.claims.removed(mid)
        self.table.restore_deletion(mid)

    def carry_keys(self, segment: int, now: int) -> Iterator[None]:
        """Appends again the keys that would be lost with a segment. Yields where a slice may end. OSError."""
        return self.keys.carry(self.number, segment, now)

    def carry(self, segment: int) -> Iterator[None]:
        """Appends again what else but messages would be lost with the segments up to this one. These records may
        concern every older segment, so only the oldest one can go with any. Yields where a slice may end. OSError."""
        self.claims.carry(segment)
        self.batches.carry(segment)
        for token, place in list(self.taken.items()):
            if segment_of(place) <= segment:
                self._store.log.reserve(records.SMALL)
                self.taken[token] = self._store.log.append(records.taken(self.number, token))
                self._store.undo.append((self.taken.__setitem__, token, place))
        yield
