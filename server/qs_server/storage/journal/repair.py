"""Repairs a damaged journal so that a server starts with it: keeps all readable records, and sets the old files aside.

Every record with a valid checksum is kept, even from a damaged frame, as each is true by itself. A message whose DELETE
is lost comes back, and only a part of a pushed list may remain: better twice or in part than not at all.

A crash between any two steps loses nothing, and the command can be run again:

1. A directory `damaged-TIME` gets a link to every segment, and the messages whose queue is unknown. It gets its name
   once it is synced.
2. All kept records are written to one new segment, which makes all others obsolete. It gets its name once it is synced:
   from then on it is the journal, until then the old segments are.
3. The old segments and the checkpoint are unlinked.

The places of records change: a message that shares a payload gets the new place, or a payload of its own. The queues'
directories are not touched.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from ..disk import Disk
from ..names import message_name
from . import records
from .claim_records import Staged
from .damage import Examined, Placed, examine, messages_in, verify
from .frames import BLOCK, FRAME_HEAD, Header, new_salt, pack_frame_head, pack_header, padded, seed
from .lock import take_lock, write_last
from .places import place_of, segment_name
from .recovery import numbers_in
from .transfer_record import Transfer

_ASIDE = "damaged-"
_UNFINISHED = ".tmp"


class Repaired(NamedTuple):
    """The result of a repair. found: the journal before; aside: the directory with the old files; segment: the new
    segment's path; kept: number of its messages by queue; records: number of its records; unplaced: number of messages
    whose queue's name is lost, which are files in `aside`."""

    found: Examined
    aside: str
    segment: str
    kept: Counter[str]
    records: int
    unplaced: int


def repair(directory: str, disk: Disk) -> Repaired | None:
    """Repairs the journal in a directory. Returns None if no segment needs repair; removes a damaged checkpoint.
    InUseError while a server uses the journal. OSError: no record is lost, and repair can be called again."""
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
    unplaced = _unplaced(found)
    aside = _set_aside(directory, unplaced, disk)
    for part in found.parts:
        if part.foreign:
            disk.unlink(part.path)  # the new segment's number has to be the greatest
    number = found.last + 1
    new = f"{directory}/next"
    kept, count = _write_segment(new, number, found, disk)
    write_last(lock, found.last, disk)
    segment = f"{directory}/{segment_name(number)}"
    disk.rename(new, segment)
    disk.sync_directory(directory)
    write_last(lock, number, disk)
    for old in numbers_in(directory, disk):
        if old != number:
            disk.unlink(f"{directory}/{segment_name(old)}")
    if found.checkpoint is not None:
        disk.unlink(found.checkpoint.path)
    disk.sync_directory(directory)
    verify(directory, disk)
    return Repaired(found, aside, segment, kept, count, len(unplaced))


# -- setting aside --------------------------------------------------------------------------------------------------


def _unplaced(found: Examined) -> dict[tuple[int, int], bytes]:
    """Returns the payloads of messages whose queue's name is lost, by (queue number, id)."""
    payloads: dict[tuple[int, int], bytes] = {}
    for placed in found.placed():
        record = placed.record
        if placed.qid is None and isinstance(record, (records.Push, records.Moved, Transfer)):
            payloads.setdefault((placed.number, record.mid), record.payload)  # compaction may have copied it
    return payloads


def _set_aside(directory: str, unplaced: dict[tuple[int, int], bytes], disk: Disk) -> str:
    """Links every segment file into a new directory and writes the unplaced messages there, durably. Returns its
    path."""
    aside = f"{directory}/{_ASIDE}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    while os.path.lexists(aside):
        aside += "-"
    making = aside + _UNFINISHED
    disk.mkdir(making)
    for number in numbers_in(directory, disk):
        _link(f"{directory}/{segment_name(number)}", f"{making}/{segment_name(number)}", disk)
    for (number, mid), payload in unplaced.items():
        folder = f"{making}/queue-number-{number}"
        disk.make_directories(folder, sync=False)
        disk.write_file(f"{folder}/{message_name(mid, 0)}", payload, sync=False)
    disk.sync_file_system(directory)
    disk.rename(making, aside)
    disk.sync_directory(directory)
    return aside


def _link(path: str, new: str, disk: Disk) -> None:
    try:
        disk.link(path, new)
    except OSError:  # the file system has no links
        shutil.copyfile(path, new)


# -- the new segment ------------------------------------------------------------------------------------------------


def _write_segment(path: str, number: int, found: Examined, disk: Disk) -> tuple[Counter[str], int]:
    """Writes all readable records to one segment, durably. Returns (number of messages by queue, number of records)."""
    first = max((piece.sequence for part in found.parts for piece in part.pieces), default=0) + 1
    salt = new_salt(b"")
    segment = _NewSegment(number)
    at, sequence, count = BLOCK, first, 0
    with suppress(FileNotFoundError):
        disk.unlink(path)
    fd = disk.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for frame in _frames(found):
            bodies = segment.bodies(found, frame, at + FRAME_HEAD)
            data = _pack_frame(bodies, salt, sequence, at)
            disk.pwrite(fd, data, at)
            at, sequence, count = at + len(data), sequence + 1, count + len(bodies)
        disk.pwrite(fd, pack_header(Header(number, at, first, number, salt)), 0)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    return Counter(qid for qid, _ in segment.messages), count


def _frames(found: Examined) -> Iterator[list[Placed]]:
    """Yields the records of each frame, and at least one frame."""
    frame: list[Placed] = []
    for placed in found.placed():
        if frame and placed.piece is not frame[-1].piece:
            yield frame
            frame = []
        frame.append(placed)
    yield frame


class _NewSegment:
    """Adapts records to the new segment, and keeps account of its contents."""

    def __init__(self, segment: int) -> None:
        self.messages: set[tuple[str, int]] = set()
        self._segment = segment
        self._announced: set[int] = set()
        self._places: dict[int, int] = {}
        self._unplaced: dict[int, bytes] = {}  # by place: payloads of queues whose names are lost

    def bodies(self, found: Examined, frame: list[Placed], start: int) -> list[bytes]:
        """Returns the bodies of a frame's records in the new segment. start: byte of the first record there."""
        bodies: list[bytes] = []
        for placed in frame:
            if placed.qid is None:
                if isinstance(placed.record, (records.Push, records.Moved, Transfer)):
                    self._unplaced[placed.place] = placed.record.payload
                continue
            record = self._adapted(found, placed)
            if record is None:
                continue
            if placed.number not in self._announced and not isinstance(record, records.Queue):
                bodies.append(records.queue(placed.number, -1, placed.qid))
            self._announced.add(placed.number)
            begin = start + sum(records.HEAD.size + len(body) for body in bodies)
            if isinstance(record, (records.Push, records.Moved, Transfer, Staged)):
                self._places[placed.place] = place_of(self._segment, begin)
            bodies.append(records.pack(record))
            self.messages.update((placed.qid, mid) for mid in messages_in(record))
        return bodies

    def _adapted(self, found: Examined, placed: Placed) -> records.OfQueue | None:
        """Returns the record with the numbers and places of the new segment; None if its payload is lost."""
        record = placed.record._replace(number=placed.number)
        if isinstance(record, Transfer) and record.source:
            return record._replace(source=found.number_of(placed.part, record.source))
        if not isinstance(record, records.Shared):
            return record
        if record.place in self._places:
            source = found.number_of(placed.part, record.source)
            return record._replace(place=self._places[record.place], source=source)
        if record.place in self._unplaced:
            return records.Moved(*record[:5], self._unplaced[record.place])
        return None


def _pack_frame(bodies: list[bytes], salt: bytes, sequence: int, start: int) -> bytes:
    begin, length = seed(salt), 0
    parts = []
    for body in bodies:
        place = start + FRAME_HEAD + length
        parts += [records.HEAD.pack(len(body), crc32(body, begin ^ place)), body]
        length += records.HEAD.size + len(body)
    head = pack_frame_head(seed(salt), sequence, sequence - 1, length, len(bodies))
    return b"".join([head, *parts]).ljust(padded(len(head) + length), b"\0")
