"""What a checkpoint holds of the queues, and how they are made from it again."""

import struct
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, islice
from time import perf_counter
from typing import Any

from ..index.message_index import Index
from ..index.midmap import MidMap
from ..names import MAX_MID
from .batches import Producer, Publication
from .checkpoint import CheckpointReader, CheckpointWriter
from .claim_records import Claim, Published
from .claims import Consumer, Held
from .keys import WINDOW
from .log_interface import RecordLog
from .places import Position, place_of
from .queue import LogQueue
from .store import SLICE, Store, record_size
from .table import MessageTable

_KEY = struct.Struct("<QQ")

_PAGES = 1
"""Chunks of messages that are written at a time: some 1,000."""
_AT_A_TIME = 1024
"""Entries of anything else."""


class Snapshot:
    """A checkpoint that is being written."""

    def __init__(self, writer: CheckpointWriter, work: Iterator[None], log: RecordLog) -> None:
        self._writer = writer
        self._work = work
        self._log = log
        self._sync: Callable[[], None] | None = None

    def step(self) -> bool:
        """Writes for as long as a slice may take, of what is in the log. Whether all is written, to be published.
        OSError: the checkpoint before stays."""
        until = perf_counter() + SLICE
        try:
            for _ in self._work:
                if perf_counter() >= until:
                    return False
        except BaseException:
            self._writer.give_up()
            raise
        self._sync = self._log.background_sync()
        return True

    def publish(self) -> None:
        """Makes it the checkpoint of the log, durably, in whatever thread. OSError: the one before stays."""
        try:
            if self._sync is not None:
                self._sync()  # what the checkpoint says must not be newer than the log
            self._writer.publish()
        except BaseException:
            self._writer.give_up()
            raise

    def give_up(self) -> None:
        """Writes no more of it."""
        self._writer.give_up()


def write_snapshot(
    writer: CheckpointWriter, position: Position, queues: Iterable[LogQueue], store: Store, numbers: int
) -> Iterator[None]:
    """Writes the queues, piece by piece, while they change. Claims and batches of a queue come before its messages, and
    each piece of those says which records it knows: a start applies to them only those that come later. numbers: the
    greatest that a queue was given. OSError."""
    log = store.log
    content: dict[str, Any] = {
        "position": list(position),
        "oldest": log.oldest,
        "numbers": numbers,
        "salts": {number: salt.hex() for number, salt in log.salts.items()},
    }
    entries = content["queues"] = []
    for queue in queues:
        entry: dict[str, Any] = {"number": queue.number, "qid": queue.qid}
        entries.append(entry)
        entry["consumers"] = yield from _write_consumers(writer, queue)
        entry["producers"] = yield from _write_producers(writer, queue)
        entry["messages"] = yield from _write_messages(writer, queue, log)
        entry["keys"] = yield from _write_parts(
            writer, ((*_KEY.unpack(key), *about) for page in queue.keys.pages() for key, *about in page)
        )
        entry["taken"] = [[token, place] for token, place in queue.taken.items()]
        entry["last"] = queue.last_mid
        yield
    content["families"] = [
        sorted(family) for family in {id(family): family for family in store.families.values()}.values()
    ]
    writer.end(content)


def _write_messages(
    writer: CheckpointWriter, queue: LogQueue, log: RecordLog
) -> Generator[None, None, list[list[Any]]]:
    """Each entry: the last id that it is about, the place of the next record when it was taken, and columns: ids,
    sizes, places, and of those to which that applies, ids and ends of windows, ids of delayed ones, ids and receives.
    The last entry is about all ids that are left: there are no messages of them."""
    table = queue.table
    entries: list[list[Any]] = []
    after = -1
    while True:
        mids, facts, places = array("Q"), array("Q"), array("Q")
        for (some, theirs), (_, where) in islice(
            zip(table.index.messages.pages(after), table.places.pages(after), strict=True), _PAGES
        ):
            mids += some
            facts += theirs
            places += where
        now = log.position
        stamp = place_of(now.segment, now.start)
        if not mids:
            entries.append([MAX_MID, stamp])
            return entries
        after = mids[-1]
        sizes = array("Q", map(Index.size_in, facts))
        columns = (mids, sizes, places, *_states(table, mids, facts))
        entries.append([after, stamp, *map(writer.column, columns)])
        yield


def _states(table: MessageTable, mids: "array[int]", facts: "array[int]") -> "Iterator[array[int]]":
    hidden, held, receives = table.index.hidden, table.held, table.receives
    found = zip(mids, hidden.values_of(mids), strict=True) if len(hidden) else ()
    yield array("Q", [each for mid, end in found if end is not None and mid not in held for each in (mid, end)])
    delayed = table.index.delayed
    yield array("Q", [mid for mid, fact in zip(mids, facts, strict=True) if delayed and Index.delayed_in(fact)])
    yield array("Q", [each for mid in mids if mid in receives for each in (mid, receives[mid])] if receives else [])


def _write_parts(writer: CheckpointWriter, rows: Iterable[Iterable[int]]) -> Generator[None, None, list[list[int]]]:
    """Rows of numbers, some at a time."""
    columns: list[list[int]] = []
    rows = iter(rows)
    while some := array("Q", chain.from_iterable(islice(rows, _AT_A_TIME))):
        columns.append(writer.column(some))
        yield
    return columns


def _write_consumers(writer: CheckpointWriter, queue: LogQueue) -> Generator[None, None, dict[str, Any]]:
    written: dict[str, Any] = {}
    for name, found in list(queue.claims.consumers.items()):
        claims: list[list[Any]] = []
        written[name] = {"acked": found.acked, "place": found.place, "claims": claims}
        for seq, held in list(found.claims.items()):
            mids = writer.column(array("Q", held.record.mids))
            claims.append([seq, held.place, held.record.since, held.record.size, mids, sorted(held.gone)])
            yield
    return written


def _write_producers(writer: CheckpointWriter, queue: LogQueue) -> Generator[None, None, dict[str, Any]]:
    """A batch that is published while its parts are written has its record behind all that is written before it."""
    written: dict[str, Any] = {}
    for name, found in list(queue.batches.producers.items()):
        publications = [
            [each.place, batch, each.record.first, list(each.record.parts)]
            for batch, each in found.publications.items()
        ]
        staged: list[list[Any]] = []
        written[name] = {"last": found.last, "place": found.place, "staged": staged, "publications": publications}
        for part_name, part in list(found.staged.items()):
            rows = ((position, *part[position]) for position in list(part) if position in part)
            columns = yield from _write_parts(writer, rows)
            staged.append([list(part_name), columns])
        yield
    return written


# -- back -----------------------------------------------------------------------------------------------------------


def read_snapshot(
    reader: CheckpointReader, make: Callable[[str, int], LogQueue], store: Store, now: int
) -> dict[int, LogQueue]:
    """The queues as the checkpoint has them, by their numbers. now: microseconds since the Epoch."""
    queues: dict[int, LogQueue] = {}
    for entry in reader.content["queues"]:
        queue = queues[entry["number"]] = make(entry["qid"], entry["number"])
        _read_messages(reader, queue, entry, store)
        queue.taken.update(entry["taken"])
        flat = _joined(reader, entry["keys"])
        for one, other, mid, at, where in zip(*[iter(flat)] * 5, strict=True):
            if at > now - WINDOW:  # else the segment that says it may be gone
                queue.keys.note(_KEY.pack(one, other), mid, at, where)
        for name, found in entry["consumers"].items():
            queue.claims.consumers[name] = _read_consumer(reader, queue, name, found)
        for name, found in entry["producers"].items():
            queue.batches.producers[name] = _read_producer(reader, queue, name, found, store)
    for first, *others in reader.content["families"]:
        for other in others:
            store.join(first, other)
    _discount_shared(queues, store)
    return queues


def _read_messages(reader: CheckpointReader, queue: LogQueue, entry: dict[str, Any], store: Store) -> None:
    table = queue.table
    mids, sizes, places, hidden, delayed, receives = (array("Q") for _ in range(6))
    for last, stamp, *columns in entry["messages"]:
        table.known_upto.append((last, stamp))
        for whole, where in zip((mids, sizes, places, hidden, delayed, receives), columns, strict=False):
            whole.extend(reader.column(where))
    are_delayed = set(delayed)
    ends = {mid: (end, mid in are_delayed) for mid, end in zip(hidden[::2], hidden[1::2], strict=True)}
    table.index = Index.of(mids, sizes, ends)
    table.places = MidMap.of(mids, places)
    for mid, count in zip(receives[::2], receives[1::2], strict=True):
        table.receives[mid] = count
        table.index.new.discard(mid)
    table.last_mid = entry["last"]
    _count(store, places, sizes)


def _joined(reader: CheckpointReader, parts: Iterable[list[int]]) -> "array[int]":
    whole = array("Q")
    for where in parts:
        whole += reader.column(where)
    return whole


def _count(store: Store, places: "array[int]", sizes: "array[int]") -> None:
    """Adds messages to the usage of their segments, many at a time where they stand in the same one."""
    for at in range(0, len(places), 1024):
        some, theirs = places[at : at + 1024], sizes[at : at + 1024]
        if min(some) >> 32 == max(some) >> 32:
            store.usage.add(some[0], sum(theirs) + len(theirs) * record_size(0))
        else:
            for place, size in zip(some, theirs, strict=True):
                store.usage.add(place, record_size(size))


def _discount_shared(queues: dict[int, LogQueue], store: Store) -> None:
    """A payload that several queues share is counted once."""
    for family in {id(family): family for family in store.families.values()}.values():
        seen: set[int] = set()
        for table in [queues[number].table for number in family if number in queues]:
            for mids, places in table.places.pages(-1):
                for mid, place in zip(mids, places, strict=True):
                    if place in seen:
                        store.usage.drop(place, record_size(table.index.size(mid)))
                    seen.add(place)


def _read_consumer(reader: CheckpointReader, queue: LogQueue, name: str, found: dict[str, Any]) -> Consumer:
    consumer = Consumer(found["acked"], found["place"])
    for seq, place, since, size, where, gone in found["claims"]:
        record = Claim(queue.number, seq, since, size, name, reader.column(where))
        missing = {mid for mid in record.mids if queue.table.index.expiry(mid) is None}
        consumer.claims[seq] = Held(record, place, missing.union(gone))
    return consumer


def _read_producer(
    reader: CheckpointReader, queue: LogQueue, name: str, found: dict[str, Any], store: Store
) -> Producer:
    producer = Producer(found["last"], found["place"])
    for batch, where in found["staged"]:
        flat = _joined(reader, where)
        part = {flat[at]: (flat[at + 1], flat[at + 2]) for at in range(0, len(flat), 3)}
        producer.staged[batch[0], batch[1], batch[2]] = part
        for place, size in part.values():
            store.usage.add(place, record_size(size))
    for place, batch, first, parts in found["publications"]:
        record = Published(queue.number, batch, first, name, [(part[0], part[1], part[2]) for part in parts])
        producer.publications[batch] = Publication(place, record)
    return producer
