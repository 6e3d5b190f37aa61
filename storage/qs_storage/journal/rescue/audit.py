"""Reads a journal as a start does, and every message that a server would then have, without changing anything.

A start checks every frame, but not whether the record at a message's place belongs to that message. `verify` and
`audit` check both.
"""

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...disk import Disk
from ...engine import Durability, Options, wall_clock
from ...shared import Activity, EngineContext
from ...watch import Watch
from ..log.log import Log, Transaction
from ..log.opening import JournalDamagedError, read_log
from ..log.places import segment_of
from ..log.reader import DamagedRecordError, Reader
from ..log.segments import SegmentList
from ..queues.queue import LogQueue
from ..queues.store import PayloadStore
from ..upkeep.checkpoint import NAME
from ..upkeep.index_reading import IndexReader


class _ReadLog(Log):
    """A log that is only read, even while a server writes to it: takes no lock, and makes no directory."""

    def __init__(self, directory: str, disk: Disk) -> None:
        # Not that of `Log`, which makes the directory and takes the lock.
        self.directory = directory
        self.disk = disk
        self.segments = SegmentList(directory)
        self.writer = self.failed = None
        self.number = self.sequence = 0


def verify(directory: str, disk: Disk) -> str | None:
    """Checks, with the checkpoint and without it, that a server would start with the journal and find every message.
    Returns the path of the file whose torn end a start would cut off, None without one. JournalDamagedError,
    JournalFormatError, OSError."""
    torn = audit(directory, disk, with_checkpoint=False)
    if os.path.lexists(f"{directory}/{NAME}"):
        audit(directory, disk, with_checkpoint=True)
    return torn


def audit(directory: str, disk: Disk, *, with_checkpoint: bool) -> str | None:
    """Checks that a server would start and find every message at its place. with_checkpoint: False to read all segments
    instead. Returns the path of the file whose torn end a start would cut off, None without one. JournalDamagedError,
    JournalFormatError, OSError."""
    queues: dict[str, LogQueue] = {}
    with unopened(directory, disk) as (store, make):

        def find(qid: str) -> LogQueue:
            if qid not in queues:
                queues[qid] = make(qid)
            return queues[qid]

        found = IndexReader(directory, disk, store, find, read_log).read(wall_clock(), with_checkpoint=with_checkpoint)
        store.log.segments.restore(found.opened.headers, ())
        wrong, first = 0, ""
        for queue, mid, place in _messages(list(found.replay.queues.values())):
            try:
                store.payload(queue.number, mid, place)
            except DamagedRecordError as error:
                wrong += 1
                first = first or f"message {mid} of queue {queue.qid!r}: {error.what}"
    if wrong:
        raise JournalDamagedError(directory, f"{wrong} messages are not at their places: {first}")
    return None if found.opened.torn is None else found.opened.torn.path


@contextmanager
def unopened(directory: str, disk: Disk) -> Iterator[tuple[PayloadStore, Callable[[str], LogQueue]]]:
    """Yields the empty store of a log that is only read, and a function that makes a queue of that store from a
    name."""
    log = _ReadLog(directory, disk)
    store = PayloadStore(log, Transaction(log), Reader(log.segments, disk), 0)
    watch = Watch()
    context = EngineContext(wall_clock, Durability.NONE, disk, watch, Activity())
    try:
        yield store, lambda qid: LogQueue(None, qid, Options(storage="journal"), context, store)
    finally:
        store.reader.close()
        watch.close()


def _messages(queues: list[LogQueue]) -> Iterator[tuple[LogQueue, int, int]]:
    """Yields (queue, id, place) of all messages, in the order of their places, so that each part of a file is read
    once."""
    found: dict[int, tuple[array[int], array[int], array[int]]] = {}
    for number, queue in enumerate(queues):
        for mids, places in queue.places.pages(-1):
            for mid, place in zip(mids, places, strict=True):
                if (columns := found.get(segment_of(place))) is None:
                    columns = found[segment_of(place)] = array("Q"), array("Q"), array("Q")
                columns[0].append(place)
                columns[1].append(mid)
                columns[2].append(number)
    for segment in sorted(found):
        for place, mid, number in sorted(zip(*found.pop(segment), strict=True)):
            yield queues[number], mid, place
