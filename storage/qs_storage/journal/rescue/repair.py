"""Repairs a damaged journal so that a server starts with it: keeps all readable records, and sets the old files aside.

`keeping` says what is kept, and where. A crash between any two steps loses nothing, and the command can be run again:

1. A directory `damaged-TIME` gets a link to every segment, and its name once it is synced.
2. All kept records are written to new segments, which call all others obsolete. Their numbers leave one out after the
   last old segment. As `lock` names that one, a start and another repair take the new segments for foreign ones.
   Messages whose queue is unknown become files in `damaged-TIME`.
3. `lock` gets the number of the last new segment: from then on the new segments are the journal.
4. The old segments and the checkpoint are unlinked.

The queues' directories are not touched.
"""

import gc
import os
import shutil
import time
from typing import NamedTuple

from ...disk import Disk
from ..log.lock import take_lock, write_last
from ..log.opening import numbers_in
from ..log.places import segment_name
from .audit import unopened, verify
from .damage import Examined, examine
from .keeping import Counts, Keeping
from .writing import NewSegments

_ASIDE = "damaged-"
_UNFINISHED = ".tmp"


class Repaired(NamedTuple):
    """The result of a repair. found: the journal before; aside: the directory with the old files; segments: the paths
    of the new segments; records: number of their records; counts: of the messages."""

    found: Examined
    aside: str
    segments: list[str]
    records: int
    counts: Counts


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
            return _repair(directory, found.with_leftovers(), lock, disk)
        if found.checkpoint is not None and found.checkpoint.fault is not None:
            disk.unlink(found.checkpoint.path)
        return None
    finally:
        disk.close(lock)


def _repair(directory: str, found: Examined, lock: int, disk: Disk) -> Repaired:
    aside = _set_aside(directory, disk)
    for part in found.parts:
        if part.foreign:
            disk.unlink(part.path)  # their numbers may be those of the new segments
    write_last(lock, found.last, disk)
    segments, counts = _keep(directory, found, aside, disk)
    disk.sync_directory(directory)
    for last in (segments.numbers[-1] - 1, segments.numbers[-1]):  # both places of `lock`: one alone may be lost
        write_last(lock, last, disk)
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
    disk.rename(making, aside)
    disk.sync_directory(directory)
    return aside


def _link(path: str, new: str, disk: Disk) -> None:
    try:
        disk.link(path, new)
    except OSError:  # the file system has no links
        shutil.copyfile(path, new)


def _keep(directory: str, found: Examined, aside: str, disk: Disk) -> tuple[NewSegments, Counts]:
    """Writes all that is kept to new segments, durably, and to files in `aside`."""
    sequence = max([1, *(part.next or 1 for part in found.parts)])
    segments = NewSegments(directory, found.last + 2, sequence, disk)
    try:
        with unopened(directory, disk) as (store, make):
            kept = Keeping(found, segments, store, make)
            for placed in found.placed():
                kept.keep(placed)
            segments.end()
            return segments, kept.end(aside, disk)
    finally:
        segments.close()
