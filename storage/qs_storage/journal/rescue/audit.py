"""Reads a journal as a start does, and every message that a server would then have, without changing anything.

A start checks every frame, but not whether the record at a message's place is that message's: this does.
"""

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

from ...disk import Disk
from ...engine import Durability, Options, wall_clock
from ...shared import Activity, Shared
from ...watch import Watch
from ..index_reading import IndexReader
from ..log.log_interface import RecordLog
from ..log.opening import read_log
from ..log.places import segment_of
from ..log.reader import DamagedRecordError, Reader
from ..log.recovery import JournalDamagedError
from ..log.segment_list import SegmentList
from ..queues.queue_state import QueueState
from ..queues.store import Store


def audit(directory: str, disk: Disk, *, with_checkpoint: bool) -> str | None:
    """Checks that a server would start and find every message at its place. with_checkpoint: False to read all
    segments instead. Returns the file whose end a start would cut off, or None. JournalDamagedError, OSError."""
    segments = SegmentList(directory)
    reader = Reader(segments, disk)
    # Replaying uses no more of a log than this.
    log = cast(RecordLog, SimpleNamespace(segments=segments, unwritten={}, number=0))
    store = Store(log, reader, 0)
    watch = Watch()
    shared = Shared(wall_clock, Durability.NONE, disk, watch, Activity())
    queues: dict[str, QueueState] = {}

    def find(qid: str) -> QueueState:
        if qid not in queues:
            queues[qid] = QueueState(qid, 0, Options(storage="journal"), shared, store)
        return queues[qid]

    try:
        found = IndexReader(directory, disk, store, find, read_log).read(wall_clock(), with_checkpoint=with_checkpoint)
        segments.restore(found.opened.headers, (), found.opened.absent)
        replayed = list({id(queue): queue for queue in found.replay.queues.values()}.values())
        wrong, first = 0, ""
        for queue, mid, place in _messages(replayed):
            try:
                store.payload(queue.number, mid, place)
            except DamagedRecordError as error:
                wrong += 1
                first = first or f"message {mid} of queue {queue.qid!r}: {error.what}"
    finally:
        reader.close()
        watch.close()
    if wrong:
        raise JournalDamagedError(directory, f"{wrong} messages are not at their places: {first}")
    return None if found.opened.torn is None else found.opened.torn.path


def _messages(queues: list[QueueState]) -> Iterator[tuple[QueueState, int, int]]:
    """Yields (queue, id, place) of all messages, in the order of their places, so that each part of a file is read
    once."""
    found: dict[int, tuple[array[int], array[int], array[int]]] = {}
    for number, queue in enumerate(queues):
        for mids, places in queue.table.places.pages(-1):
            for mid, place in zip(mids, places, strict=True):
                if (columns := found.get(segment_of(place))) is None:
                    columns = found[segment_of(place)] = array("Q"), array("Q"), array("Q")
                columns[0].append(place)
                columns[1].append(mid)
                columns[2].append(number)
    for segment in sorted(found):
        for place, mid, number in sorted(zip(*found.pop(segment), strict=True)):
            yield queues[number], mid, place
