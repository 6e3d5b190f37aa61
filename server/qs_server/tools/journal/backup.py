"""`queue-journal.py backup`: a journal as it was at one moment, with the queues' directories and options.

The moment is the end of the last frame that could be read. Segments that are full do not change while they have a
second name, so a hard link is a copy; of the last one the whole frames are copied. What compaction removes meanwhile, a
record in the frames that are read after that calls not needed; where a segment goes before it is linked, all is looked
at again.
"""

import errno
import os
import secrets
import shutil
from argparse import Namespace
from contextlib import suppress
from typing import NamedTuple

from ...storage.disk import Disk
from ...storage.engine import StorageError
from ...storage.journal.checkpoint import NAME as CHECKPOINT
from ...storage.journal.frames import BLOCK, DamagedError
from ...storage.journal.lock import take_lock, write_last
from ...storage.journal.opening import find_segments
from ...storage.journal.recovery import numbers_in, segment_name
from ...storage.journal.scanning import Scan
from ...storage.names import JOURNAL, PRIVATE, parse_message, qid_of
from ...storage.settings import FILE, read_options
from ..meter import Meter, counted, meter_for
from ..output import say

_TRIES = 100
"""How often a server may remove a segment, or begin one, just when it is looked for."""
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})


class _ChangedError(Exception):
    """What was found is no journal: the server has just changed it, or it is damaged."""


class _Done(NamedTuple):
    """segments, size: that were put into the backup, and their bytes; linked: how many of them are links; frame: the
    last one."""

    segments: int
    size: int
    linked: int
    frame: int


def backup(arguments: Namespace) -> int:
    """Makes the backup, whole or not at all. The exit code. StorageError, OSError."""
    root, target = arguments.root, arguments.to.rstrip("/") or "/"
    if os.path.lexists(target):
        raise StorageError(f"{target} is there already: name a directory that is not")
    making = f"{target}.making-{secrets.token_hex(4)}"
    os.mkdir(making, 0o700)
    try:
        done = _copy_log(f"{root}/{JOURNAL}", f"{making}/{JOURNAL}")
        others = _copy_queues(root, making)
        disk = Disk()
        disk.sync_directory(making)
        os.rename(making, target)
        disk.sync_directory(os.path.dirname(os.path.abspath(target)))
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    say(
        f"{target}: {counted(done.segments, 'segment')}, {done.size} bytes; hard links: {done.linked}; "
        f"complete up to frame {done.frame}\n"
    )
    if others:
        say(f"without the messages of queues that are not in the journal: {', '.join(others)}\n")
    return 0


# -- the log --------------------------------------------------------------------------------------------------------


def _copy_log(source: str, target: str) -> _Done:
    os.mkdir(target, 0o700)
    meter = meter_for("copied", what="segment")
    linked: dict[int, bool] = {}
    try:
        for _ in range(_TRIES):
            try:
                frame = _try(source, target, linked, meter)
            except (FileNotFoundError, _ChangedError) as error:
                changed = error
            else:
                break
        else:
            raise StorageError(f"{source} cannot be copied: {changed}; see 'queue-journal.py check'")
    finally:
        meter.clear()
    disk = Disk()
    lock = take_lock(target, disk)
    write_last(lock, max(linked), disk)
    disk.close(lock)
    disk.sync_directory(target)
    find_segments(target, disk)  # whether none is missing
    size = sum(os.path.getsize(f"{target}/{segment_name(number)}") for number in linked)
    return _Done(len(linked), size, sum(linked.values()), frame)


def _try(source: str, target: str, linked: dict[int, bool], meter: Meter) -> int:
    """Copies all that is there now; the number of the last frame. linked: which segments are in the backup, and whether
    they are links. FileNotFoundError when a segment goes meanwhile, _ChangedError."""
    _take_checkpoint(source, target)  # first: it must not be newer than the frames
    numbers = numbers_in(source, Disk())
    if not numbers:
        raise StorageError(f"there is nothing in {source}: no server has written anything yet")
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        raise _ChangedError("a segment is missing")
    for number in set(linked).difference(numbers):
        os.unlink(f"{target}/{segment_name(number)}")
        del linked[number]
    for number in numbers[:-1]:
        if number not in linked:
            linked[number] = _link(f"{source}/{segment_name(number)}", f"{target}/{segment_name(number)}")
            meter.add(0)
            meter.tick()
    name = segment_name(numbers[-1])
    frame = _copy_frames(f"{source}/{name}", f"{target}/{name}")
    linked[numbers[-1]] = False
    return frame


def _take_checkpoint(source: str, target: str) -> None:
    if os.path.lexists(f"{target}/{CHECKPOINT}"):
        os.unlink(f"{target}/{CHECKPOINT}")
    if os.path.lexists(f"{source}/{CHECKPOINT}"):
        _link(f"{source}/{CHECKPOINT}", f"{target}/{CHECKPOINT}")


def _link(source: str, target: str) -> bool:
    """A hard link, or else a copy. Which of them."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with open(source, "rb") as file:
            shutil.copyfile(source, target)
            _must_be_named(file.fileno(), source)
        Disk().sync_file(target)
        return False
    return True


def _must_be_named(descriptor: int, path: str) -> None:
    """FileNotFoundError when an open file has not its name any more: a segment that is not needed loses it before it is
    written over."""
    if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _copy_frames(source: str, target: str) -> int:
    """Copies the whole frames of the last segment, which may be being written; the number of the last one."""
    with open(source, "rb") as file:
        data = memoryview(file.read())
        _must_be_named(file.fileno(), source)
    try:
        scan = Scan(source, data)
    except DamagedError as error:
        raise StorageError(f"{source}: {error}; see 'queue-journal.py check'") from None
    for _ in scan.frames(BLOCK, scan.header.first, None):
        pass
    gap = scan.gap
    if gap.later is not None and gap.later.synced >= scan.next:
        raise _ChangedError(f"{source}: byte {gap.start}: {gap.why}")  # unless it was written while it was read
    with suppress(FileNotFoundError):
        os.unlink(target)  # a link to the server's own file, if another one followed it when it was looked at before
    with open(target, "xb") as file:
        file.write(data[: gap.start])
        file.truncate(scan.header.size)
        file.flush()
        os.fsync(file.fileno())
    return scan.next - 1


# -- the queues -----------------------------------------------------------------------------------------------------


def _copy_queues(root: str, target: str) -> list[str]:
    """The directories with their options, and files that wait to be taken in. Names of queues whose messages are
    elsewhere. After the log: a file that is in both is known there by its private name."""
    others: list[str] = []
    for name in sorted(Disk().directories_in(root)):
        qid = qid_of(name)
        if name.startswith(".") or qid is None:
            continue
        source, copy = f"{root}/{name}", f"{target}/{name}"
        try:
            os.mkdir(copy)
            if os.path.lexists(f"{source}/{FILE}"):
                shutil.copyfile(f"{source}/{FILE}", f"{copy}/{FILE}")
                Disk().sync_file(f"{copy}/{FILE}")
            if read_options(copy, "journal").storage == "journal":
                _take_waiting(source, copy)
            else:
                others.append(qid)
        except FileNotFoundError:  # the queue was just removed
            shutil.rmtree(copy, ignore_errors=True)
            continue
        Disk().sync_directory(copy)
    return others


def _take_waiting(source: str, target: str) -> None:
    for name in Disk().files_in(source):
        if name.startswith(PRIVATE) or (parse_message(os.fsencode(name)) and not name.endswith(".new")):
            try:
                _link(f"{source}/{name}", f"{target}/{name}")
            except FileNotFoundError:
                continue  # it has been taken in
