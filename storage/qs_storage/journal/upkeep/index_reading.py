"""Makes the index of a log as a start does: from the checkpoint, if it is valid, and the segments after it.

A start logs and ignores a checkpoint that is torn, damaged, or of another log, and reads all segments.
"""

import json
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast
from zlib import crc32

from ...disk import Disk
from ...engine import Origin
from ...index.message_index import Index
from ...index.midmap import MidMap
from ..log.attributes import read_attributes
from ..log.frames import Header
from ..log.opening import Applier, FoundSegments, OpenedLog, find_segments, map_file
from ..log.places import Position, place_of, segment_of
from ..log.records import Claim, Published, record_size
from ..queues.batches import Producer, Publication, StagedPart
from ..queues.claims import Consumer, OpenClaim
from ..queues.keys import WINDOW
from ..queues.state import QueueState, Replay
from ..queues.store import Owner, PayloadStore
from .checkpoint import END, KEY, MAGIC, NAME, BadCheckpointError

Q = TypeVar("Q", bound=QueueState)


class CheckpointReader:
    """Reads the file of a checkpoint. Ensures that nothing of it is used unless its checksum is right."""

    def __init__(self, directory: str) -> None:
        """Checks the checkpoint in the log's directory. BadCheckpointError; FileNotFoundError if there is none."""
        self._data = data = map_file(f"{directory}/{NAME}")
        if len(data) < len(MAGIC) + END.size or data[: len(MAGIC)] != MAGIC:
            raise BadCheckpointError("it does not begin like a checkpoint of this version")
        length, checksum = END.unpack_from(data, len(data) - END.size)
        if crc32(data[: -END.size]) != checksum:
            raise BadCheckpointError("its checksum is wrong")
        end = len(data) - END.size
        try:
            self.content: dict[str, Any] = json.loads(bytes(data[end - length : end]))
            self.position = Position(*self.content["position"])
            """The position from which records have to be applied."""
        except (ValueError, TypeError, LookupError) as error:
            raise BadCheckpointError(f"it cannot be read: {error}") from None

    def column(self, where: list[int]) -> "array[int]":
        """Reads a column. where: what `CheckpointWriter.column` returned."""
        at, count = where
        numbers = array("Q")
        numbers.frombytes(self._data[at : at + 8 * count])
        return numbers


def read_snapshot(
    reader: CheckpointReader, make: Callable[[str, int], Q], store: PayloadStore, now: int
) -> dict[int, Q]:
    """Restores the queues of a checkpoint, by their numbers. make: makes a queue from name and number; now:
    microseconds since the Epoch."""
    queues: dict[int, Q] = {}
    store.saw_number(reader.content["numbers"])
    for entry in reader.content["queues"]:
        queue = queues[entry["number"]] = make(entry["qid"], entry["number"])
        _read_messages(reader, queue, entry, store)
        queue.taken.update(entry["taken"])
        flat = _joined(reader, entry["keys"])
        for high, low, mid, at, segment in zip(*[iter(flat)] * 5, strict=True):
            if at > now - WINDOW:  # else the segment with the key's record may be gone
                queue.keys.note(KEY.pack(high, low), mid, at, segment)
        for name, written in entry["consumers"].items():
            queue.claims.consumers[name] = _read_consumer(reader, queue, name, written)
        for name, written in entry["producers"].items():
            queue.batches.producers[name] = _read_producer(reader, queue, name, written, store)
    for first, *others in reader.content["families"]:
        for other in others:
            # Before the live bytes are corrected, which needs to know who shares.
            store.join(first, other)
    for number in store.families.keys() - queues.keys():
        store.leave(number)
    owners = _joined(reader, reader.content["owners"])
    for place, number, mid in zip(*[iter(owners)] * 3, strict=True):
        store.set_owners(place, (*(store.owners_at(place) or ()), (number, mid)))
    _discount_shared(queues, store)
    return queues


def _read_messages(reader: CheckpointReader, queue: QueueState, entry: dict[str, Any], store: PayloadStore) -> None:
    table = queue
    # In columns, which are read as blocks: there may be a million messages.
    mids, sizes, places, hidden, delayed, receives = (array("Q") for _ in range(6))
    for last, stamp, *columns in entry["messages"]:
        table.known_upto.append((last, stamp))
        for numbers, column in zip((mids, sizes, places, hidden, delayed, receives), columns, strict=False):
            numbers.extend(reader.column(column))
    are_delayed = set(delayed)
    ends = {mid: (end, mid in are_delayed) for mid, end in zip(hidden[::2], hidden[1::2], strict=True)}
    table.restore_all(Index.of(mids, sizes, ends), MidMap.of(mids, places), entry["last"])
    for mid, count in zip(receives[::2], receives[1::2], strict=True):
        table.set_receives(mid, count)
    flat = _joined(reader, entry["origins"])
    for mid, before, count, at, pushed_at, source in zip(*[iter(flat)] * 6, strict=True):
        if mid in table.index.messages:
            qid, reason = entry["sources"][source]
            table.origins[mid] = Origin(qid, before, count, at, reason, pushed_at)
    for mid, text in _read_texts(reader, entry["reasons"]):
        table.restore_reason(mid, bytes(text).decode())
    for mid, text in _read_texts(reader, entry["attributes"]):
        place = table.places.get(mid)
        if place is not None:
            table.set_attributes(mid, place, read_attributes(text, 0)[0])
    _count(store, places, sizes)


def _read_texts(reader: CheckpointReader, columns: Iterable[Sequence[list[int]]]) -> Iterator[tuple[int, memoryview]]:
    """Yields what `_write_texts` has written: the bytes of some messages, by id."""
    for where, texts in columns:
        lengths, data, at = reader.column(where), memoryview(reader.column(texts).tobytes()), 0
        for mid, length in zip(lengths[::2], lengths[1::2], strict=True):
            yield mid, data[at : at + length]
            at += length


def _joined(reader: CheckpointReader, columns: Iterable[list[int]]) -> "array[int]":
    numbers = array("Q")
    for column in columns:
        numbers += reader.column(column)
    return numbers


def _count(store: PayloadStore, places: "array[int]", sizes: "array[int]") -> None:
    """Counts messages as live bytes, 1024 at a time where these are in one segment."""
    for at in range(0, len(places), 1024):
        page, page_sizes = places[at : at + 1024], sizes[at : at + 1024]
        if segment_of(min(page)) == segment_of(max(page)):
            store.usage.add(page[0], sum(page_sizes) + len(page) * record_size(0))
        else:
            for place, size in zip(page, page_sizes, strict=True):
                store.usage.add(place, record_size(size))


def _discount_shared(queues: Mapping[int, QueueState], store: PayloadStore) -> None:
    """Makes a payload that several queues share count once as live bytes."""
    for family in {id(family): family for family in store.families.values()}.values():
        seen: set[int] = set()
        for table in [queues[number] for number in family if number in queues]:
            for mids, places in table.places.pages(-1):
                for mid, place in zip(mids, places, strict=True):
                    if place in seen:
                        store.usage.drop(place, record_size(table.index.size(mid)))
                        store.note_copied(place)
                    seen.add(place)
    for moved in store.moved.values():
        for place, owners in moved.items():
            _discount_moved(place, owners, store)


def _discount_moved(place: int, owners: Sequence[Owner], store: PayloadStore) -> None:
    """Makes the payload of a moved message count once as live bytes. Several families may have it, or a queue without a
    family under several ids: a message was copied and then moved, or moved while the checkpoint was written."""
    found = [(table, mid) for number, mid in owners for table in store.sharers(number, mid, place)]
    # `_discount_shared` has seen to it that each family counts it once.
    counted = {
        id(store.families[each.number]) if each.number in store.families else (each.number, mid) for each, mid in found
    }
    if len(counted) > 1:
        table, mid = found[0]
        store.usage.drop(place, (len(counted) - 1) * record_size(table.index.size(mid)))
        store.note_copied(place)


def _read_consumer(reader: CheckpointReader, queue: QueueState, name: str, written: dict[str, Any]) -> Consumer:
    consumer = Consumer(written["acked"], written["place"])
    for seq, place, since, size, mids, gone in written["claims"]:
        record = Claim(queue.number, seq, since, size, name, reader.column(mids))
        missing = {mid for mid in record.mids if queue.index.expiry(mid) is None}
        consumer.claims[seq] = OpenClaim(record, place, missing.union(gone))
    return consumer


def _read_producer(
    reader: CheckpointReader, queue: QueueState, name: str, written: dict[str, Any], store: PayloadStore
) -> Producer:
    producer = Producer(written["last"], written["place"])
    for batch, columns, texts in written["staged"]:
        flat = _joined(reader, columns)
        part = StagedPart(flat[0::3], flat[1::3], flat[2::3])
        part.attributes = {position: read_attributes(text, 0)[0] for position, text in _read_texts(reader, texts)}
        producer.staged[batch[0], batch[1], batch[2]] = part
        for place, size in part.values():
            store.usage.add(place, record_size(size))
    for place, batch, first, parts in written["publications"]:
        record = Published(queue.number, batch, first, name, [(part[0], part[1], part[2]) for part in parts])
        producer.publications[batch] = Publication(place, record)
    return producer


class Open(Protocol):
    """Applies the records of segments: `open_log`, or `read_log`, which changes nothing on disk."""

    def __call__(
        self, directory: str, disk: Disk, found: FoundSegments, applier: Applier, begin: Position | None = None, /
    ) -> OpenedLog: ...


class ReadIndex(NamedTuple, Generic[Q]):
    """An index that was read. begin: the checkpoint's position, None if no checkpoint was used; ignored: why a
    checkpoint that is there cannot be used."""

    replay: Replay[Q]
    opened: OpenedLog
    begin: Position | None
    ignored: str | None = None


class IndexReader(Generic[Q]):
    """Reads the index of one log.

    Ensures that the result is the same with the checkpoint and without it. If the checkpoint cannot be used, everything
    that was read from it is forgotten; the segments have the same.

    Assumes that the store is empty. Changes nothing on disk, unless `open_` does."""

    def __init__(self, directory: str, disk: Disk, store: PayloadStore, find: Callable[[str], Q], open_: Open) -> None:
        """directory: the log's; store: filled by `read`; find: returns the queue with a name, the same one each time
        unless the queue was removed meanwhile."""
        self._directory = directory
        self._disk = disk
        self._store = store
        self._find = find
        self._open = open_
        self._made: list[Q] = []

    def read(self, now: int, *, with_checkpoint: bool = True) -> ReadIndex[Q]:
        """Reads the index. now: microseconds since the Epoch; with_checkpoint: False to read all segments.
        JournalDamagedError, OSError."""
        found = find_segments(self._directory, self._disk)
        if not with_checkpoint:
            return self._read_segments(found, now)
        replay = Replay(self._make, now)
        try:
            begin = self._read_checkpoint(replay, {scan.header.number: scan.header for scan in found.needed}, now)
            # Records after the checkpoint, applied to what it has.
            opened = self._open(self._directory, self._disk, found, replay, begin)
            if begin is not None:
                _require_segments(self._store, opened)
            _forget_gone(self._store, opened)
        except BadCheckpointError as error:
            self._forget()
            return self._read_segments(found, now)._replace(ignored=str(error))
        return ReadIndex(replay, opened, begin)

    def _make(self, qid: str, number: int) -> Q:
        """Makes the queue for a name and a number in the log."""
        queue = self._find(qid)
        queue.begin(number)
        self._made.append(queue)
        return queue

    def _read_segments(self, found: FoundSegments, now: int) -> ReadIndex[Q]:
        """Replays all segments."""
        replay = Replay(self._make, now)
        opened = self._open(self._directory, self._disk, found, replay)
        _forget_gone(self._store, opened)
        return ReadIndex(replay, opened, None)

    def _forget(self) -> None:
        """Forgets what was read so far, so that the segments can be read anew."""
        for queue in self._made:
            queue.reset()
        # Also the counts of live bytes: they would be wrong for whatever is read next.
        self._store.reset()

    def _read_checkpoint(self, replay: Replay[Q], headers: dict[int, Header], now: int) -> Position | None:
        """Restores the queues from the checkpoint. Returns its position, None without one. BadCheckpointError."""
        try:
            reader = CheckpointReader(self._directory)
            salts = {int(number): salt for number, salt in reader.content["salts"].items()}
            # Salts are random: a checkpoint that was copied from another root has others.
            if any(salts.get(number, header.salt.hex()) != header.salt.hex() for number, header in headers.items()):
                raise BadCheckpointError("it belongs to another journal")
            if reader.position.segment < min(headers, default=0):
                return None  # all that it has was copied since, or is gone
            if reader.position.segment not in headers:
                raise BadCheckpointError("the segment in which it ends is missing")
            # Records after its position are applied to these queues next.
            replay.queues.update(read_snapshot(reader, replay.make, self._store, now))
        except FileNotFoundError:
            return None
        except (OSError, LookupError, TypeError, ValueError, struct.error) as error:
            raise BadCheckpointError(str(error)) from None
        return reader.position


def _require_segments(store: PayloadStore, opened: OpenedLog) -> None:
    """Checks that the segment of each message exists. BadCheckpointError."""
    oldest = place_of(opened.headers[0].number, 0)
    for table in cast("dict[int, QueueState]", store.tables).values():
        staged = (place for state in table.batches.producers.values() for place in state.staged_places())
        first = min(chain(staged, *(places for _, places in table.places.pages(-1))), default=oldest)
        if first < oldest:
            raise BadCheckpointError(f"segment {segment_of(first)}, which has messages of it, is missing")


def _forget_gone(store: PayloadStore, opened: OpenedLog) -> None:
    """Counts nothing as live in segments that are given up. The replay may have counted bytes there: before the copies
    of a message follow, its records do not tell how messages were related."""
    for segment in store.usage.segments() - {header.number for header in opened.headers}:
        store.usage.empty(segment)
