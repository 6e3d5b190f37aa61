"""What a checkpoint holds of the queues, and how they are made from it again."""

import struct
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, islice
from time import perf_counter
from typing import Any

from ..index.message_index import Index
from ..index.midmap import MidMap
from .batches import Producer, Publication
from .checkpoint import CheckpointReader, CheckpointWriter
from .claim_records import Claim, Published
from .claims import Consumer, Held
from .compaction import SLICE
from .keys import WINDOW
from .log import Log
from .places import Position
from .queue import LogQueue
from .store import Store, record_size
from .table import MessageTable

_KEY = struct.Struct("<QQ")

_PAGES = 4
"""Chunks of messages that are written at a time: some 4,000."""
_AT_A_TIME = 4096
"""Entries of anything else."""


class Snapshot:
    """A checkpoint that is being written."""

    def __init__(self, writer: CheckpointWriter, work: Iterator[None], log: Log) -> None:
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
    """Writes the queues. What changes while they are written is taken as it is at the position, but for which messages
    there are: so everything else is captured before the first pause. numbers: the greatest that a queue was given.
    OSError."""
    log = store.log
    content: dict[str, Any] = {
        "position": list(position),
        "oldest": log.oldest,
        "numbers": numbers,
        "salts": {number: salt.hex() for number, salt in log.salts.items()},
        "families": [sorted(family) for family in {id(family): family for family in store.families.values()}.values()],
    }
    captured = [(queue, _small(queue)) for queue in queues]
    entries = content["queues"] = []
    yield
    for queue, small in captured:
        entry = yield from _write_small(writer, small)
        entries.append(entry)
        yield from _write_messages(writer, queue, entry)
    writer.end(content)


def _write_messages(writer: CheckpointWriter, queue: LogQueue, entry: dict[str, Any]) -> Iterator[None]:
    table = queue.table
    entry["messages"] = []
    after = -1
    while True:
        keys, sizes, places = array("Q"), array("Q"), array("Q")
        for (mids, facts), (_, where) in islice(
            zip(table.index.messages.pages(after), table.places.pages(after), strict=True), _PAGES
        ):
            keys += mids
            sizes += array("Q", map(Index.size_in, facts))
            places += where
        if not keys:
            return
        after = keys[-1]
        entry["messages"].append([writer.column(keys), writer.column(sizes), writer.column(places)])
        yield


def _small(queue: LogQueue) -> dict[str, Any]:
    """Everything of a queue but its messages: columns are arrays still, or what gives their parts. That is copied here,
    a million entries in some milliseconds, and made into numbers later."""
    table = queue.table
    hidden = [(mids[:], expiries[:]) for mids, expiries in table.index.hidden.pages(-1)]
    return {
        "number": table.number,
        "qid": table.qid,
        "last": table.last_mid,
        "hidden": _hidden(hidden, set(table.held)),
        "delayed": _delayed(hidden, table),
        "receives": _parts(table.receives.copy().items()),
        "taken": [[token, place] for token, place in queue.taken.items()],
        "keys": _parts((*_KEY.unpack(key), *about) for key, *about in list(queue.keys.known.values())),
        "consumers": {name: _consumer(found) for name, found in queue.claims.consumers.items()},
        "producers": {name: _producer(found) for name, found in queue.batches.producers.items()},
    }


def _parts(rows: Iterable[Iterable[int]]) -> "Iterator[array[int]]":
    """Rows of numbers, some at a time."""
    rows = iter(rows)
    while some := array("Q", chain.from_iterable(islice(rows, _AT_A_TIME))):
        yield some


def _hidden(pages: "list[tuple[array[int], array[int]]]", held: set[int]) -> "Iterator[array[int]]":
    for mids, expiries in pages:
        yield array(
            "Q",
            [each for mid, expiry in zip(mids, expiries, strict=True) for each in (mid, 0 if mid in held else expiry)],
        )


def _delayed(pages: "list[tuple[array[int], array[int]]]", table: MessageTable) -> "Iterator[array[int]]":
    """Which of them are, by now: of one that is not any more, there is a record."""
    for mids, _ in pages:
        facts = table.index.messages.values_of(mids)
        yield array(
            "Q", [mid for mid, fact in zip(mids, facts, strict=True) if fact is not None and Index.delayed_in(fact)]
        )


def _consumer(found: Consumer) -> dict[str, Any]:
    claims = [
        [seq, held.place, held.record.since, held.record.size, array("Q", held.record.mids), sorted(held.gone)]
        for seq, held in found.claims.items()
    ]
    return {"acked": found.acked, "place": found.place, "claims": claims}


def _producer(found: Producer) -> dict[str, Any]:
    staged = [
        [list(name), array("Q", [each for position, at in part.items() for each in (position, *at)])]
        for name, part in found.staged.items()
    ]
    publications = [
        [each.place, batch, each.record.first, list(each.record.parts)] for batch, each in found.publications.items()
    ]
    return {"last": found.last, "place": found.place, "staged": staged, "publications": publications}


def _write_small(writer: CheckpointWriter, value: Any) -> Generator[None, None, Any]:
    """Writes each column; the same value with where they are in their places."""
    if isinstance(value, array):
        return writer.column(value)
    written: Any = value
    if isinstance(value, dict):
        written = {}
        for key, each in value.items():
            written[key] = yield from _write_small(writer, each)
    elif isinstance(value, Generator):
        written = []
        for part in value:
            written.append(writer.column(part))
            yield
    elif isinstance(value, list) and any(isinstance(each, (array, list, dict)) for each in value):
        written = []
        for each in value:
            written.append((yield from _write_small(writer, each)))
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
    mids, sizes, places = array("Q"), array("Q"), array("Q")
    for columns in entry["messages"]:
        some = [reader.column(where) for where in columns]
        mids, sizes, places = mids + some[0], sizes + some[1], places + some[2]
    flat = _joined(reader, entry["hidden"])
    delayed = set(_joined(reader, entry["delayed"]))
    hidden = {mid: (expiry, mid in delayed) for mid, expiry in zip(flat[::2], flat[1::2], strict=True) if expiry}
    table.index = Index.of(mids, sizes, hidden)
    table.places = MidMap.of(mids, places)
    flat = _joined(reader, entry["receives"])
    for mid, receives in zip(flat[::2], flat[1::2], strict=True):
        if mid in table.index.messages:
            table.receives[mid] = receives
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
        flat = reader.column(where)
        part = {flat[at]: (flat[at + 1], flat[at + 2]) for at in range(0, len(flat), 3)}
        producer.staged[batch[0], batch[1], batch[2]] = part
        for place, size in part.values():
            store.usage.add(place, record_size(size))
    for place, batch, first, parts in found["publications"]:
        record = Published(queue.number, batch, first, name, [(part[0], part[1], part[2]) for part in parts])
        producer.publications[batch] = Publication(place, record)
    return producer
