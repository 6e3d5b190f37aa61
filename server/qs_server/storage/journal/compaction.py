"""Compaction: copies what is still needed of the oldest segment to the end of the log, and removes the segment.

It is always the oldest segment, so that a tombstone, which is needed only while there are older segments, can go with
its own. The work is done in slices, each committed with a batch of requests, so that no request waits long.
"""

import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter

from ..disk import has_no_room
from ..engine import Clock
from . import records
from .claim_records import Staged
from .frames import BLOCK, DamagedError
from .places import place_of
from .queue_state import QueueState
from .records import BadRecordError, Kind
from .scanning import open_segment
from .store import SLICE, Holder, Store, record_size
from .transfer_record import Transfer

_logger = logging.getLogger(__name__)
_BYTES = 512 << 10
"""Bytes that a slice may append before its last record: they are written with the batch's commit."""
_RECORDS_PER_CLOCK_READ = 32
"""Records that are copied between two reads of the clock."""
_PAYLOADS = frozenset((Kind.PUSH, Kind.MOVED, Kind.STAGED, Kind.TRANSFER))


class Compaction:
    """Compacts the log of one store."""

    def __init__(self, store: Store, queues: Callable[[], Iterable[QueueState]], clock: Clock) -> None:
        """queues: returns all queues of the log."""
        self._store = store
        self._queues = queues
        self._clock = clock
        self._segment = 0
        self._work: Iterator[None] | None = None
        self._stepping = False
        self._rollbacks = 0
        self._copied = 0
        self._damaged = 0  # number of the segment that cannot be read
        self.total = 0
        """Bytes of payload copied since the start."""

    @property
    def wanted(self) -> bool:
        """True if the oldest segment is worth compacting."""
        log = self._store.log
        return (
            not log.failed
            and log.oldest != self._damaged
            and self._store.usage.wants_compaction(log.sizes, tight=log.tight)
        )

    def step(self, seconds: float = SLICE) -> None:
        """Does a slice of the work, which the caller commits. OSError: there is no room for the copies."""
        self._stepping = True
        try:
            self._step(seconds)
        finally:
            self._stepping = False

    def _step(self, seconds: float) -> None:
        if self._work is None or self._rollbacks != self._store.rollbacks or self._segment != self._store.log.oldest:
            self._segment = self._store.log.oldest or 0
            self._rollbacks = self._store.rollbacks
            self._work = self._copy(self._segment)  # skips what is already copied
        self._copied = 0
        until = perf_counter() + seconds
        try:
            for _ in self._work:
                if perf_counter() >= until or self._copied >= _BYTES:
                    return
            self._work = None
            self._remove(self._segment)
        except (DamagedError, BadRecordError, struct.error) as error:
            self._work, self._damaged = None, self._segment
            _logger.error(
                "%s cannot be compacted and stays: %s. Stop the server; 'queue-journal.py check' says more",
                self._store.log.path_of(self._segment),
                error,
            )
        except BaseException:
            self._work = None
            raise

    def run(self) -> bool:
        """Compacts the oldest segment at once, if that is worth it. Returns True if the segment is gone. OSError."""
        oldest = self._store.log.oldest
        if self._stepping or not self.wanted:
            return False  # called by a slice that has no room: a second one would have none either
        while self._store.log.oldest == oldest and oldest != self._damaged:
            self.step()
            self._store.commit_early()
        return self._store.log.oldest != oldest

    def _remove(self, segment: int) -> None:
        self._store.log.drop_oldest()
        self._store.usage.forget(segment)
        self._store.reader.forget(segment)
        self._store.cache.forget(segment)
        for queue in self._queues():
            queue.batches.forget_publications(segment)

    # -- copying --------------------------------------------------------------------------------------------------

    def _copy(self, segment: int) -> Iterator[None]:
        """Copies what is needed of a segment. Yields where a slice may end."""
        for queue in list(self._queues()):
            yield from queue.carry(segment, self._clock())
        if self._store.usage.live.get(segment):
            yield from self._copy_payloads(segment)

    def _copy_payloads(self, segment: int) -> Iterator[None]:
        scan = open_segment(self._store.log.directory, segment)
        count = 0
        for start, bodies in scan.frames(BLOCK, scan.header.first, None):
            place = place_of(segment, start)
            for body in bodies:
                if body[0] in _PAYLOADS:
                    self._copy_record(place, body)
                    count += 1
                    if count % _RECORDS_PER_CLOCK_READ == 0:
                        yield
                place += records.HEAD.size + len(body)
            yield
        if self._store.usage.live.get(segment):
            raise DamagedError(
                f"byte {scan.gap.start}: {scan.gap.why or 'it ends there'}, and messages stand behind it"
            )

    def _copy_record(self, place: int, body: memoryview) -> None:
        record = records.identify(body)
        mid = record.mid
        if mid is None:
            staged = Staged.read(body)
            queue = next((queue for queue in self._queues() if queue.number == staged.number), None)
            if queue is None:
                return
            if queue.batches.move(place, staged):
                self._copied += len(body)
                return
            mid = queue.batches.id_of(staged)
        if mid is not None and (tables := list(self._store.sharers(record.number, mid, place))):
            payload = records.payload_of(body)
            self._move(mid, place, b"" if payload is None else bytes(payload), tables)

    def _move(self, mid: int, place: int, payload: bytes, tables: list[Holder]) -> None:
        """Appends a message with its state in each of the queues that share it. tables: the queues' message tables."""
        store, log = self._store, self._store.log
        size = len(payload)
        first, *others = sorted(tables, key=lambda table: mid not in table.origins)  # only the first keeps its origin
        body = _body_of(first, mid)
        self._reserve(size + len(body) + records.HEAD.size + len(others) * records.SMALL)
        moved = log.append(body, payload)
        for other in others:
            shared = records.Shared(other.number, mid, *other.state_of(mid), moved, size, first.number)
            log.append(records.shared(shared))
        for table in tables:
            table.places.set(mid, moved)
            store.undo.append((table.places.set, mid, place))
        store.usage.add(moved, record_size(size))
        store.usage.drop(place, record_size(size))
        store.undo.append((self._move_back, place, moved, record_size(size)))
        self._copied += size
        self.total += size

    def _reserve(self, size: int) -> None:
        """Reserves room for a copy. On a full disk the reserve is used only if the rest of the segment fits into it
        too, so that the segment can be removed and there is room again. OSError."""
        store = self._store
        try:
            store.log.reserve(size, push=True)
        except OSError as error:
            if not has_no_room(error):
                raise
            left = store.usage.live.get(self._segment, 0)
            store.log.reserve(size + left + left // 16, copy=True)

    def _move_back(self, place: int, moved: int, size: int) -> None:
        self._store.usage.add(place, size)
        self._store.usage.drop(moved, size)


def _body_of(table: Holder, mid: int) -> bytes:
    """Packs the record of a message as it is now, without its payload."""
    origin = table.origins.get(mid)
    if origin is None:
        return records.moved(table.number, mid, *table.state_of(mid))
    return Transfer(table.number, mid, 0, 0, *table.state_of(mid), origin, b"").body()
