"""Repairs a damaged journal so that a server starts with it: keeps all readable records, and sets the old files aside.

Every record with a valid checksum is kept, even from a damaged frame, as each is true by itself. A message whose DELETE
is lost comes back, and only a part of a pushed list may remain: better twice or in part than not at all.

A crash between any two steps loses nothing, and the command can be run again:

1. A directory `damaged-TIME` gets a link to every segment, and the messages whose queue is unknown. It gets its name
   once it is synced.
2. All kept records are written to new segments, which call all others obsolete. Their numbers leave one out after the
   last old segment. As `lock` names that one, a start and another repair take the new segments for foreign ones.
3. `lock` gets the number of the last new segment: from then on the new segments are the journal.
4. The old segments and the checkpoint are unlinked.

The places of records change: a record that names the place of a payload gets the new one, or the payload itself if the
record in between is lost that says whose it is. The queues' directories are not touched. Each step reads the old
segments again, so memory holds no more than for a check, and the places of payloads that others name.
"""

import os
import shutil
import time
from dataclasses import replace
from typing import NamedTuple

from ...disk import Disk
from ...index.midset import MidSet
from ...names import message_name
from ..log import pool, records
from ..log.frames import BLOCK, FRAME_HEAD, Header, new_salt, pack_frame_head, pack_header, padded, seed
from ..log.lock import take_lock, write_last
from ..log.opening import numbers_in
from ..log.places import place_of, segment_name, segment_of
from ..log.records import HEAD, Record
from ..log.segment import joined
from .audit import verify
from .damage import Examined, Placed, add_all, examine, messages_in

_ASIDE = "damaged-"
_UNFINISHED = ".tmp"
_FRAME = 64 << 10
"""Bytes of records in a new frame. Frames need not be those of the old segments, as all are durable before any counts,
and many small records share a block then. Not more, as damage in the last frame of a log looks torn, and is cut off."""


class Repaired(NamedTuple):
    """The result of a repair. found: the journal before; aside: the directory with the old files; segments: the paths
    of the new segments; kept: number of their messages by queue; records: number of their records; unplaced: number of
    messages whose queue's name is lost, which are files in `aside`; lost: number of messages that shared or had moved
    with a payload that is lost."""

    found: Examined
    aside: str
    segments: list[str]
    kept: dict[str, int]
    records: int
    unplaced: int
    lost: int


def repair(directory: str, disk: Disk) -> Repaired | None:
    """Repairs the journal in a directory. Returns None if no segment needs repair; removes a damaged checkpoint.
    InUseError while a server uses the journal, JournalFormatError. OSError: no record is lost, and repair can be called
    again."""
    lock = take_lock(directory, disk)
    try:
        for name in disk.directories_in(directory):
            if name.startswith(_ASIDE) and name.endswith(_UNFINISHED):
                shutil.rmtree(f"{directory}/{name}")  # of an interrupted run
        found = examine(directory, disk)
        if found.refusal is not None:
            return _repair(directory, found, lock, disk)
        if found.checkpoint is not None and found.checkpoint.fault is not None:
            disk.unlink(found.checkpoint.path)
        return None
    finally:
        disk.close(lock)


def _repair(directory: str, found: Examined, lock: int, disk: Disk) -> Repaired:
    aside, unplaced = _set_aside(directory, found, disk)
    for part in found.parts:
        if part.foreign:
            disk.unlink(part.path)  # their numbers may be those of the new segments
    write_last(lock, found.last, disk)
    kept = _write_segments(directory, found, disk)
    numbers = kept.segments.numbers
    disk.sync_directory(directory)
    for last in (numbers[-1] - 1, numbers[-1]):  # both places of `lock`: one number alone may be lost
        write_last(lock, last, disk)
    for old in numbers_in(directory, disk):
        if old not in numbers:
            disk.unlink(f"{directory}/{segment_name(old)}")
    if found.checkpoint is not None:
        disk.unlink(found.checkpoint.path)
    disk.sync_directory(directory)
    verify(directory, disk)
    segments = [f"{directory}/{segment_name(number)}" for number in numbers]
    messages = {qid: len(mids) for qid, mids in kept.messages.items()}
    return Repaired(found, aside, segments, messages, kept.segments.records, unplaced, len(kept.lost))


# -- setting aside --------------------------------------------------------------------------------------------------


def _set_aside(directory: str, found: Examined, disk: Disk) -> tuple[str, int]:
    """Links every segment file into a new directory, and writes the messages whose queue's name is lost there, durably.
    Returns its path, and how many messages these are."""
    aside = f"{directory}/{_ASIDE}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    while os.path.lexists(aside):
        aside += "-"
    making = aside + _UNFINISHED
    disk.mkdir(making)
    for number in numbers_in(directory, disk):
        _link(f"{directory}/{segment_name(number)}", f"{making}/{segment_name(number)}", disk)
    unplaced = _write_unplaced(making, found, disk)
    disk.sync_file_system(directory)
    disk.rename(making, aside)
    disk.sync_directory(directory)
    return aside, unplaced


def _link(path: str, new: str, disk: Disk) -> None:
    try:
        disk.link(path, new)
    except OSError:  # the file system has no links
        shutil.copyfile(path, new)


def _write_unplaced(making: str, found: Examined, disk: Disk) -> int:
    """Writes the messages whose queue's name is lost to files, each id of a queue once, as compaction may have copied
    it. Returns how many."""
    written: dict[int, MidSet] = {}
    for placed in found.placed():
        record = placed.record
        if placed.qid is not None or not isinstance(record, records.OfMessage):
            continue
        mids = written.setdefault(placed.number, MidSet())
        if record.mid not in mids and messages_in(record):
            payload = _payload_of(found, record)
            if payload is not None:
                mids.add(record.mid)
                folder = f"{making}/queue-number-{placed.number}"
                disk.make_directories(folder, sync=False)
                disk.write_file(f"{folder}/{message_name(record.mid, 0)}", payload, sync=False)
    return sum(map(len, written.values()))


def _payload_of(found: Examined, record: Record) -> bytes | None:
    """Returns the payload of a record that has one, or names its place. None if that is lost."""
    if not isinstance(record, records.Shared | records.Transfer):
        return getattr(record, "payload", None)
    payload = found.payload(record.place)
    return payload if payload is not None and len(payload) == record.size else None


# -- what is kept ---------------------------------------------------------------------------------------------------


def _write_segments(directory: str, found: Examined, disk: Disk) -> "_Keeping":
    """Writes all readable records to new segments, durably."""
    sequence = max([1, *(part.next or 1 for part in found.parts)])
    segments = _Segments(directory, found.last + 2, sequence, disk)
    kept = _Keeping(found, segments)
    try:
        for placed in found.placed():
            if placed.qid is not None:
                kept.keep(placed, placed.qid)
        segments.end()
    finally:
        segments.close()
    return kept


class _Keeping:
    """Copies records to new segments, with new numbers of queues and new places of payloads."""

    def __init__(self, found: Examined, segments: "_Segments") -> None:
        self._found = found
        self.segments = segments
        named = (each.record for each in found.placed() if isinstance(each.record, records.Shared | records.Transfer))
        self._named = {record.place for record in named}
        """The old places of payloads that other records name."""
        self._places: dict[tuple[int, int, int | None], int] = {}
        """New places of these payloads, by old place, and queue and id of a message that has the payload; None for the
        id of a staged one."""
        self.messages: dict[str, MidSet] = {}
        """The messages that are kept, by queue."""
        self.lost: set[tuple[str, int]] = set()
        """The messages whose payload is lost, by queue and id."""

    def keep(self, placed: Placed, qid: str) -> None:
        """Copies a record. qid: its queue's name. OSError, PlaceError."""
        record = replace(placed.record, number=placed.number)
        if isinstance(record, records.Shared | records.Transfer):
            self._keep_without_payload(placed, record, qid)
            return
        place = self._add(record, qid)
        if record.KIND in records.WITH_PAYLOAD and placed.place in self._named:
            self._places[placed.place, record.number, getattr(record, "mid", None)] = place

    def _keep_without_payload(self, placed: Placed, record: records.Shared | records.Transfer, qid: str) -> None:
        """Copies a record that names the place of its payload. A start finds the payload there only if records say, one
        after the other, how the message came to have it: if one of them is lost, the message gets its own."""
        found = self._found
        source = found.number_of(placed.part, record.source)
        before = record.mid if isinstance(record, records.Shared) else record.replaced
        name = found.names.get((placed.part.life, record.source))
        place = self._places.get((record.place, source, before), self._places.get((record.place, source, None)))
        if place is not None:
            self._add(replace(record, place=place, source=source), qid)
        elif (payload := _payload_of(found, record)) is not None:
            if isinstance(record, records.Transfer) and name is not None:
                self._add(records.Delete(source, before), name)
            place = self._add(_with_payload(record, payload), qid)
        elif segment_of(record.place) >= found.oldest:  # else it was copied since, or is gone
            if isinstance(record, records.Transfer):
                self.lost.discard((name or "", before))
            self.lost.add((qid, record.mid))
        if place is not None:
            self._places[record.place, record.number, record.mid] = place

    def _add(self, record: Record, qid: str) -> int:
        add_all(self.messages.setdefault(qid, MidSet()), messages_in(record))
        if self.lost:
            self._note_end(record, qid)
        return self.segments.add(record, qid)

    def _note_end(self, record: Record, qid: str) -> None:
        """Takes messages from the lost ones that are there after all, or gone."""
        mids = messages_in(record)
        if isinstance(record, records.Remove):
            self.lost = {each for each in self.lost if each[0] != qid}
        elif isinstance(record, records.Delete):
            mids = (record.mid,)
        elif isinstance(record, records.Retired) or type(record) is records.Acked:
            mids = record.mids
        self.lost.difference_update((qid, mid) for mid in mids)


def _with_payload(record: records.Shared | records.Transfer, payload: bytes) -> Record:
    """Returns what says the same of a message as a record, and has the payload."""
    if isinstance(record, records.Shared):
        return records.Moved(record.number, record.mid, *record.state, payload)
    if record.origin is None:
        return records.Moved(record.number, record.mid, 0, 0, False, payload)
    return records.Letter(record.number, record.mid, 0, 0, False, record.origin, payload)


# -- the new segments -----------------------------------------------------------------------------------------------


class _Segments:
    """Writes records to new segments of ordinary size.

    Ensures:
    1. All segments are durable when `end` returns, except for their names. Until then, whoever uses this sees to it
       that nobody takes them for the log's.
    2. Each segment begins with the names of the queues that exist by then, and calls all segments before the first new
       one obsolete.
    3. A segment has at most `LARGEST_SEGMENT` bytes, unless one record needs more."""

    def __init__(self, directory: str, number: int, sequence: int, disk: Disk) -> None:
        """directory: of the log; number, sequence: of the first segment and the first frame to write."""
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
        """How many records are written."""
        self._begin_segment()

    def add(self, record: Record, qid: str) -> int:
        """Adds a record. qid: its queue's name. Returns its place. OSError, PlaceError."""
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
        """Begins a new frame or segment if records of these bytes do not fit into the last one."""
        if self._bodies and self._length + size > _FRAME:
            self._write_frame()
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
        """Writes a frame, also without records: a segment begins with one."""
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
        """Closes the file, also after an error."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)
