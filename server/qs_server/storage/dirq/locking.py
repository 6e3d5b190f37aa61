"""Locks elements as dirq does, for the library and for the server's queues."""

import contextlib
import errno
import os

from ..disk import Disk
from .element_names import LOCKED_DIRECTORY, LOCKED_SUFFIX
from .folders import masked, touch


def lock_file(path: str, disk: Disk) -> None:
    """Locks an element of a QueueSimple. FileExistsError when somebody has it locked, FileNotFoundError when it is
    gone; OSError."""
    lock = path + LOCKED_SUFFIX
    # The time of the lock is that of the element. So it has to be a new one when the lock appears: a purge would take
    # the lock of an element that has waited for long for a stale one. Of a locked element it stays.
    found = disk.lstat(path)
    if found.st_nlink == 1 or not os.access(lock, os.F_OK):
        touch(path)
    disk.link(path, lock)
    # The link can succeed though the element has been locked and removed by somebody else meanwhile, as the file may
    # have another link still, `NAME.tmp`; and then there may even be another element of that name. While the file has
    # the lock's link, no other one gets its inode's number.
    try:
        if disk.lstat(path).st_ino == found.st_ino:
            return
    except FileNotFoundError:
        pass
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(lock)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def lock_directory(path: str, disk: Disk, umask: int | None = None) -> None:
    """Locks an element of a Queue. FileExistsError when somebody has it locked, FileNotFoundError when it is gone;
    OSError."""
    lock = f"{path}/{LOCKED_DIRECTORY}"
    with masked(umask):
        disk.mkdir(lock)
    # Somebody else may have locked it and renamed it for removal while the directory was being made in it.
    disk.lstat(lock)
