"""Copies the needed messages of a segment, with their states, to the end of the log.

Copied records are checked; of others, only head and id are read.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from ...disk import has_no_room
from ..log import records
from ..log.claim_records import Staged
from ..log.frames import BLOCK, FRAME_HEAD, DamagedError, Frame, count_of, seed
from ..log.places import SHIFT, place_of, segment_of
from ..log.records import BadRecordError, Kind
from ..log.scanning import Scan, open_segment
from ..log.transfer_record import Transfer
from ..queues.queue_state import QueueState
from ..queues.store import Holder, Store, record_size

_FOUND = 32
"""The most records that are copied between two reads of the clock."""
_LOOKED_AT = 128
"""The most records that are looked at between two reads of the clock."""
_BYTES = 128 << 10
"""The most bytes that are looked at between two reads of the clock, except for the last record."""
_PAYLOADS = frozenset((Kind.PUSH, Kind.MOVED, Kind.STAGED, Kind.TRANSFER))
_ONE_BY_ONE = frozenset((Kind.STAGED, Kind.TRANSFER))

Found = tuple[Holder | None, int, int]
"""A record that may be needed: (the only table that may have its message, None if not known; id; byte of the
segment)."""


class Copying:
    """Copies the payloads of one store."""

    def __init__(self, store: Store, queues: Callable[[], Iterable[QueueState]]) -> None:
        """queues: returns all queues of the log."""
        self._store = store
        self._queues = queues
        self.total = 0
        """Bytes of payload copied since the start."""
        self._orphans: dict[int, int] | None = None
        """The ids of messages by their places in the segment, made when it has a staged record of a removed queue: only
        copies of its message are left, and only they know its id."""

    def segment(self, number: int) -> Iterator[None]:
        """Copies the needed messages of a segment. Yields where a slice may end. DamagedError, BadRecordError,
        struct.error: it is damaged. OSError: there is no room."""
        scan = open_segment(self._store.log.directory, number)
        self._orphans = None
        for frame in scan.heads(BLOCK, scan.header.first, self._store.log.segments.frame_after(number)):
            for found in self._needed(scan, frame):
                for table, group in groupby(found, itemgetter(0)):
                    self._copy(scan, table, list(group))
                yield
        if self._store.usage.live.get(number):
            raise DamagedError(f"byte {scan.gap.start}: {scan.gap.why or 'it ends there'}, but messages should follow")

    def _needed(self, scan: Scan, frame: Frame) -> Iterator[list[Found]]:
        """Yields the records of a frame that may be needed, some at a time."""
        data, tables, families = scan.data, self._store.tables, self._store.families
        before, head = place_of(scan.header.number, 0), records.HEAD.size
        at = frame.start + FRAME_HEAD
        end, count = at + frame.length, 0
        while at < end:
            found: list[Found] = []
            looked_until, stop = count + _LOOKED_AT, min(at + _BYTES, end)
            while at < stop and count < looked_until and len(found) < _FOUND:
                length, _ = records.HEAD.unpack_from(data, at)
                if data[at + head] in _PAYLOADS:
                    _, number, mid = records.whose(data, at + head)
                    if data[at + head] in _ONE_BY_ONE or number in families:
                        found.append((None, mid, at))
                    elif (table := tables.get(number)) is not None and table.places.get(mid) == before | at:
                        found.append((table, mid, at))
                at += head + length
                count += 1
            yield found
        if at != end or count != count_of(data, frame):
            raise BadRecordError(f"frame {frame.sequence} does not hold {count_of(data, frame)} records")

    def _copy(self, scan: Scan, table: Holder | None, found: list[Found]) -> None:
        begin = seed(scan.header.salt)
        bodies = [records.body_at(scan.data, begin, at) for _, _, at in found]
        if table is not None:
            mids = [mid for _, mid, _ in found]
            self._move_all(table, scan.header.number, mids, [at for _, _, at in found], bodies)
            return
        for (_, _, at), body in zip(found, bodies, strict=True):
            self._copy_record(place_of(scan.header.number, at), body)

    def _copy_record(self, place: int, body: memoryview) -> None:
        """Copies a staged record, or one whose payload may be shared, if it is needed."""
        record = records.identify(body)
        mid = record.mid
        if mid is None:
            staged = Staged.read(body)
            queue = next((queue for queue in self._queues() if queue.number == staged.number), None)
            if queue is None:
                mid = self._id_of_orphan(place)
            elif queue.batches.move(place, staged):
                self.total += len(body)
                return
            else:
                mid = queue.batches.id_of(staged)
        if mid is not None and (tables := list(self._store.sharers(record.number, mid, place))):
            payload = records.payload_of(body)
            self._move(mid, place, b"" if payload is None else bytes(payload), tables)

    def _id_of_orphan(self, place: int) -> int | None:
        """Returns the id of the message whose payload is at a place, None if no queue has it."""
        if self._orphans is None:
            segment = segment_of(place)
            self._orphans = {
                where: mid
                for table in self._store.tables.values()
                for mids, places in table.places.pages(-1)
                for mid, where in zip(mids, places, strict=True)
                if segment_of(where) == segment
            }
        return self._orphans.get(place)

    def _move_all(
        self, table: Holder, segment: int, mids: list[int], starts: list[int], bodies: list[memoryview]
    ) -> None:
        """Copies messages of one queue that share no payload, with their states."""
        store, log = self._store, self._store.log
        payloads = [bytes(records.payload_of(body) or b"") for body in bodies]
        sizes = [len(payload) for payload in payloads]
        size = sum(sizes)
        reasons = _reasons_of(table, mids)
        self._reserve(segment, size + len(mids) * records.MOVED_SIZE + _size_of(reasons))
        moved = [records.moved(table.number, mid, *table.state_of(mid)) for mid in mids]
        places = log.append_all(moved, payloads, sizes, records.MOVED_SIZE)
        log.unwritten.update(zip(places, payloads, strict=True))
        for reason in reasons:
            log.append(reason)
        before = [place_of(segment, start) for start in starts]
        log.segments.links.note(before[0])
        for mid, place in zip(mids, places, strict=True):
            table.places.set(mid, place)
        counted = size + len(mids) * record_size(0) + _size_of(reasons)
        store.usage.add(places[0], counted)
        store.usage.drop(before[0], counted)
        store.undo.append((self._move_back, [table], mids, before, places[0], counted))
        self.total += size

    def _move(self, mid: int, place: int, payload: bytes, tables: list[Holder]) -> None:
        """Copies a message, with its state in each of the tables that share it."""
        store, log = self._store, self._store.log
        size = len(payload)
        first, *others = sorted(tables, key=lambda table: mid not in table.origins)  # only the first keeps its origin
        body = _body_of(first, mid)
        reasons = [reason for table in tables for reason in _reasons_of(table, [mid])]
        fixed = records.HEAD.size + len(body) + len(others) * records.SMALL
        self._reserve(place >> SHIFT, size + fixed + _size_of(reasons))
        moved = log.append(body, payload)
        for other in others:
            shared = records.Shared(other.number, mid, *other.state_of(mid), moved, size, first.number)
            log.append(records.shared(shared))
            store.note_copied(moved)
        for reason in reasons:
            log.append(reason)
        for table in tables:
            table.places.set(mid, moved)
            store.refer(table, place)
        counted = record_size(size) + _size_of(reasons)
        store.usage.add(moved, counted)
        store.usage.drop(place, counted)
        store.undo.append((self._move_back, tables, [mid], [place], moved, counted))
        self.total += size

    def _move_back(self, tables: list[Holder], mids: list[int], before: list[int], moved: int, size: int) -> None:
        """Takes back a copy. before: the old places; moved: the first new one; size: live bytes."""
        for table in tables:
            for mid, place in zip(mids, before, strict=True):
                table.places.set(mid, place)
        self._store.usage.add(before[0], size)
        self._store.usage.drop(moved, size)

    def _reserve(self, segment: int, size: int) -> None:
        """Reserves room for copies. On a full disk the reserve is used only if all copies of the segment fit, so that
        it can be removed. OSError."""
        store = self._store
        try:
            store.log.reserve(size, push=True)
        except OSError as error:
            if not has_no_room(error):
                raise
            left = max(store.usage.live.get(segment, 0) - size, 0)
            store.log.reserve(size + left + left // 16, copy=True)


def _reasons_of(table: Holder, mids: Iterable[int]) -> list[bytes]:
    """Packs the records of the reasons that these messages have."""
    reasons = table.reasons
    if not reasons:
        return []
    return [records.reason(table.number, mid, *table.state_of(mid), reasons[mid]) for mid in mids if mid in reasons]


def _size_of(bodies: Iterable[bytes]) -> int:
    return sum(records.HEAD.size + len(body) for body in bodies)


def _body_of(table: Holder, mid: int) -> bytes:
    """Packs the record of a message as it is now, without its payload."""
    origin = table.origins.get(mid)
    if origin is None:
        return records.moved(table.number, mid, *table.state_of(mid))
    return Transfer(table.number, mid, 0, 0, *table.state_of(mid), origin, b"").body()
