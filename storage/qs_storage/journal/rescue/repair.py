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

The places of records change: a message that shares a payload gets the new place, or a payload of its own. The queues'
directories are not touched. Each step reads the old segments again, so memory holds no more than for a check.
"""

import os
import shutil
import time
from typing import NamedTuple

from ...disk import Disk
from ...index.midset import MidSet
from ...names import message_name
from ..log import records
from ..log.claim_records import Staged
from ..log.lock import take_lock, write_last
from ..log.places import segment_name
from ..log.recovery import numbers_in
from ..log.transfer_record import Transfer
from .damage import Examined, Part, Placed, examine, messages_in, verify
from .rewriting import Rewriting

_ASIDE = "damaged-"
_UNFINISHED = ".tmp"
_WITH_ID = (records.Push, records.Moved, Transfer)
"""The records with the payload and the id of a message."""


class Repaired(NamedTuple):
    """The result of a repair. found: the journal before; aside: the directory with the old files; segments: the paths
    of the new segments; kept: number of their messages by queue; records: number of their records; unplaced: number of
    messages whose queue's name is lost, which are files in `aside`."""

    found: Examined
    aside: str
    segments: list[str]
    kept: dict[str, int]
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
    aside, unplaced = _set_aside(directory, found, disk)
    for part in found.parts:
        if part.foreign:
            disk.unlink(part.path)  # their numbers may be those of the new segments
    write_last(lock, found.last, disk)
    numbers, count, kept = _write_segments(directory, found, disk)
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
    return Repaired(found, aside, segments, {qid: len(mids) for qid, mids in kept.items()}, count, unplaced)


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
        if placed.qid is None and isinstance(record, _WITH_ID):
            mids = written.setdefault(placed.number, MidSet())
            if record.mid not in mids:
                mids.add(record.mid)
                folder = f"{making}/queue-number-{placed.number}"
                disk.make_directories(folder, sync=False)
                disk.write_file(f"{folder}/{message_name(record.mid, 0)}", record.payload, sync=False)
    return sum(map(len, written.values()))


# -- the new segments -----------------------------------------------------------------------------------------------


class _Payload(NamedTuple):
    """A record whose payload others share. queue, mid: its message; mid is None for a STAGED; part, start: where it is;
    place: in the new segments, None if its queue's name is lost."""

    queue: int
    mid: int | None
    part: Part
    start: int
    place: int | None


def _write_segments(directory: str, found: Examined, disk: Disk) -> tuple[list[int], int, dict[str, MidSet]]:
    """Writes all readable records to new segments, durably. Returns the numbers of the segments and of the records, and
    the messages by queue."""
    sequence = max([1, *(part.next or 1 for part in found.parts)])
    wanted = {placed.record.place for placed in found.placed() if isinstance(placed.record, records.Shared)}
    payloads: dict[int, _Payload] = {}
    kept: dict[str, MidSet] = {}
    new = Rewriting(directory, found.last + 2, sequence, disk)
    try:
        for placed in found.placed():
            record = _adapted(found, placed, payloads)
            place = None if record is None or placed.qid is None else new.add(record, placed.qid)
            if isinstance(placed.record, (*_WITH_ID, Staged)) and placed.place in wanted:
                mid = None if isinstance(placed.record, Staged) else placed.record.mid
                payloads[placed.place] = _Payload(placed.number, mid, placed.part, placed.start, place)
            if place is not None and record is not None and placed.qid is not None:
                mids = kept.setdefault(placed.qid, MidSet())
                for mid in messages_in(record):
                    if mid not in mids:
                        mids.add(mid)
        new.end()
    finally:
        new.close()
    return new.numbers, new.records, kept


def _adapted(found: Examined, placed: Placed, payloads: dict[int, _Payload]) -> records.OfQueue | None:
    """Returns the record with the numbers and places of the new segments; None if its payload is lost."""
    record = placed.record._replace(number=placed.number)
    if isinstance(record, Transfer) and record.source:
        return record._replace(source=found.number_of(placed.part, record.source))
    if not isinstance(record, records.Shared):
        return record
    payload = payloads.get(record.place)
    if payload is None or payload.mid not in (None, record.mid):  # that record is lost, or another message's
        return None
    if payload.place is None:
        shared = records.payload_of(records.body_in(payload.part.data, payload.start))
        return records.Moved(*record[:5], bytes(shared or b""))
    return record._replace(place=payload.place, source=payload.queue)
