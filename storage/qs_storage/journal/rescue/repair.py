"""Repairs a damaged journal so that a server starts with it: keeps all readable records, and sets the old files aside.

`RecordCopier` says what is kept, and where. A crash between any two steps loses nothing, and the command can be run
again:

1. A directory `damaged-TIME` gets a link to every segment, and its name once it is synced.
2. All kept records are written to new segments, which call all others obsolete. The new numbers leave one number out
   after the last old segment. Because of this gap, a start and another repair take the new segments for foreign ones
   while `lock` still has the old number. Messages whose queue is unknown become files in `damaged-TIME`.
3. `lock` gets the number of the last new segment: from then on the new segments are the journal.
4. The old segments and the checkpoint are unlinked.

The queues' directories are not touched.
"""

import gc
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ...disk import Disk
from ...engine import wall_clock
from ...index.midmap import MidMap
from ...names import message_name
from ..log import pool, records
from ..log.attributes import Attributes, split_content
from ..log.frames import BLOCK, FRAME_HEAD, Header, new_salt, pack_frame_head, pack_header, padded, seed
from ..log.lock import take_lock, write_last
from ..log.opening import numbers_in
from ..log.places import place_of, segment_name, segment_of
from ..log.records import HEAD, Record
from ..log.segments import joined
from ..queues.queue import LogQueue
from ..queues.state import Replay
from ..queues.store import PayloadStore
from .audit import unopened, verify
from .damage import ExaminedJournal, PlacedRecord, examine

_FRAME = 64 << 10
"""Bytes of records in a new frame. Frames need not be those of the old segments, as all are durable before any counts,
and many small records share a block then. Not more, as damage in the last frame of a log looks torn, and is cut off."""


class NewSegments:
    """Writes records to new segments of ordinary size, as full as those of a server.

    Ensures:
    1. All segments are durable when `end` returns, except for their names. Until the names are durable too, the caller
       keeps others from taking the new segments for the log's.
    2. Each segment begins with the names of the queues that exist by then, and calls all segments before the first new
       one obsolete.
    3. A segment has at most `LARGEST_SEGMENT` bytes, unless one record needs more."""

    def __init__(self, directory: str, number: int, sequence: int, disk: Disk) -> None:
        """directory: the log's; number, sequence: the first segment and the first frame to write."""
        self._directory = directory
        self._disk = disk
        self._oldest = number
        self._first = sequence  # of the segment
        self._salt = new_salt(b"")
        self._names: dict[int, str] = {}
        self._bodies: list[bytes] = []  # of the frame
        self._length = 0
        self.numbers: list[int] = []
        """The segments that are written, or being written."""
        self.records = 0
        """The number of written records."""
        self._begin_segment()

    def add(self, record: Record, qid: str) -> int:
        """Adds a record. qid: the name of its queue. Returns the record's place. OSError, PlaceError."""
        number = record.number
        bodies = [records.pack(record)]
        if number not in self._names and not isinstance(record, records.Queue):
            bodies.insert(0, records.Queue(number, -1, qid).write())
        if isinstance(record, records.Remove):
            self._names.pop(number, None)  # a queue of the same name may come, with the same number
        else:
            self._names[number] = qid
        self._make_room(sum(HEAD.size + len(body) for body in bodies))
        for body in bodies:
            start = self._at + FRAME_HEAD + self._length
            self._bodies.append(body)
            self._length += HEAD.size + len(body)
        return place_of(self.numbers[-1], start)

    def _make_room(self, size: int) -> None:
        """Begins a new frame or segment if a record of `size` bytes does not fit into the last one."""
        if self._bodies and self._length + size > _FRAME:
            self._write_frame()
        # A record that is larger than a segment should be gets one of its own, and not an empty one before it.
        is_empty = not self._bodies and self._sequence == self._first + 1  # but for the names of queues
        if self._at + padded(FRAME_HEAD + self._length + size) > pool.LARGEST_SEGMENT and not is_empty:
            self.end()
            self._begin_segment()

    def _begin_segment(self) -> None:
        self.numbers.append(self._oldest + len(self.numbers))
        self._salt = new_salt(self._salt)
        self._at, self._sequence = BLOCK, self._first
        path = f"{self._directory}/{segment_name(self.numbers[-1])}"
        self._fd = self._disk.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._bodies = [records.Queue(number, -1, qid).write() for number, qid in self._names.items()]
        self._length = sum(HEAD.size + len(body) for body in self._bodies)
        self._write_frame()

    def _write_frame(self) -> None:
        """Writes a frame, even without records, as a segment begins with a frame."""
        begin = seed(self._salt)
        parts, length = joined(self._bodies, begin, self._at + FRAME_HEAD), self._length
        head = pack_frame_head(begin, self._sequence, self._sequence - 1, self._oldest, length, len(self._bodies))
        end = self._at + padded(FRAME_HEAD + length)
        place_of(self.numbers[-1], end)  # raises PlaceError
        self._disk.pwrite(self._fd, b"".join((head, *parts)).ljust(end - self._at, b"\0"), self._at)
        self.records += len(self._bodies)
        self._at, self._sequence = end, self._sequence + 1
        self._bodies, self._length = [], 0

    def end(self) -> None:
        """Ends the last segment. OSError."""
        if self._bodies:
            self._write_frame()
        header = Header(self.numbers[-1], self._at, self._first, self._salt)
        self._disk.pwrite(self._fd, pack_header(header), 0)
        self._disk.fsync(self._fd)
        self.close()
        self._first = self._sequence

    def close(self) -> None:
        """Closes the file of the last segment, also after an error."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)


_UNNAMED = ""
"""The name in memory of a queue whose name is lost."""


class Counts(NamedTuple):
    """Counts the messages of a repair. messages: those in the new segments, by queue; unplaced: the number written to
    files; lost: the number without a payload."""

    messages: dict[str, int]
    unplaced: int
    lost: int


class RecordCopier:
    """Copies the readable records of a journal to new segments, each with the payload of its message, with new numbers
    of queues and new places of payloads.

    Every record with a valid checksum is kept, even from a damaged frame, because each record is true by itself. The
    content of a lost record is unknown. Then a message is rather kept twice, or a list in part, than lost:

    1. A message whose DELETE is lost comes back. A message whose TRANSFER is lost comes back in its former queue. Of a
       list that was pushed together, a part may remain.
    2. A SHARED or TRANSFER names the place of its payload. If the payload cannot be read there, the message gets the
       newest readable copy of the payload, which is in a segment that is not removed yet. A payload never changes.
    3. If no copy can be read, the message is lost, and counted. Its TRANSFER is then kept as the DELETE of the former
       message, which is known to be gone.
    4. A message in a queue whose name is lost becomes a file. It is in no other queue: a TRANSFER to or from such a
       queue takes the message along.

    Replays each copied record, as a start does. So the copier knows at each record which messages there are, and where
    their payloads are: in the new segments, or still in the old ones if the queue's name or the payload is lost.

    Assumes that records come in the order in which they were written. Never changes an old segment."""

    def __init__(
        self, found: ExaminedJournal, segments: NewSegments, store: PayloadStore, make: Callable[[str], LogQueue]
    ) -> None:
        """store: the empty store of the log that the new segments will be; make: makes a queue of that store from a
        name."""
        self._found = found
        self._segments = segments
        self._store = store
        self._make_queue = make
        self._replay = Replay(self._make, wall_clock())
        self._before = MidMap()
        """The old place of each payload in the new segments, by its new place."""

    def _make(self, qid: str, number: int) -> LogQueue:
        queue = self._make_queue(qid)
        queue.begin(number)
        return queue

    def keep(self, placed: PlacedRecord) -> None:
        """Copies a record. OSError, PlaceError."""
        # Numbers of queues begin again with each server process; the new segments have one for each queue.
        record = replace(placed.record, number=placed.number)
        if isinstance(record, records.Shared | records.Transfer):
            self._keep_without_payload(placed, record)
        else:
            self._add(record, placed.qid, placed.place)

    def _keep_without_payload(self, placed: PlacedRecord, record: records.Shared | records.Transfer) -> None:
        """Copies a record that names the place of its payload. The copy names the payload's place in the new segments
        if the message that was copied or moved has the payload there. Otherwise the copy contains the payload."""
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
        """Returns the place of a message's payload, None if the queue has no such message of this size."""
        queue = self._replay.queues.get(number)
        return None if queue is None or queue.index.size(mid) != size else queue.places.get(mid)

    def _newest(self, record: records.Shared | records.Transfer, copied: int | None, known: int | None) -> int | None:
        """Returns a place where a record's payload can be read: the place that the record names, if possible, or else
        the message's last one. None if the payload cannot be read. copied: the old place of the payload that the former
        message has in the new segments, None without one; known: the former message's place as replayed."""
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
        its payload in the old segments, if the record has a payload."""
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
        """Writes the messages of queues whose names are lost to files in a directory, durably. Returns the counts of
        kept and lost messages. OSError."""
        messages: dict[str, int] = {}
        unplaced = lost = 0
        for number, queue in self._replay.queues.items():
            folder = f"{aside}/queue-number-{number}"
            for mids, places in queue.places.pages(-1):
                for mid, place in zip(mids, places, strict=True):
                    # New segments have greater numbers than all old ones.
                    if segment_of(place) > self._found.last:
                        messages[queue.qid] = messages.get(queue.qid, 0) + 1
                    elif queue.qid != _UNNAMED or (payload := self._found.payload(place)) is None:
                        lost += 1
                    else:
                        _, payload = split_content(payload, queue.attributes.get(mid, Attributes()))
                        disk.make_directories(folder, sync=False)
                        disk.write_file(f"{folder}/{message_name(mid, 0)}", payload, sync=False)
                        unplaced += 1
        if unplaced:
            disk.sync_file_system(aside)
        return Counts(messages, unplaced, lost)


def _with_payload(record: records.Shared | records.Transfer, payload: bytes) -> Record:
    """Returns a record that says the same of a message as the given one, but contains the payload."""
    if isinstance(record, records.Shared):
        return records.Moved(record.number, record.mid, *record.state, payload, record.attributes)
    if record.origin is None:
        return records.Moved(record.number, record.mid, 0, 0, False, payload, record.attributes)
    return records.Letter(record.number, record.mid, 0, 0, False, record.origin, payload, record.attributes)


_ASIDE = "damaged-"
_UNFINISHED = ".tmp"


class Repaired(NamedTuple):
    """The result of a repair. found: the journal before the repair; aside: the directory with the old files; segments:
    the paths of the new segments; records: the number of their records; counts: the numbers of messages."""

    found: ExaminedJournal
    aside: str
    segments: list[str]
    records: int
    counts: Counts


def repair(directory: str, disk: Disk) -> Repaired | None:
    """Repairs the journal in a directory. Removes a damaged checkpoint. Returns None if no segment needs repair.
    InUseError while a server uses the journal, JournalFormatError. OSError: no record is lost, and `repair` can be
    called again."""
    lock = take_lock(directory, disk)
    try:
        for name in disk.directories_in(directory):
            if name.startswith(_ASIDE) and name.endswith(_UNFINISHED):
                # Only links and copies are in it: what they were made from is still there.
                shutil.rmtree(f"{directory}/{name}")  # of an interrupted run
        # With the lock held: a server, or another repair, would change what is examined.
        found = examine(directory, disk)
        if found.refusal is not None:
            return _repair(directory, found.with_leftovers(), lock, disk)
        if found.checkpoint is not None and found.checkpoint.fault is not None:
            disk.unlink(found.checkpoint.path)
        return None
    finally:
        disk.close(lock)


def _repair(directory: str, found: ExaminedJournal, lock: int, disk: Disk) -> Repaired:
    aside = _set_aside(directory, disk)
    for part in found.parts:
        if part.foreign:
            disk.unlink(part.path)  # their numbers may be those of the new segments
    # The new segments have greater numbers than one after this: until the last step, a start takes them for foreign
    # ones and is refused.
    write_last(lock, found.last, disk)
    segments, counts = _keep(directory, found, aside, disk)
    disk.sync_directory(directory)
    for last in (segments.numbers[-1] - 1, segments.numbers[-1]):  # both numbers in `lock`: one alone may be lost
        write_last(lock, last, disk)
    # After the new ones count: until here, the old ones are all there is.
    for old in numbers_in(directory, disk):
        if old not in segments.numbers:
            disk.unlink(f"{directory}/{segment_name(old)}")
    if found.checkpoint is not None:
        disk.unlink(found.checkpoint.path)
    disk.sync_directory(directory)
    gc.collect()  # what `_keep` had in memory: it has cycles, and the next line needs as much again
    verify(directory, disk)
    paths = [f"{directory}/{segment_name(number)}" for number in segments.numbers]
    return Repaired(found, aside, paths, segments.records, counts)


def _set_aside(directory: str, disk: Disk) -> str:
    """Links every segment file into a new directory, durably. Returns its path."""
    aside = f"{directory}/{_ASIDE}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    while os.path.lexists(aside):
        aside += "-"
    making = aside + _UNFINISHED
    disk.mkdir(making)
    for number in numbers_in(directory, disk):
        _link(f"{directory}/{segment_name(number)}", f"{making}/{segment_name(number)}", disk)
    disk.sync_file_system(directory)
    # Complete now: what has the final name has every segment.
    disk.rename(making, aside)
    disk.sync_directory(directory)
    return aside


def _link(path: str, new: str, disk: Disk) -> None:
    try:
        disk.link(path, new)
    except OSError:  # the file system has no links
        shutil.copyfile(path, new)


def _keep(directory: str, found: ExaminedJournal, aside: str, disk: Disk) -> tuple[NewSegments, Counts]:
    """Writes all kept records to new segments, durably, and messages without a known queue to files in `aside`."""
    # After all numbers that were in use, so that no old frame can be taken for one that follows.
    sequence = max([1, *(part.next or 1 for part in found.parts)])
    segments = NewSegments(directory, found.last + 2, sequence, disk)
    try:
        with unopened(directory, disk) as (store, make):
            kept = RecordCopier(found, segments, store, make)
            for placed in found.placed():
                kept.keep(placed)
            segments.end()
            return segments, kept.end(aside, disk)
    finally:
        segments.close()
