"""Writes the queues of a log to a checkpoint, and restores them from it."""

import struct
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from time import perf_counter
from typing import Any, TypeVar

from ...engine import Origin
from ...index.message_index import Index
from ...index.midmap import MidMap
from ...names import MAX_MID
from ..log.log import Log
from ..log.places import Position, place_of, segment_of
from ..log.records import Claim, Published
from ..queues.batches import Producer, Publication, StagedPart
from ..queues.claims import Consumer, OpenClaim
from ..queues.keys import WINDOW
from ..queues.state import QueueState
from ..queues.store import Owner, Store
from ..queues.usage import record_size
from .checkpoint import CheckpointReader, CheckpointWriter

Q = TypeVar("Q", bound=QueueState)
_KEY = struct.Struct("<QQ")

SLICE = 0.002
"""Approximate seconds of a slice."""
_PAGES = 1
"""Index chunks, of some 1,000 messages each, written at a time."""
_AT_A_TIME = 1024
"""Entries of any other kind written at a time."""
_TEXTS = 256
"""Reasons written at a time: at most 256 KiB."""


class Snapshot:
    """Writes a checkpoint in slices, and publishes it."""

    def __init__(self, store: Store, queues: Iterable[QueueState]) -> None:
        """Begins a checkpoint of a log that was written to since the start. queues: all of the log. OSError."""
        self._log = store.log
        self._writer = CheckpointWriter(store.log.directory, store.log.disk)
        self._work = _write_queues(self._writer, store.log.position, list(queues), store)
        self._sync: Callable[[], None] | None = None

    def step(self) -> bool:
        """Writes a slice. Returns True once all is written. OSError: the previous checkpoint stays."""
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
        """Makes this the log's checkpoint, durably; may run in any thread. OSError: the previous checkpoint stays."""
        try:
            if self._sync is not None:
                self._sync()  # the checkpoint must not be newer than the durable log
            self._writer.publish()
        except BaseException:
            self._writer.give_up()
            raise

    def give_up(self) -> None:
        """Stops writing, and removes the file."""
        self._writer.give_up()


def _write_queues(
    writer: CheckpointWriter, position: Position, queues: Iterable[QueueState], store: Store
) -> Iterator[None]:
    """Writes the queues piece by piece, while they change; yields between pieces. Claims and batches of a queue come
    before its messages. A start applies to a piece of messages only records after the end that the log has when it is
    written. OSError."""
    log = store.log
    content: dict[str, Any] = {
        "position": list(position),
        "numbers": store.last_number,
        "salts": {number: log.segments.salt_of(number).hex() for number in log.segments.sizes},
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
        sources: dict[tuple[str, str], int] = {}
        entry["origins"] = yield from _write_parts(writer, _origins(queue, sources))  # after the messages
        entry["sources"] = list(sources)
        entry["reasons"] = yield from _write_reasons(writer, queue)  # after the messages
        entry["taken"] = [[token, place] for token, place in queue.taken.items()]
        entry["last"] = queue.last_mid
        yield
    content["families"] = _families(store)
    content["owners"] = yield from _write_parts(writer, _owners(store))
    writer.end(content)


def _owners(store: Store) -> Iterator[tuple[int, int, int]]:
    """Yields (place, queue number, id) for each owner of a payload whose message has moved, while they change."""
    for segment in list(store.moved):
        for place, owners in list(store.moved.get(segment, {}).items()):
            for number, mid in owners:
                yield place, number, mid


def _families(store: Store) -> list[list[int]]:
    """Returns the queue numbers of each family, including removed queues."""
    families: dict[int, list[int]] = {}
    for number, family in store.families.items():
        families.setdefault(id(family), []).append(number)
    return [sorted(numbers) for numbers in families.values()]


def _write_messages(writer: CheckpointWriter, queue: QueueState, log: Log) -> Generator[None, None, list[list[Any]]]:
    """Returns entries: [last id, place of the next record at that time, columns]. The columns: ids, sizes, places, (id,
    end of the window) of hidden messages, ids of delayed ones, (id, receives) of received ones. The last entry has no
    columns, as there are no messages with greater ids."""
    table = queue
    entries: list[list[Any]] = []
    after = -1
    while True:
        mids, facts, places = array("Q"), array("Q"), array("Q")
        for (page_mids, page_facts), (_, page_places) in islice(
            zip(table.index.messages.pages(after), table.places.pages(after), strict=True), _PAGES
        ):
            mids += page_mids
            facts += page_facts
            places += page_places
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


def _states(table: QueueState, mids: "array[int]", facts: "array[int]") -> "Iterator[array[int]]":
    hidden, held, receives = table.index.hidden, table.held, table.receives
    ends = zip(mids, hidden.values_of(mids), strict=True) if len(hidden) else ()
    yield array("Q", [each for mid, end in ends if end is not None and mid not in held for each in (mid, end)])
    delayed = table.index.delayed
    yield array("Q", [mid for mid, fact in zip(mids, facts, strict=True) if delayed and Index.delayed_in(fact)])
    yield array("Q", [each for mid in mids if mid in receives for each in (mid, receives[mid])] if receives else [])


def _write_parts(writer: CheckpointWriter, rows: Iterable[Iterable[int]]) -> Generator[None, None, list[list[int]]]:
    """Writes rows of numbers, `_AT_A_TIME` to a column. Returns the columns."""
    columns: list[list[int]] = []
    rows = iter(rows)
    while column := array("Q", chain.from_iterable(islice(rows, _AT_A_TIME))):
        columns.append(writer.column(column))
        yield
    return columns


def _origins(table: QueueState, sources: dict[tuple[str, str], int]) -> Iterator[tuple[int, ...]]:
    """Yields a row for each dead letter, while they change. sources: filled with (queue, reason) and its number in the
    rows."""
    for mid in list(table.origins):
        origin = table.origins.get(mid)
        if origin is not None:
            source = sources.setdefault((origin.qid, origin.reason), len(sources))
            yield mid, origin.mid, origin.receives, origin.at, origin.pushed_at, source


def _write_reasons(writer: CheckpointWriter, table: QueueState) -> Generator[None, None, list[list[list[int]]]]:
    """Writes why messages were given back, while they change. Returns pairs of columns: (id, bytes of the text), and
    the texts one after the other, filled up with zeros."""
    columns: list[list[list[int]]] = []
    mids = iter(list(table.reasons))
    while some := list(islice(mids, _TEXTS)):
        page = [(mid, table.reasons[mid].encode()) for mid in some if mid in table.reasons]
        lengths = array("Q", [number for mid, text in page for number in (mid, len(text))])
        texts = b"".join(text for _, text in page)
        columns.append([writer.column(lengths), writer.column(array("Q", texts + bytes(-len(texts) % 8)))])
        yield
    return columns


def _write_consumers(writer: CheckpointWriter, queue: QueueState) -> Generator[None, None, dict[str, Any]]:
    written: dict[str, Any] = {}
    for name, consumer in list(queue.claims.consumers.items()):
        claims: list[list[Any]] = []
        written[name] = {"acked": consumer.acked, "place": consumer.place, "claims": claims}
        for seq, held in list(consumer.claims.items()):
            mids = writer.column(array("Q", held.record.mids))
            claims.append([seq, held.place, held.record.since, held.record.size, mids, sorted(held.gone)])
            yield
    return written


def _write_producers(writer: CheckpointWriter, queue: QueueState) -> Generator[None, None, dict[str, Any]]:
    """Writes the producers. A batch published meanwhile has its record after the checkpoint's position."""
    written: dict[str, Any] = {}
    for name, producer in list(queue.batches.producers.items()):
        publications = [
            [each.place, batch, each.record.first, list(each.record.parts)]
            for batch, each in producer.publications.items()
        ]
        staged: list[list[Any]] = []
        written[name] = {"last": producer.last, "place": producer.place, "staged": staged, "publications": publications}
        for part_name, part in list(producer.staged.items()):
            rows = ((position, *part[position]) for position in list(part) if position in part)
            columns = yield from _write_parts(writer, rows)
            staged.append([list(part_name), columns])
        yield
    return written


# -- reading --------------------------------------------------------------------------------------------------------


def read_snapshot(reader: CheckpointReader, make: Callable[[str, int], Q], store: Store, now: int) -> dict[int, Q]:
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
                queue.keys.note(_KEY.pack(high, low), mid, at, segment)
        for name, written in entry["consumers"].items():
            queue.claims.consumers[name] = _read_consumer(reader, queue, name, written)
        for name, written in entry["producers"].items():
            queue.batches.producers[name] = _read_producer(reader, queue, name, written, store)
    for first, *others in reader.content["families"]:
        for other in others:
            store.join(first, other)
    for number in store.families.keys() - queues.keys():
        store.leave(number)
    owners = _joined(reader, reader.content["owners"])
    for place, number, mid in zip(*[iter(owners)] * 3, strict=True):
        store.set_owners(place, (*(store.owners_at(place) or ()), (number, mid)))
    _discount_shared(queues, store)
    return queues


def _read_messages(reader: CheckpointReader, queue: QueueState, entry: dict[str, Any], store: Store) -> None:
    table = queue
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
    for lengths, texts in entry["reasons"]:
        _read_reasons(table, reader.column(lengths), reader.column(texts).tobytes())
    _count(store, places, sizes)


def _read_reasons(table: QueueState, lengths: "array[int]", texts: bytes) -> None:
    at = 0
    for mid, length in zip(lengths[::2], lengths[1::2], strict=True):
        table.restore_reason(mid, texts[at : at + length].decode())
        at += length


def _joined(reader: CheckpointReader, columns: Iterable[list[int]]) -> "array[int]":
    numbers = array("Q")
    for column in columns:
        numbers += reader.column(column)
    return numbers


def _count(store: Store, places: "array[int]", sizes: "array[int]") -> None:
    """Counts messages as live bytes, 1024 at a time if these are in one segment."""
    for at in range(0, len(places), 1024):
        page, page_sizes = places[at : at + 1024], sizes[at : at + 1024]
        if segment_of(min(page)) == segment_of(max(page)):
            store.usage.add(page[0], sum(page_sizes) + len(page) * record_size(0))
        else:
            for place, size in zip(page, page_sizes, strict=True):
                store.usage.add(place, record_size(size))


def _discount_shared(queues: Mapping[int, QueueState], store: Store) -> None:
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


def _discount_moved(place: int, owners: Sequence[Owner], store: Store) -> None:
    """Makes a payload count once that several families have, or a queue without a family under several ids: a message
    was copied and then moved, or it moved while the checkpoint was written."""
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
    reader: CheckpointReader, queue: QueueState, name: str, written: dict[str, Any], store: Store
) -> Producer:
    producer = Producer(written["last"], written["place"])
    for batch, columns in written["staged"]:
        flat = _joined(reader, columns)
        part = StagedPart(flat[0::3], flat[1::3], flat[2::3])
        producer.staged[batch[0], batch[1], batch[2]] = part
        for place, size in part.values():
            store.usage.add(place, record_size(size))
    for place, batch, first, parts in written["publications"]:
        record = Published(queue.number, batch, first, name, [(part[0], part[1], part[2]) for part in parts])
        producer.publications[batch] = Publication(place, record)
    return producer
