"""Compaction: copies the needed records of the oldest segment to the end of the log, and gives the segment up.

Only the oldest segment is ever compacted: a tombstone, a state, a claim is needed only while older segments exist. So
the log is a circle, and nothing has to keep track of the segments that a record is about.
"""

import logging
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import cast

from ...engine import Clock
from ..log import pool, records
from ..log.attributes import Attributes
from ..log.frames import BLOCK, FRAME_HEAD, DamagedError, Frame, count_of, seed
from ..log.opening import Scan, open_segment
from ..log.places import place_of, segment_of
from ..log.records import BadRecordError, Staged, record_size
from ..queues.state import QueueState
from ..queues.store import PayloadStore

_logger = logging.getLogger(__name__)
_pack_moved = records.Moved.FORMAT.pack
_GAIN = 32 << 10
"""Bytes that compaction has to free to be worthwhile on a full disk."""
_ONE_BY_ONE = frozenset((Staged.KIND, records.Letter.KIND))
"""Kinds whose records are copied unchanged and one by one. Other kinds become a MOVED, many at a time."""
_FOUND = 32
"""The most records that are copied between two looks at the time."""
_LOOKED_AT = 128
"""The most records that are looked at between two looks at the time."""
_QUEUES = 500
"""The most queues that are looked at between two looks at the time: all of them have to be, for each segment."""
_BYTES = 128 << 10
"""The most bytes that are looked at between two looks at the time, except for the last record."""


class Compaction:
    """Compacts the log of one store: one segment at a time, the oldest, in small steps.

    Ensures:
    1. A segment is given up only when all its needed records have been copied, in the same frame or an earlier one.
    2. Each record is checked before it is copied. A segment with a damaged record stays, and so do all segments after
       it.
    3. Copies are changes of the transaction, and are committed or taken back with it. After a take-back, the caller
       calls `restart`.
    4. Requests may run between two steps: each step looks up what it copies, and trusts nothing from the step before.

    Assumes that the caller secures the room that a `step` asks for before it calls `step` again.

    Never commits, never begins a segment, and never removes a file."""

    def __init__(self, store: PayloadStore, queues: Mapping[str, QueueState], clock: Clock) -> None:
        """queues: all queues of the log, by name."""
        self._store = store
        self._tables = cast("dict[int, QueueState]", store.tables)  # the store asks less of them
        self._queues = queues
        self._clock = clock
        self._work: Iterator[int] | None = None
        self._damaged = 0  # number of the segment that cannot be read
        self._orphans: dict[int, dict[int, int]] = {}  # see `_ids_in`
        self.total = 0
        """Bytes of payload copied since the start."""

    @property
    def oldest(self) -> int | None:
        """The segment that can be given up next. None without one: the last segment is being written, and a damaged one
        stays."""
        log = self._store.log
        oldest = log.segments.oldest
        is_last = oldest in {None, log.number, self._damaged}
        return None if is_last or log.failed is not None else oldest

    def wanted(self, *, tight: bool) -> bool:
        """Tells whether the oldest segment should be given up. tight: see `least`."""
        oldest, usage = self.oldest, self._store.usage
        if oldest is None:
            return False
        # A segment with nothing live costs no copy: it goes at once, however small the log is.
        return not usage.live.get(oldest) or usage.total < self.least(tight=tight)

    def least(self, *, tight: bool) -> int:
        """Returns the live bytes below which the oldest segment should be given up. tight: True on a full disk, where
        small gains count."""
        segments = self._store.log.segments
        sealed = segments.size - segments.sizes.get(self._store.log.number, 0)
        if tight:
            return (sealed - _GAIN) * 8 // 9
        # From 1.8 times the live bytes on. While the live bytes of a circle are copied, a third as much may be pushed:
        # so there are never more than 2.2 times.
        return sealed * 5 // 9 if sealed > pool.SMALL_LOG else 0

    def restart(self) -> None:
        """Begins the segment anew after copies were taken back. Skips records that are copied already."""
        self._work = None

    def step(self) -> int | None:
        """Does the next step of copying the oldest segment: appends the copies whose bytes the step before has
        returned. Returns the bytes of the next copies; None when the segment is given up, or stays because it is
        damaged. OSError."""
        oldest = self.oldest
        if oldest is None:
            return None
        if self._work is None:
            self._work = self._copy_segment(oldest)
        try:
            return next(self._work)
        except StopIteration:
            self._work = None
        # Whatever a damaged segment makes of its reader: the others of the log go on, and the operator is told once.
        except (DamagedError, BadRecordError, struct.error, IndexError) as error:
            self._work, self._damaged = None, oldest
            _logger.error(
                "%s cannot be compacted and stays: %s. Stop the server; 'queue-journal.py check' says more",
                self._store.log.segments.path_of(oldest),
                error,
            )
        except OSError:
            self._work = None
            raise
        return None

    def _copy_segment(self, segment: int) -> Iterator[int]:
        for number, queue in enumerate(list(self._queues.values()), 1):
            if number % _QUEUES == 0:
                yield 0
            yield from queue.keys.copy_records(queue.number, segment, self._clock())
            yield from queue.claims.copy_records(segment)
            yield from queue.batches.copy_records(segment)
            for token, place in list(queue.taken.items()):
                if segment_of(place) <= segment:
                    yield records.SMALL
                    if queue.taken.get(token) != place:
                        continue  # its file is gone meanwhile
                    transaction = self._store.transaction
                    transaction.undo(queue.taken.__setitem__, token, place)
                    queue.taken[token] = transaction.append(records.Taken(queue.number, token).write())
        if self._store.usage.live.get(segment):
            yield from self._copy_payloads(segment)
        yield 0
        # In the frame of the last copies, or a later one: a crash before that finds the segment still needed.
        self._store.transaction.give_up_before(segment + 1)

    # -- payloads -------------------------------------------------------------------------------------------------

    def _copy_payloads(self, segment: int) -> Iterator[int]:
        """Copies the needed messages of a segment, with their states. Checks each record that it copies; reads only
        head and id of the others. As other requests run at each `yield`, looks up what to copy after it."""
        store = self._store
        scan = open_segment(store.log.directory, segment)
        for frame in scan.heads(BLOCK, scan.header.first, store.log.segments.frame_after(segment)):
            for plain, others in self._needed(scan, frame):
                if plain:
                    # What got shared or moved while a step waited is looked at again, one by one.
                    others.extend((yield from self._copy_plain(scan, plain)))
                for at in others:
                    yield from self._copy_one(scan, at)
                yield 0
        if store.usage.live.get(segment):
            raise DamagedError(f"byte {scan.gap.start}: {scan.gap.why or 'it ends there'}, but messages should follow")

    def _needed(self, scan: Scan, frame: Frame) -> Iterator[tuple[list[tuple[QueueState, int, int]], list[int]]]:
        """Yields the records of a frame that may be needed, some at a time, in two lists: (queue, id, byte) of messages
        that share nothing, according to their records; and the bytes of other records, which are looked at one by
        one."""
        data, tables, families = scan.data, self._tables, self._store.families
        segment, moved = scan.header.number, self._store.moved
        before, head = place_of(scan.header.number, 0), records.HEAD.size
        at = frame.start + FRAME_HEAD
        end, count = at + frame.length, 0
        while at < end:
            plain: list[tuple[QueueState, int, int]] = []
            others: list[int] = []
            looked_until, stop = count + _LOOKED_AT, min(at + _BYTES, end)
            while at < stop and count < looked_until and len(plain) + len(others) < _FOUND:
                length, _ = records.HEAD.unpack_from(data, at)
                kind = data[at + head]
                if kind in records.WITH_PAYLOAD:
                    _, number, mid = records.whose(data, at + head)
                    if kind in _ONE_BY_ONE or number in families or before | at in moved.get(segment, ()):
                        others.append(at)
                    # Whether a record is live is known without reading its payload: the message has this place, or
                    # another one by now.
                    elif (table := tables.get(number)) is not None and table.places.get(mid) == before | at:
                        plain.append((table, mid, at))
                at += head + length
                count += 1
            yield plain, others
        # Heads of records are not checked one by one: that they end where the frame does shows that none was damaged.
        if at != end or count != count_of(data, frame):
            raise BadRecordError(f"frame {frame.sequence} does not hold {count_of(data, frame)} records")

    def _ids_in(self, segment: int) -> dict[int, int]:
        """Returns the ids of messages by their places in a segment. These messages are copies, and only they know the
        id of a staged record whose queue is removed."""
        return {
            where: mid
            for table in self._tables.values()
            for mids, places in table.places.pages(-1)
            for mid, where in zip(mids, places, strict=True)
            if segment_of(where) == segment
        }

    def _copy_plain(self, scan: Scan, found: list[tuple[QueueState, int, int]]) -> Generator[int, None, list[int]]:
        """Copies messages that share no payload: as many together as the batch has room for, so that little is lost at
        the end of a segment. Leaves out messages that requests have copied to other queues or moved meanwhile, and
        returns their bytes in the segment. found: see `_needed`."""
        begin, segment, store = seed(scan.header.salt), scan.header.number, self._store
        shared: list[int] = []
        for table in {table.number: table for table, _, _ in found}.values():
            own = [(mid, at) for each, mid, at in found if each is table]
            while own:
                some, size = self._fitting(table, scan, own)
                yield size
                left: list[tuple[int, int]] = []
                others: list[int] = []
                moved, is_shared = store.moved.get(segment, ()), table.number in store.families
                for mid, at in some:
                    place = place_of(segment, at)
                    if is_shared or place in moved:
                        others.append(at)
                    elif table.places.get(mid) == place:
                        left.append((mid, at))
                # Nothing has been appended yet, so it can be tried again with the room that is asked for then.
                if self._fitting(table, scan, left)[1] > store.transaction.left:
                    continue  # others have given some of them reasons meanwhile
                own = own[len(some) :]
                shared += others
                # Here the checksums are checked, of what is copied only.
                bodies = [records.body_at(scan.data, begin, at) for _, at in left]
                payloads = [bytes(records.payload_of(body) or b"") for body in bodies]
                if left:
                    self._append_plain(
                        table, [mid for mid, _ in left], [place_of(segment, at) for _, at in left], payloads
                    )
        return shared

    def _fitting(self, table: QueueState, scan: Scan, own: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
        """Returns the first of these messages, (id, byte) each, for which the batch has room, at least one, and the
        bytes of their copies."""
        some: list[tuple[int, int]] = []
        size = 0
        for mid, at in own:
            more = records.HEAD.unpack_from(scan.data, at)[0] + records.MOVED_SIZE
            more += _size_of(_reasons_of(table, (mid,))) + table.attributes_size((mid,))
            if some and size + more > self._store.transaction.left:
                break
            some.append((mid, at))
            size += more
        return some, size

    def _append_plain(self, table: QueueState, mids: list[int], before: list[int], payloads: list[bytes]) -> None:
        """Appends copies of messages. before: their places until now."""
        store, transaction = self._store, self._store.transaction
        sizes = [len(payload) for payload in payloads]
        attributes = [table.attributes.get(mid) for mid in mids]
        # The struct alone, which all have in the same size: attributes are written as if they belonged to the payload.
        moved = [_moved(table, mid, given) for mid, given in zip(mids, attributes, strict=True)]
        written = [
            payload if given is None else given.pack() + payload
            for given, payload in zip(attributes, payloads, strict=True)
        ]
        places = transaction.append_all(moved, written, list(map(len, written)), records.MOVED_SIZE)
        transaction.unwritten.update(zip(places, payloads, strict=True))
        reasons = _reasons_of(table, mids)
        for reason in reasons:
            transaction.append(reason)
        for mid, place in zip(mids, places, strict=True):
            table.places.set(mid, place)
        counted = sum(sizes) + len(mids) * record_size(0) + _size_of(reasons) + table.attributes_size(mids)
        store.usage.add(places[0], counted)
        store.usage.drop(before[0], counted)
        transaction.undo(self._put_back, [table], mids, before, places[0], counted)
        self.total += sum(sizes)

    def _copy_one(self, scan: Scan, at: int) -> Iterator[int]:
        """Copies the messages that have their payload at a byte: a staged message, or a message in one or more queues,
        under one or more ids."""
        segment, transaction = scan.header.number, self._store.transaction
        body, place = records.body_at(scan.data, seed(scan.header.salt), at), place_of(segment, at)
        if body[0] == Staged.KIND and (table := self._tables.get(records.whose(body)[1])) is not None:
            staged = Staged.read(body)
            yield len(body) + records.HEAD.size
            if table.batches.move(place, staged):
                self.total += len(staged.payload)
                return
        payload = bytes(records.payload_of(body) or b"")
        while (found := self._holders(place, body)) is not None:
            yield _size_of_copies(payload, *found)
            found = self._holders(place, body)  # others may have copied, moved or removed it, or given a reason
            # Else the next turn asks for the room that it takes now.
            if found is not None and _size_of_copies(payload, *found) <= transaction.left:
                self._copy_shared(place, payload, *found)

    def _holders(self, place: int, body: memoryview) -> tuple[int, list[QueueState]] | None:
        """Returns an id of the message at a place, and the queues that have it under that id; None if none has it."""
        segment = segment_of(place)
        for number, mid in self._store.owners_of(place, body):
            known = mid
            if known is None:
                if segment not in self._orphans:
                    # Made when it is needed, as it goes over all messages; nearly never is a queue removed whose
                    # staged messages were copied.
                    self._orphans = {segment: self._ids_in(segment)}
                known = self._orphans[segment].get(place)
            if known is not None and (tables := self._store.sharers(number, known, place)):
                return known, cast("list[QueueState]", tables)
        return None

    def _copy_shared(self, place: int, payload: bytes, mid: int, tables: list[QueueState]) -> None:
        """Copies a message, with its state in each of the queues that share its payload. The caller has secured the
        room."""
        store, transaction = self._store, self._store.transaction
        size = len(payload)
        reasons = [reason for table in tables for reason in _reasons_of(table, [mid])]
        # One of them gets the payload, the others a SHARED that names its place.
        first, *others = sorted(tables, key=lambda table: mid not in table.origins)  # only the first keeps its origin
        origin, state, attributes = first.origins.get(mid), first.state_of(mid), first.attributes.get(mid)
        copy: records.Record = records.Moved(first.number, mid, *state, b"", attributes)
        if origin is not None:
            copy = records.Letter(first.number, mid, *state, origin, b"", attributes)
        moved = transaction.append(copy.write(), payload)
        for other in others:
            attributes = other.attributes.get(mid)
            shared = records.Shared(other.number, mid, *other.state_of(mid), moved, size, first.number, attributes)
            transaction.append(shared.write())
            store.note_copied(moved)
        for reason in reasons:
            transaction.append(reason)
        for table in tables:
            table.places.set(mid, moved)
        counted = record_size(size) + _size_of(reasons) + sum([table.attributes_size((mid,)) for table in tables])
        store.usage.add(moved, counted)
        store.usage.drop(place, counted)
        transaction.undo(self._put_back, tables, [mid], [place], moved, counted)
        if any(store.sharers(number, other_id, place) for number, other_id in store.owners_at(place) or ()):
            # It was copied and then moved: the payload has two ids, and each gets a copy of its own.
            store.usage.add(place, record_size(size))
            transaction.undo(store.usage.drop, place, record_size(size))
        self.total += size

    def _put_back(self, tables: list[QueueState], mids: list[int], before: list[int], moved: int, size: int) -> None:
        """Takes back a copy. before: the old places; moved: the first new place; size: the live bytes."""
        for table in tables:
            for mid, place in zip(mids, before, strict=True):
                table.places.set(mid, place)
        self._store.usage.add(before[0], size)
        self._store.usage.drop(moved, size)


def _size_of_copies(payload: bytes, mid: int, tables: list[QueueState]) -> int:
    """Returns the most bytes that the copies of a message take, with its reasons."""
    reasons = [reason for table in tables for reason in _reasons_of(table, [mid])]
    attributes = sum([table.attributes_size((mid,)) for table in tables])
    return len(payload) + len(tables) * records.SHARED_SIZE + records.TRANSFER_SIZE + _size_of(reasons) + attributes


def _moved(table: QueueState, mid: int, attributes: Attributes | None) -> bytes:
    """Packs the struct of a MOVED."""
    receives, visible, delayed = table.state_of(mid)
    return _pack_moved(9, table.number, mid, receives, visible, records.flags_of(delayed, attributes))


def _reasons_of(table: QueueState, mids: Iterable[int]) -> list[bytes]:
    """Packs the records of the reasons that these messages have."""
    reasons = table.reasons
    if not reasons:
        return []
    return [
        records.Reason(table.number, mid, *table.state_of(mid), reasons[mid]).write() for mid in mids if mid in reasons
    ]


def _size_of(bodies: Iterable[bytes]) -> int:
    return sum(records.HEAD.size + len(body) for body in bodies)
