"""Makes a journal that is damaged one with which a server starts: what can be read is kept, what was there set aside.

Every record that is whole by its own checksum is kept, also one of a frame that is not: each says something that is
true. A message whose DELETE is lost is there again, and of a list that was pushed a part may be: better twice, or in
part, than not at all.

The steps, so that a crash between any two loses nothing, and the command can be given again:

1. A directory `damaged-TIME` gets a link to every segment, and what has no place elsewhere; it is synced, then named.
2. All records that are kept are written to one new segment, which calls all others obsolete. It is synced, then named:
   before that the old segments are the journal, from then on the new one is.
3. The names of the old segments and of the checkpoint are removed.

Places change with that: what shares its payload with another message is told the new one, or gets a payload of its own.
The directories of the queues are not touched: the next start replays the new segment like any other.
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
from .places import place_of
from .recovery import numbers_in, segment_name

_ASIDE = "damaged-"
_UNFINISHED = ".tmp"


class Unplaced(NamedTuple):
    """A message of which only the number of its queue is known."""

    number: int
    mid: int
    payload: bytes


class Repaired(NamedTuple):
    """found: how it was; aside: where that is now; segment: the new one; kept: messages that it holds of each queue;
    records: how many; unplaced: messages that are files in `aside`."""

    found: Examined
    aside: str
    segment: str
    kept: Counter[str]
    records: int
    unplaced: int


def repair(directory: str, disk: Disk) -> Repaired | None:
    """Repairs the journal in a directory; None: there is nothing to repair, but for a checkpoint that is damaged: that
    is removed. InUseError while a server has it, OSError:
    what was there is there still, and a second run begins again."""
    lock = take_lock(directory, disk)
    try:
        for name in disk.directories_in(directory):
            if name.startswith(_ASIDE) and name.endswith(_UNFINISHED):
                shutil.rmtree(f"{directory}/{name}")  # links, of a run that did not get far
        found = examine(directory, disk)
        if found.refusal is not None:
            return _repair(directory, found, lock, disk)
        if found.checkpoint is not None and found.checkpoint.fault is not None:
            disk.unlink(found.checkpoint.path)
        return None
    finally:
        disk.close(lock)


def _repair(directory: str, found: Examined, lock: int, disk: Disk) -> Repaired:
    unplaced = list(_unplaced(found))
    aside = _set_aside(directory, unplaced, disk)
    for part in found.parts:
        if part.foreign:
            disk.unlink(part.path)  # first: the new segment's number is to be the greatest
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


# -- what was there -------------------------------------------------------------------------------------------------


def _unplaced(found: Examined) -> Iterator[Unplaced]:
    known: set[tuple[int, int]] = set()
    for placed in found.placed():
        record = placed.record
        if placed.qid is not None or not isinstance(record, (records.Push, records.Moved)):
            continue
        if (placed.number, record.mid) not in known:  # else it is there once more, copied
            known.add((placed.number, record.mid))
            yield Unplaced(placed.number, record.mid, record.payload)


def _set_aside(directory: str, unplaced: list[Unplaced], disk: Disk) -> str:
    """Every segment file under a second name, and messages without a queue, durably. The directory that has them."""
    aside = f"{directory}/{_ASIDE}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    while os.path.lexists(aside):
        aside += "-"
    making = aside + _UNFINISHED
    disk.mkdir(making)
    for number in numbers_in(directory, disk):
        _link(f"{directory}/{segment_name(number)}", f"{making}/{segment_name(number)}", disk)
    for message in unplaced:
        folder = f"{making}/queue-number-{message.number}"
        disk.make_directories(folder, sync=False)
        disk.write_file(f"{folder}/{message_name(message.mid, 0)}", message.payload, sync=False)
    disk.sync_file_system(directory)
    disk.rename(making, aside)
    disk.sync_directory(directory)
    return aside


def _link(path: str, new: str, disk: Disk) -> None:
    try:
        disk.link(path, new)
    except OSError:  # a file system without links
        shutil.copyfile(path, new)


# -- what is kept ---------------------------------------------------------------------------------------------------


def _write_segment(path: str, number: int, found: Examined, disk: Disk) -> tuple[Counter[str], int]:
    """One segment with everything that can be read, durable. Messages by queue, and how many records."""
    first = max((piece.sequence for part in found.parts for piece in part.pieces), default=0) + 1
    salt = new_salt(b"")
    kept = _Kept(number)
    at, sequence, count = BLOCK, first, 0
    with suppress(FileNotFoundError):
        disk.unlink(path)
    fd = disk.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for frame in _frames(found):
            bodies = kept.bodies(found, frame, at + FRAME_HEAD)
            data = _pack_frame(bodies, salt, sequence, at)
            disk.pwrite(fd, data, at)
            at, sequence, count = at + len(data), sequence + 1, count + len(bodies)
        disk.pwrite(fd, pack_header(Header(number, at, first, number, salt)), 0)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    return Counter(qid for qid, _ in kept.messages), count


def _frames(found: Examined) -> Iterator[list[Placed]]:
    """The records of each frame, one frame at least."""
    frame: list[Placed] = []
    for placed in found.placed():
        if frame and placed.piece is not frame[-1].piece:
            yield frame
            frame = []
        frame.append(placed)
    yield frame


class _Kept:
    """What the new segment has so far."""

    def __init__(self, segment: int) -> None:
        self.messages: set[tuple[str, int]] = set()
        self._segment = segment
        self._announced: set[int] = set()
        self._places: dict[int, int] = {}
        self._homeless: dict[int, bytes] = {}  # payloads of queues whose names are lost

    def bodies(self, found: Examined, frame: list[Placed], start: int) -> list[bytes]:
        """The bodies of the records of a frame, the first of which begins at that byte. A queue's number means the same
        from the first to the last."""
        bodies: list[bytes] = []
        for placed in frame:
            if placed.qid is None:
                if isinstance(placed.record, (records.Push, records.Moved)):
                    self._homeless[placed.place] = placed.record.payload
                continue
            record = self._adapted(found, placed)
            if record is None:
                continue
            if placed.number not in self._announced and not isinstance(record, records.Queue):
                bodies.append(records.queue(placed.number, -1, placed.qid))
            self._announced.add(placed.number)
            begin = start + sum(records.HEAD.size + len(body) for body in bodies)
            if isinstance(record, (records.Push, records.Moved, Staged)):
                self._places[placed.place] = place_of(self._segment, begin)
            bodies.append(records.pack(record))
            self.messages.update((placed.qid, mid) for mid in messages_in(record))
        return bodies

    def _adapted(self, found: Examined, placed: Placed) -> records.OfQueue | None:
        """The record as the new segment has to have it; None: it says nothing there, as its payload is not there."""
        record = placed.record._replace(number=placed.number)
        if not isinstance(record, records.Shared):
            return record
        if record.place in self._places:
            source = found.number_of(placed.part, record.source)
            return record._replace(place=self._places[record.place], source=source)
        if record.place in self._homeless:
            return records.Moved(*record[:5], self._homeless[record.place])
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
