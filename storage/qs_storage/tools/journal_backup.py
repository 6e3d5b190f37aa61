"""Copies a journal as it was at one moment, with the queues' directories and options. A server may be running.

The moment is the end of the last readable frame. A full segment does not change while it has a second name, so a hard
link is a copy; the last segment is copied up to the last whole frame. If compaction gives up a segment meanwhile, a
later frame in the copy calls that segment obsolete. If a segment is removed before it is linked, the copy begins again.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from ..disk import Disk, PlantedError, check_directory
from ..engine import StorageError
from ..journal.log.frames import BLOCK, DamagedError
from ..journal.log.lock import take_lock, write_last
from ..journal.log.opening import Parser, Scan, find_segments, numbers_in
from ..journal.log.places import segment_name
from ..journal.log.records import BadRecordError
from ..journal.upkeep.checkpoint import NAME as CHECKPOINT
from ..names import JOURNAL, PRIVATE, parse_message, qid_of
from ..settings import FILE, read_options

_TRIES = 100
"""Copies that a server may interrupt by removing or beginning a segment."""
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})


class _ChangedError(Exception):
    """The segments do not belong together: a server changed them, or they are damaged."""


class Backup(NamedTuple):
    """The result of a backup. path: the backup's directory; size: the bytes of its segments; linked: how many of them
    are links; frame: the last frame; others: queues that are not in the journal, whose messages are not in the
    backup."""

    path: str
    segments: int
    size: int
    linked: int
    frame: int
    others: list[str]


def backup(root: str, target: str, progress: Callable[[int], object]) -> Backup:
    """Makes a backup; if it raises, nothing is left of it. target: must not exist; progress: called with the number of
    segments copied since the last call. StorageError, OSError."""
    target = target.rstrip("/") or "/"
    if os.path.lexists(target):
        raise StorageError(f"{target} is there already: name a directory that is not")
    # Under another name until it is complete: what has the name of a backup is one.
    making = f"{target}.making-{secrets.token_hex(4)}"
    os.mkdir(making, 0o700)
    try:
        linked, frame = _copy_log(f"{root}/{JOURNAL}", f"{making}/{JOURNAL}", progress)
        size = sum(os.path.getsize(f"{making}/{JOURNAL}/{segment_name(number)}") for number in linked)
        others = _copy_queues(root, making)
        disk = Disk()
        disk.sync_directory(making)
        os.rename(making, target)
        disk.sync_directory(os.path.dirname(os.path.abspath(target)))
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return Backup(target, len(linked), size, sum(linked.values()), frame, others)


def _copy_log(source: str, target: str, progress: Callable[[int], object]) -> tuple[dict[int, bool], int]:
    """Copies the log. Returns the segments in the backup, each with True if it is a link; and the last frame's
    number."""
    os.mkdir(target, 0o700)
    linked: dict[int, bool] = {}
    for _ in range(_TRIES):
        try:
            frame = _copy_once(source, target, linked, progress)
        except (FileNotFoundError, _ChangedError) as error:
            changed = error
        else:
            break
    else:
        raise StorageError(f"{source} cannot be copied: {changed}; see 'queue-journal.py check'")
    disk = Disk()
    # The backup gets a `lock` of its own: without it, a start would not notice that its last segment is missing.
    lock = take_lock(target, disk)
    write_last(lock, max(linked), disk)
    disk.close(lock)
    disk.sync_directory(target)
    find_segments(target, disk)  # raises if one is missing
    return linked, frame


def _copy_once(source: str, target: str, linked: dict[int, bool], progress: Callable[[int], object]) -> int:
    """Copies the present segments. linked: the segments in the backup, each with True if it is a link. Returns the last
    frame's number. FileNotFoundError when a segment is removed meanwhile, _ChangedError."""
    _copy_checkpoint(source, target)  # first: it must not be newer than the frames
    numbers = numbers_in(source, Disk())
    if not numbers:
        raise StorageError(f"there is nothing in {source}: no server has written anything yet")
    for number in set(linked).difference(numbers):
        os.unlink(f"{target}/{segment_name(number)}")
        del linked[number]
    for number in numbers[:-1]:
        if number not in linked:
            linked[number] = _link(f"{source}/{segment_name(number)}", f"{target}/{segment_name(number)}")
            progress(1)
    name = segment_name(numbers[-1])
    scan = _copy_frames(f"{source}/{name}", f"{target}/{name}")
    frame = scan.next - 1
    oldest = scan.read_oldest()
    for number in range(oldest, numbers[-1]):
        if number not in linked:
            raise _ChangedError(f"segment {number} is missing")
    for number in [number for number in linked if number < oldest]:
        os.unlink(f"{target}/{segment_name(number)}")
        del linked[number]
    linked[numbers[-1]] = False
    return frame


def _copy_checkpoint(source: str, target: str) -> None:
    if os.path.lexists(f"{target}/{CHECKPOINT}"):
        os.unlink(f"{target}/{CHECKPOINT}")
    if os.path.lexists(f"{source}/{CHECKPOINT}"):
        _link(f"{source}/{CHECKPOINT}", f"{target}/{CHECKPOINT}")


def _link(source: str, target: str) -> bool:
    """Makes a hard link, or a copy if the file system has no links. Returns True for a link."""
    with open(Disk().open_file(source, os.O_RDONLY), "rb") as file:
        try:
            os.link(source, target)
            if not os.path.samestat(os.fstat(file.fileno()), os.lstat(target)):  # it was exchanged
                os.unlink(target)
                raise PlantedError(source)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return True
        with open(target, "xb") as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fsync(copy.fileno())
        _must_be_named(file.fileno(), source)
    return False


def _must_be_named(descriptor: int, path: str) -> None:
    """Checks that an open file still has its name. An obsolete segment loses its name before the file is used again.
    FileNotFoundError."""
    if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _copy_frames(source: str, target: str) -> Scan:
    """Copies the whole frames of the last segment. Returns the scan of the segment."""
    with open(Disk().open_file(source, os.O_RDONLY), "rb") as file:
        data = memoryview(file.read())
        _must_be_named(file.fileno(), source)
    try:
        scan = Scan(source, data)
    except DamagedError as error:
        raise StorageError(f"{source}: {error}; see 'queue-journal.py check'") from None
    parser = Parser()
    try:
        for start, bodies in scan.frames(BLOCK, scan.header.first, None):
            parser.apply(scan.header.number, start, bodies)
    except BadRecordError as error:
        raise StorageError(f"{source}: {error}; see 'queue-journal.py check'") from None
    gap = scan.gap
    if gap.later is not None and gap.later.synced >= scan.next:
        raise _ChangedError(f"{source}: byte {gap.start}: {gap.why}")  # or it was written while it was read
    with suppress(FileNotFoundError):
        os.unlink(target)  # a hard link, if it was not the last segment the time before
    with open(target, "xb") as file:
        file.write(data[: gap.start])
        # A segment has its full size: a shorter file would be taken for a damaged one.
        file.truncate(scan.header.size)
        file.flush()
        os.fsync(file.fileno())
    return scan


def _copy_queues(root: str, target: str) -> list[str]:
    """Copies the queues' directories with their options, and files to be ingested. Call it after `_copy_log`: if a file
    is in both parts of the backup, the log knows its private name. Returns the queues outside of the journal."""
    others: list[str] = []
    for name in sorted(Disk().directories_in(root)):
        qid = qid_of(name)
        if name.startswith(".") or qid is None:
            continue
        source, copy = f"{root}/{name}", f"{target}/{name}"
        try:
            os.mkdir(copy)
            check_directory(source)
            if os.path.lexists(f"{source}/{FILE}"):
                with open(Disk().open_file(f"{source}/{FILE}", os.O_RDONLY), "rb") as file:
                    Disk().write_file(f"{copy}/{FILE}", file.read(), sync=True)
            if read_options(copy, "journal").storage == "journal":
                _copy_waiting(source, copy)
            else:
                others.append(qid)
        except FileNotFoundError:  # the queue was just removed
            shutil.rmtree(copy, ignore_errors=True)
            continue
        Disk().sync_directory(copy)
    return others


def _copy_waiting(source: str, target: str) -> None:
    for name in Disk().files_in(source):
        if name.startswith(PRIVATE) or (parse_message(os.fsencode(name)) and not name.endswith(".new")):
            try:
                _link(f"{source}/{name}", f"{target}/{name}")
            except FileNotFoundError:
                continue  # it has been ingested
