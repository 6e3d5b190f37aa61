"""Writes a checkpoint: the index of a log in one file, so that a start need not read all segments.

The queues change while a checkpoint is written. So parts of the file are newer than the checkpoint's position, at which
a start begins to apply records. For each piece of messages, the file says which records it contains; applying other
records twice does no harm.

The file: 16 bytes of magic, columns of 64-bit numbers, a JSON text with the columns' offsets, the length of the text in
8 bytes, and the CRC-32 of everything before the length in 4 bytes. `index_reading` reads it.
"""

import json
import os
import struct
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain, islice
from time import perf_counter
from typing import Any, TypeVar
from zlib import crc32

from ...disk import Disk
from ...index.message_index import Index
from ...names import MAX_MID
from ..log.attributes import Attributes
from ..log.log import Log
from ..log.places import Position, place_of
from ..queues.state import QueueState
from ..queues.store import PayloadStore

NAME = "checkpoint"
MAGIC = b"qs-checkpoint 8\n"
END = struct.Struct("<QI")
_AHEAD = 1 << 20
"""Bytes after which the kernel is told to write: if all were written at the end, commits of requests would wait."""


class BadCheckpointError(Exception):
    """The checkpoint cannot be used. The text says why."""


class CheckpointWriter:
    """Writes the file of a checkpoint piece by piece.

    Ensures that the file gets its name only when it is complete and durable. Until then, and after any error, the
    previous checkpoint stays. Assumes that the log is durable up to what the file says: `Snapshot` syncs it first."""

    def __init__(self, directory: str, disk: Disk) -> None:
        """Begins a temporary file in the log's directory. OSError."""
        self._directory = directory
        self._disk = disk
        self._path = f"{directory}/{NAME}.tmp"
        self._fd = disk.open_file(self._path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        self._at = 0
        self._begun = 0  # bytes that the kernel has been told to write
        self._checksum = 0
        try:
            self._write(MAGIC)
        except OSError:
            self.give_up()
            raise

    def _write(self, data: bytes) -> None:
        self._disk.write(self._fd, data)
        self._checksum = crc32(data, self._checksum)
        self._at += len(data)
        if self._at - self._begun >= _AHEAD:
            self._disk.begin_writing(self._fd)
            # A little at a time: all at the end would fill the queue of the disk, and commits wait behind it.
            self._begun = self._at

    def column(self, numbers: "array[int]") -> list[int]:
        """Writes numbers. Returns [byte in the file, count] for `CheckpointReader.column`. OSError."""
        at = self._at
        self._write(numbers.tobytes())
        return [at, len(numbers)]

    def end(self, content: dict[str, Any]) -> None:
        """Writes the JSON text. OSError."""
        text = json.dumps(content, separators=(",", ":")).encode()
        self._write(text)
        self._disk.write(self._fd, END.pack(len(text), self._checksum))

    def publish(self) -> None:
        """Gives the file its name, durably. The caller has made all changes in the file durable in the log. Takes long;
        may run in any thread. OSError."""
        self._disk.fsync(self._fd)
        self._close()
        self._disk.rename(self._path, f"{self._directory}/{NAME}")
        self._disk.sync_directory(self._directory)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def give_up(self) -> None:
        """Removes the temporary file. The previous checkpoint stays."""
        self._close()
        try:
            self._disk.unlink(self._path)
        except OSError:
            return  # the next checkpoint overwrites it


Q = TypeVar("Q", bound=QueueState)
Text = TypeVar("Text")
KEY = struct.Struct("<QQ")

SLICE = 0.002
"""Approximate seconds of a slice: requests wait for it."""
_PAGES = 1
"""Index chunks, of some 1,000 messages each, written at a time."""
_AT_A_TIME = 1024
"""Entries of any other kind written at a time."""
_TEXTS = 256
"""Reasons, and attributes of messages, written at a time: at most 256 KiB."""


class Snapshot:
    """Writes a checkpoint: the index of the log, in slices, while requests run.

    Ensures:
    1. A start with the checkpoint and the records after its position finds the same as a start that reads all segments.
    2. A slice takes some milliseconds, however many messages there are.
    3. A failure leaves the previous checkpoint, and costs nothing but the time.

    Assumes that the log was written to since the start, as the position of the next frame is part of a checkpoint, and
    that queues change only between two slices. Never changes a queue."""

    def __init__(self, store: PayloadStore, queues: Iterable[QueueState]) -> None:
        """Begins a checkpoint of a log that was written to since the start. queues: all queues of the log. OSError."""
        self._log = store.log
        self._writer = CheckpointWriter(store.log.directory, store.log.disk)
        self._work = _write_queues(self._writer, store.log.position, list(queues), store)
        self._sync: Callable[[], None] | None = None

    def step(self) -> bool:
        """Writes a slice. Returns True when everything is written. OSError: the previous checkpoint stays."""
        until = perf_counter() + SLICE
        try:
            for _ in self._work:
                if perf_counter() >= until:
                    return False
        except BaseException:
            self._writer.give_up()
            raise
        # Made here, in the log's thread; it is called in the other one.
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
    writer: CheckpointWriter, position: Position, queues: Iterable[QueueState], store: PayloadStore
) -> Iterator[None]:
    """Writes the queues piece by piece, while they change; yields between pieces. Claims and batches of a queue come
    before its messages. A start applies to a piece of messages only the records after the end that the log had when the
    piece was written. OSError."""
    log = store.log
    content: dict[str, Any] = {
        "position": list(position),
        "numbers": store.last_number,
        # By which a start knows that the checkpoint and the segments are of one journal.
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
            writer, ((*KEY.unpack(key), *about) for page in queue.keys.pages() for key, *about in page)
        )
        sources: dict[tuple[str, str], int] = {}
        entry["origins"] = yield from _write_parts(writer, _origins(queue, sources))  # after the messages
        entry["sources"] = list(sources)
        # After the messages, as these are pieces of their own: what changes meanwhile has a record.
        reasons, attributes = queue.reasons, queue.attributes
        entry["reasons"] = yield from _write_texts(writer, reasons, str.encode)
        entry["attributes"] = yield from _write_texts(writer, attributes, Attributes.pack)
        entry["taken"] = [[token, place] for token, place in queue.taken.items()]
        entry["last"] = queue.last_mid
        yield
    content["families"] = _families(store)
    content["owners"] = yield from _write_parts(writer, _owners(store))
    writer.end(content)


def _owners(store: PayloadStore) -> Iterator[tuple[int, int, int]]:
    """Yields (place, queue number, id) for each owner of a payload whose message has moved. Owners may change
    meanwhile."""
    for segment in list(store.moved):
        for place, owners in list(store.moved.get(segment, {}).items()):
            for number, mid in owners:
                yield place, number, mid


def _families(store: PayloadStore) -> list[list[int]]:
    """Returns the queue numbers of each family, including removed queues."""
    families: dict[int, list[int]] = {}
    for number, family in store.families.items():
        families.setdefault(id(family), []).append(number)
    return [sorted(numbers) for numbers in families.values()]


def _write_messages(writer: CheckpointWriter, queue: QueueState, log: Log) -> Generator[None, None, list[list[Any]]]:
    """Writes the messages of a queue. Returns entries: [last id, place of the next record at that time, columns]. The
    columns: ids, sizes, places, (id, end of the window) of hidden messages, ids of delayed ones, (id, receives) of
    received ones. The last entry is for greater ids, of which there are none, and has no columns."""
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
        # Each page has its own end of the log: the records after it are applied to these messages, earlier ones are
        # in it.
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
    """Yields a row for each dead letter. Dead letters may change meanwhile. sources: filled with (queue, reason) and
    the number that stands for both in the rows."""
    for mid in list(table.origins):
        origin = table.origins.get(mid)
        if origin is not None:
            source = sources.setdefault((origin.qid, origin.reason), len(sources))
            yield mid, origin.mid, origin.receives, origin.at, origin.pushed_at, source


def _write_texts(
    writer: CheckpointWriter, texts_of: Mapping[int, Text], pack: Callable[[Text], bytes]
) -> Generator[None, None, list[list[list[int]]]]:
    """Writes what some messages have, as bytes. It may change meanwhile. texts_of: by id. Returns pairs of columns:
    (id, number of bytes), and the bytes one after the other, filled up with zeros."""
    columns: list[list[list[int]]] = []
    mids = iter(list(texts_of))
    while some := list(islice(mids, _TEXTS)):
        page = [(mid, pack(texts_of[mid])) for mid in some if mid in texts_of]
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
            texts = yield from _write_texts(writer, part.attributes, Attributes.pack)
            staged.append([list(part_name), columns, texts])
        yield
    return written
