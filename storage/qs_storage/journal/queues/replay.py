"""Applies the records of a log to its queues, in the order of the log.

A record can be applied twice without harm, as a checkpoint may contain some of the records after it.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from ...engine import Origin
from ..log import records
from ..log.absent_record import Absent, Run
from ..log.claim_records import Acked, Claim, Published, Staged, Unclaimed
from ..log.links import Links
from ..log.places import place_of, segment_of
from ..log.records import (
    Checkpoint,
    Delete,
    Key,
    Moved,
    Push,
    Queue,
    Reason,
    Record,
    Remove,
    Shared,
    State,
    Taken,
    Unlinked,
)
from ..log.retired_record import Retired
from ..log.transfer_record import Transfer
from .keys import WINDOW
from .queue_state import QueueState

_OF_MESSAGES = (Push, Moved, Shared, State, Reason, Delete)


Q = TypeVar("Q", bound=QueueState)


class Replay(Generic[Q]):
    """Makes the queues that records name, and applies records to them."""

    def __init__(self, make: Callable[[str, int], Q], links: Links, now: int) -> None:
        """make: makes a queue from its name and its number; links: filled with the links between segments; now:
        microseconds since the Epoch."""
        self.make = make
        self._links = links
        self._keys_since = now - WINDOW
        """Keys of pushes up to then are over. A log may have any number of them, and memory has not."""
        self.queues: dict[int, Q] = {}
        self.last_number = 0
        """The greatest queue number."""
        self.oldest = 0
        """The oldest segment that is needed, according to the records applied so far."""
        self.absent: tuple[Run, ...] = ()
        """The segments removed although older ones are needed, according to the same records."""
        self._run = _Run()

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        """Applies the records of a frame. start: byte of the first record in the segment. BadRecordError."""
        place = place_of(segment, start)
        self._links.segment = segment
        run = self._run
        for body in bodies:
            push = records.plain_push(body)
            if push is not None:
                number, mid, size = push
                if number != run.number or mid <= run.last:
                    self._flush()
                    run.number = number
                run.mids.append(mid)
                run.places.append(place)
                run.sizes.append(size)
                run.last = mid
            else:
                self._flush()
                if body[0] in records.BROAD:
                    self._links.widen()
                self._apply(place, records.parse_one(body))
            place += records.HEAD.size + len(body)
        self._flush()

    def _flush(self) -> None:
        run = self._run
        if run.mids:
            queue = self.queues.get(run.number)
            if queue is not None:
                run.drop_covered(queue.table.is_newer)
                if run.mids:
                    queue.table.restore_run(run.mids, run.places, run.sizes)
            run.clear()

    def _apply(self, place: int, record: Record) -> None:
        if isinstance(record, Checkpoint):
            self.oldest = max(self.oldest, record.oldest)
            return
        if isinstance(record, Absent):
            self.absent = record.runs
            return
        if isinstance(record, Queue):
            self._add_queue(record)
            return
        if isinstance(record, Transfer):
            self._transfer(place, record)
            return
        queue = self.queues.get(record.number)
        if queue is None:
            return
        if isinstance(record, Remove):
            del self.queues[record.number]
            queue.clear()
            return
        if isinstance(record, Push | Key) and record.key is not None and record.at > self._keys_since:
            queue.keys.note(record.key, record.mid, record.at, segment_of(place))
        if isinstance(record, _OF_MESSAGES) and not queue.table.is_newer(record.mid, place):
            queue.table.saw(record.mid)
        else:
            _apply_to(queue, place, record)

    def _transfer(self, place: int, record: Transfer) -> None:
        """Removes the source message and adds the new one. A checkpoint may contain only one of the two changes."""
        source, queue = self.queues.get(record.source), self.queues.get(record.number)
        if source is not None and source.table.is_newer(record.replaced, place):
            source.restore_deletion(record.replaced)
        elif source is not None:
            source.table.saw(record.replaced)
        if queue is None:
            return
        if not queue.table.is_newer(record.mid, place):
            queue.table.saw(record.mid)
            return
        state = (record.receives, record.visible, record.delayed)
        queue.table.restore(record.mid, place, len(record.payload), state)
        if record.origin is not None:
            queue.table.origins[record.mid] = Origin(*record.origin)

    def _add_queue(self, record: Queue) -> None:
        self.last_number = max(self.last_number, record.number)
        queue = self.queues.get(record.number)
        if queue is None:
            queue = self.queues[record.number] = self.make(record.qid, record.number)
        queue.table.last_mid = max(queue.last_mid, record.last_mid)


class _Run:
    """Collects adjacent pushes to one queue with increasing ids, which are applied together."""

    def __init__(self) -> None:
        self.number = -1
        self.clear()

    def clear(self) -> None:
        self.last = -1
        self.mids: list[int] = []
        self.places: list[int] = []
        self.sizes: list[int] = []

    def drop_covered(self, is_newer: Callable[[int, int], bool]) -> None:
        """Drops the messages that a checkpoint already covers."""
        if is_newer(self.mids[0], self.places[0]):
            return
        new = [each for each in zip(self.mids, self.places, self.sizes, strict=True) if is_newer(*each[:2])]
        self.mids, self.places, self.sizes = ([each[at] for each in new] for at in range(3))


def _apply_to(queue: QueueState, place: int, record: Record) -> None:
    table = queue.table
    match record:
        case Push(mid=mid, visible=visible, payload=payload):
            table.restore(mid, place, len(payload), (0, visible, bool(visible)))
        case Moved(mid=mid, receives=receives, visible=visible, delayed=delayed, payload=payload):
            table.restore(mid, place, len(payload), (receives, visible, delayed))
        case Shared():
            queue.restore_shared(record)
        case State(mid=mid, receives=receives, visible=visible, delayed=delayed):
            table.restore_state(mid, (receives, visible, delayed))
        case Reason(mid=mid, receives=receives, visible=visible, delayed=delayed, reason=reason):
            table.restore_state(mid, (receives, visible, delayed))
            table.restore_reason(mid, reason)
        case Delete(mid=mid):
            queue.restore_deletion(mid)
        case Taken(token=token):
            queue.taken[token] = place
        case Unlinked(token=token):
            queue.taken.pop(token, None)
        case _:
            _apply_to_many(queue, place, record)


def _retire(queue: QueueState, place: int, record: Retired) -> None:
    """Removes messages, except those of which the checkpoint is newer."""
    for mid in record.mids:
        if queue.table.is_newer(mid, place):
            queue.restore_deletion(mid)
        else:
            queue.table.saw(mid)


def _apply_to_many(queue: QueueState, place: int, record: Record) -> None:
    match record:
        case Retired():
            _retire(queue, place, record)
        case Claim():
            queue.claims.restore(place, record)
        case Acked() | Unclaimed():
            queue.claims.restore_end(place, record)
        case Staged():
            queue.batches.restore(place, record)
        case Published():
            queue.batches.restore_publication(place, record)
