"""Makes a journal that is damaged one with which a server starts: what can be read is kept, what was there set aside.

Every record that is whole by its own checksum is kept, also one of a frame that is not: each says something that is
true. A message whose DELETE is lost is there again, and of a list that was pushed a part may be: better twice, or in
part, than not at all.

The steps, so that a crash between any two loses nothing, and the command can be given again:

1. A directory `damaged-TIME` gets a link to every segment, and what has no place elsewhere; it is synced, then named.
2. All records that are kept are written to one new segment, which calls all others obsolete. It is synced, then named:
   before that the old segments are the journal, from then on the new one is.
3. The names of the old segments are removed.

The directories of the queues are not touched: the next start replays the new segment like any other.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from ..disk import Disk
from ..names import message_name
from . import records
from .damage import Examined, examine
from .frames import BLOCK, FRAME_HEAD, Header, new_salt, pack_frame_head, pack_header, padded, seed
from .lock import take_lock, write_last
from .records import Record
from .recovery import numbers_in, recover, segment_name

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
    """Repairs the journal in a directory; None: there is nothing to repair. InUseError while a server has it, OSError:
    what was there is there still, and a second run begins again."""
    lock = take_lock(directory, disk)
    try:
        for name in disk.directories_in(directory):
            if name.startswith(_ASIDE) and name.endswith(_UNFINISHED):
                shutil.rmtree(f"{directory}/{name}")  # links, of a run that did not get far
        found = examine(directory, disk)
        return None if found.refusal is None else _repair(directory, found, lock, disk)
    finally:
        disk.close(lock)


def _repair(directory: str, found: Examined, lock: int, disk: Disk) -> Repaired:
    unplaced = [
        Unplaced(placed.number, placed.record.mid, placed.record.payload)
        for placed in found.placed()
        if isinstance(placed.record, records.Push) and placed.qid is None
    ]
    aside = _set_aside(directory, unplaced, disk)
    for part in found.parts:
        if part.foreign:
            disk.unlink(part.path)  # first: the new segment's number is to be the greatest
    number = found.last + 1
    new = f"{directory}/next"
    kept, count = _write_segment(new, number, found, disk)
    write_last(lock, found.last, disk, sync=True)
    segment = f"{directory}/{segment_name(number)}"
    disk.rename(new, segment)
    disk.sync_directory(directory)
    write_last(lock, number, disk, sync=True)
    for old in numbers_in(directory, disk):
        if old != number:
            disk.unlink(f"{directory}/{segment_name(old)}")
    disk.sync_directory(directory)
    recover(directory, disk)
    return Repaired(found, aside, segment, kept, count, len(unplaced))


# -- what was there -------------------------------------------------------------------------------------------------


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
    kept: Counter[str] = Counter()
    at, sequence, count = BLOCK, first, 0
    with suppress(FileNotFoundError):
        disk.unlink(path)
    fd = disk.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for frame in _frames(found, kept):
            data = _pack_frame(frame, salt, sequence, at)
            disk.pwrite(fd, data, at)
            at, sequence, count = at + len(data), sequence + 1, count + len(frame)
        disk.pwrite(fd, pack_header(Header(number, at, first, number, salt)), 0)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    return kept, count


def _frames(found: Examined, kept: Counter[str]) -> Iterator[list[Record]]:
    """The records of each frame, one frame at least. A queue's number means the same from the first to the last."""
    frame: list[Record] = []
    previous = None
    announced: set[int] = set()
    for _, piece, record, qid, number in found.placed():
        if qid is None:
            continue
        if piece is not previous and frame:
            yield frame
            frame = []
        previous = piece
        if number not in announced and not isinstance(record, records.Queue):
            frame.append(records.Queue(number, -1, qid))
        announced.add(number)
        frame.append(record._replace(number=number))
        kept[qid] += isinstance(record, records.Push)
    yield frame


def _pack_frame(frame: list[Record], salt: bytes, sequence: int, start: int) -> bytes:
    begin, length = seed(salt), 0
    parts = []
    for body in map(_pack, frame):
        place = start + FRAME_HEAD + length
        parts += [records.HEAD.pack(len(body), crc32(body, begin ^ place)), body]
        length += records.HEAD.size + len(body)
    head = pack_frame_head(salt, sequence, sequence - 1, length, len(frame))
    return b"".join([head, *parts]).ljust(padded(len(head) + length), b"\0")


_BODIES: dict[type, Callable[..., bytes]] = {
    records.State: records.state,
    records.Delete: records.delete,
    records.Queue: records.queue,
    records.Remove: records.remove,
    records.Key: records.key_of,
    records.Checkpoint: records.checkpoint,
}


def _pack(record: Record) -> bytes:
    if isinstance(record, records.Push):
        number, mid, visible, payload, key, at = record
        return records.push(number, mid, visible, key, at) + payload
    return _BODIES[type(record)](*record)
