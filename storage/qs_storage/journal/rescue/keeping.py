"""What a repair keeps: copies the readable records of a journal to new segments, each with the payload of its message.

Every record with a valid checksum is kept, even from a damaged frame, as each is true by itself. What a lost record
said is not known, and then better twice or in part than not at all:

1. A message whose DELETE is lost comes back. So does one in its former queue if the TRANSFER is lost that took it from
   there. Of a list that was pushed together, a part may remain.
2. A SHARED or TRANSFER names the place of its payload. If the payload cannot be read there, the message gets the newest
   one that can be: an older copy that compaction has not given up yet. A payload never changes.
3. If none can be read, the message is lost, and counted. A TRANSFER is kept as the DELETE of its former message even
   then: that the message is gone from there is known.
4. A message in a queue whose name is lost becomes a file. It is in no other queue: a TRANSFER to or from such a queue
   takes the message along.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ...disk import Disk
from ...engine import wall_clock
from ...index.midmap import MidMap
from ...names import message_name
from ..log import records
from ..log.places import segment_of
from ..log.records import Record
from ..queues.queue import LogQueue
from ..queues.replay import Replay
from ..queues.store import Store
from .damage import Examined, Placed
from .writing import NewSegments

_UNNAMED = ""
"""The name in memory of a queue whose name is lost."""


class Counts(NamedTuple):
    """messages: number of the messages in the new segments, by queue; unplaced: of those that were written to files;
    lost: of those without a payload."""

    messages: dict[str, int]
    unplaced: int
    lost: int


class Keeping:
    """Copies records to new segments, with new numbers of queues and new places of payloads.

    Replays what it copies, as a start does. So at each record it knows which messages are there, and where the payload
    of each is: in the new segments, or still in the old ones if the name of the queue is lost, or the payload."""

    def __init__(self, found: Examined, segments: NewSegments, store: Store, make: Callable[[str], LogQueue]) -> None:
        """store: empty, of the log that the new segments will be; make: makes a queue of it from a name."""
        self._found = found
        self._segments = segments
        self._store = store
        self._make_queue = make
        self._replay = Replay(self._make, wall_clock())
        self._before = MidMap()
        """The place in the old segments of each payload in the new ones, by its new place."""

    def _make(self, qid: str, number: int) -> LogQueue:
        queue = self._make_queue(qid)
        queue.begin(number)
        return queue

    def keep(self, placed: Placed) -> None:
        """Copies a record. OSError, PlaceError."""
        record = replace(placed.record, number=placed.number)
        if isinstance(record, records.Shared | records.Transfer):
            self._keep_without_payload(placed, record)
        else:
            self._add(record, placed.qid, placed.place)

    def _keep_without_payload(self, placed: Placed, record: records.Shared | records.Transfer) -> None:
        """Copies a record that names the place of its payload. If records say, one after the other, how the message
        came to have that payload, the new record names the new place: a start follows them. Else it has the payload."""
        found, qid = self._found, placed.qid
        name = found.names.get((placed.part.life, record.source))
        record = replace(record, source=found.number_of(placed.part, record.source))
        former = record.replaced if isinstance(record, records.Transfer) else record.mid
        known = self._place_of(record.source, former, record.size)
        copied = None if known is None else self._before.get(known)
        old = self._newest(record, copied, known)
        if qid is not None and known is not None and copied is not None and old == copied:
            self._add(replace(record, place=known), qid, old)
            return
        if isinstance(record, records.Transfer):
            self._add(records.Delete(record.source, former), name, placed.place)
        if qid is None:
            self._apply(record if old is None else replace(record, place=old), qid, placed.place)
        elif old is not None:
            self._add(_with_payload(record, self._payload(old, record.size) or b""), qid, old)
        else:
            own = self._place_of(record.number, record.mid, record.size)
            if own is None or own not in self._before:  # else it is there already, with a payload
                self._apply(record, qid, placed.place)

    def _place_of(self, number: int, mid: int, size: int) -> int | None:
        """Returns the place of a message's payload, None if no such message of this size is there."""
        queue = self._replay.queues.get(number)
        return None if queue is None or queue.index.size(mid) != size else queue.places.get(mid)

    def _newest(self, record: records.Shared | records.Transfer, copied: int | None, known: int | None) -> int | None:
        """Returns the place in the old segments where a record's payload can be read: the one that the record names, if
        possible, or else the message's last one. None without any. copied: of the payload that is in the new segments;
        known: the message's place as replayed."""
        for place in (record.place, copied, known):
            if place is not None and (place == copied or self._payload(place, record.size) is not None):
                return place
        return None

    def _payload(self, place: int, size: int) -> bytes | None:
        """Returns the payload of this size at a place of the old segments, None if it cannot be read there."""
        payload = self._found.payload(place)
        return payload if payload is not None and len(payload) == size else None

    def _add(self, record: Record, qid: str | None, before: int) -> None:
        """Adds a record to the new segments, if the name of its queue is known, and replays it. before: the place of
        its payload in the old segments, if it has one."""
        place = before if qid is None else self._segments.add(record, qid)
        if qid is not None and record.KIND in records.WITH_PAYLOAD:
            self._before.set(place, before)
        self._apply(record, qid, place)

    def _apply(self, record: Record, qid: str | None, place: int) -> None:
        """Replays a record. place: the record's."""
        if record.number not in self._replay.queues:
            self._replay.add_queue(records.Queue(record.number, -1, qid or _UNNAMED))
        record.replay(self._replay, place)

    def end(self, aside: str, disk: Disk) -> Counts:
        """Writes the messages of queues whose names are lost to files in a directory, durably. Counts what is kept, and
        what is lost. OSError."""
        messages: dict[str, int] = {}
        unplaced = lost = 0
        for number, queue in self._replay.queues.items():
            folder = f"{aside}/queue-number-{number}"
            for mids, places in queue.places.pages(-1):
                for mid, place in zip(mids, places, strict=True):
                    if segment_of(place) > self._found.last:
                        messages[queue.qid] = messages.get(queue.qid, 0) + 1
                    elif queue.qid != _UNNAMED or (payload := self._found.payload(place)) is None:
                        lost += 1
                    else:
                        disk.make_directories(folder, sync=False)
                        disk.write_file(f"{folder}/{message_name(mid, 0)}", payload, sync=False)
                        unplaced += 1
        if unplaced:
            disk.sync_file_system(aside)
        return Counts(messages, unplaced, lost)


def _with_payload(record: records.Shared | records.Transfer, payload: bytes) -> Record:
    """Returns what says the same of a message as a record, and has the payload."""
    if isinstance(record, records.Shared):
        return records.Moved(record.number, record.mid, *record.state, payload)
    if record.origin is None:
        return records.Moved(record.number, record.mid, 0, 0, False, payload)
    return records.Letter(record.number, record.mid, 0, 0, False, record.origin, payload)
