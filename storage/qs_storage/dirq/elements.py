"""The names of elements, where they are, and the steps that the library and the server share: directories that others
may remove, locks, durable names.

Elements and intermediate directories are named `SSSSSSSS/SSSSSSSSMMMMMR`, hexadecimal. An element's name is seconds
since the Epoch, microseconds, and a digit that tells apart what two programs add in the same microsecond. As a number
it is the id of a message of the server, so the order of ids is that of time.
"""

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..disk import Disk
from ..engine import SECOND
from ..index.midmap import MidMap
from ..watch import Watch

TEMPORARY_SUFFIX = ".tmp"
"""QueueSimple: an element that is being added."""
LOCKED_SUFFIX = ".lck"
"""QueueSimple: the second link of a locked element."""
TEMPORARY_DIRECTORY = "temporary"
"""Queue: elements that are being added."""
OBSOLETE_DIRECTORY = "obsolete"
"""Queue: elements that are being removed."""
LOCKED_DIRECTORY = "locked"
"""Queue: in a locked element."""
DELAYED_SUFFIX = ".delayed"
"""Queue: an element in `temporary` that is locked before it is visible. The Python package dirq removes the lock of
everything there that has an element's name, however new."""

is_directory = re.compile("[0-9a-f]{8}").fullmatch
is_element = re.compile("[0-9a-f]{14}").fullmatch
is_being_added = re.compile(f"[0-9a-f]{{14}}(?:{re.escape(DELAYED_SUFFIX)})?").fullmatch
"""Matches a name in `temporary`."""
is_full_name = re.compile("[0-9a-f]{8}/[0-9a-f]{14}").fullmatch
"""Matches DIRECTORY/ELEMENT."""

# Each attempt fails only because another program has done something in between, so many in a row mean a mistake.
ATTEMPTS = 1000
"""Attempts to find a free name, or a directory that a purge has not removed, before it is an error."""

MAX_MID = 16**14 - 1
FAR = 0xF0000000 << 24
"""Ids from here on (the year 2097) are mistakes."""

_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_SOME, _MUCH = 1 << 14, 1 << 20
"""Bytes to read at once: first, and then."""
_masks = threading.Lock()


# -- names ------------------------------------------------------------------------------------------------------------


def element_name(rndhex: int, attempt: int = 0) -> str:
    """Returns 14 digits: seconds since the Epoch (8), microseconds (5), rndhex (0 to 15). attempt: microseconds to add,
    so that repeated attempts find a free name even if the clock stands still."""
    now = time.time()
    seconds = int(now)
    micros = int((now - seconds) * 1_000_000) + attempt
    if micros >= 1_000_000:
        seconds, micros = seconds + 1, micros - 1_000_000
    return f"{seconds:08x}{micros:05x}{rndhex:x}"


def directory_of_now(granularity: int) -> str:
    """Returns 8 digits: seconds since the Epoch, rounded down to a multiple of granularity."""
    now = int(time.time())
    return f"{now - now % granularity if granularity > 1 else now:08x}"


def name_of(mid: int) -> str:
    """Returns the name of an element with this id."""
    return f"{mid:014x}"


def mid_of(name: str) -> int:
    """Returns the id of an element with this name."""
    return int(name, 16)


def time_of(mid: int) -> int:
    """Returns microseconds since the Epoch."""
    return (mid >> 24) * SECOND + (mid >> 4 & 0xFFFFF)


def mid_at(time: int, digit: int) -> int:
    """Returns the id of an element that is added at this time. digit: the last digit of the name, 0 to 15."""
    seconds, micros = divmod(time, SECOND)
    return seconds << 24 | micros << 4 | digit


def following(mid: int) -> int:
    """Returns the next id. Carries at SECOND, as microseconds end there."""
    mid += 1
    return mid if (mid >> 4 & 0xFFFFF) < SECOND else (mid >> 24) + 1 << 24


# -- places -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Folder:
    """An intermediate directory that is watched. elements: the number of its elements; watch: the number of its
    watch."""

    elements: int = 0
    watch: int = -1


class Places:
    """Maps each element to its intermediate directory. In the code of dirq, a place is the path of an element below the
    queue's directory, DIRECTORY/NAME.

    Takes 16 bytes for an element: the name is its id, and the directory a number."""

    def __init__(self, watch: Watch) -> None:
        self.folders: dict[str, Folder] = {}
        self._watch = watch
        self._numbers = MidMap()
        """Numbers of intermediate directories, not 0."""

    def __contains__(self, mid: int) -> bool:
        return self._numbers.get(mid) is not None

    def mids(self, after: int = -1, count: int | None = None) -> list[int]:
        """Returns at most count elements with ids greater than after, in order."""
        return self._numbers.after(after, len(self._numbers) if count is None else count)

    def last(self) -> int:
        """Returns the greatest id, -1 without elements."""
        return self._numbers.last() or -1

    def is_in(self, mid: int, folder: str) -> bool:
        return self._numbers.get(mid) == _number_of(folder)

    def folder_of(self, mid: int) -> str:
        """Returns the intermediate directory of an element; for an element that is gone, the first that may have held
        it."""
        return f"{(self._numbers.get(mid) or 1) - 1:08x}"

    def place_of(self, mid: int) -> str:
        # Written out, as each look at an element begins with it.
        return f"{(self._numbers.get(mid) or 1) - 1:08x}/{mid:014x}"

    def add(self, mid: int, folder: str) -> None:
        self._numbers.set(mid, _number_of(folder))
        if folder in self.folders:
            self.folders[folder].elements += 1

    def remove(self, mid: int) -> None:
        number = self._numbers.pop(mid)
        folder = None if number is None else self.folders.get(f"{number - 1:08x}")
        if folder is not None:
            folder.elements -= 1

    def clear(self) -> None:
        for name in list(self.folders):
            self.unwatch(name)
        self._numbers = MidMap()

    def unwatch(self, folder: str) -> None:
        """Forgets an intermediate directory, but not its elements."""
        self._watch.remove(self.folders.pop(folder).watch)

    def expect(self, folder: str, event: int, name: str) -> None:
        """Notes a change by this process that `inotify` will report, if the intermediate directory is watched."""
        if folder in self.folders:
            self._watch.expect(self.folders[folder].watch, event, name)


def _number_of(folder: str) -> int:
    return int(folder, 16) + 1


# -- files and directories --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def masked(umask: int | None) -> Iterator[None]:
    """Sets the umask of the process in the with block; does nothing for None."""
    if umask is None:
        yield
        return
    with _masks:  # or two threads could each restore what the other has set
        before = os.umask(umask)
        try:
            yield
        finally:
            os.umask(before)


def make_directory(path: str, umask: int | None, disk: Disk, *, sync: bool) -> None:
    """Makes a directory and its missing parents. OSError, also if something else has the name."""
    with masked(umask):
        disk.make_directories(os.path.abspath(path), sync=sync)
    if not os.path.isdir(path):
        # Maybe a purge has removed it again. What a lookup says now is what is wrong, if anything is.
        with contextlib.suppress(FileNotFoundError):
            os.listdir(path)


def names_in(path: str) -> list[str]:
    """Returns the names in a directory, unsorted; none if it is gone."""
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


def read_file(path: str, disk: Disk) -> bytes:
    """Reads a file to its end. Raises OSError."""
    fd = disk.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [disk.read(fd, _SOME)]
        while parts[-1]:
            parts.append(disk.read(fd, _MUCH))
    finally:
        disk.close(fd)
    return b"".join(parts)


def remove_if_empty(path: str, disk: Disk) -> bool:
    """Removes an empty directory. Returns True if the directory is gone."""
    try:
        disk.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise
        return False
    return True


def count_elements(path: str, disk: Disk) -> int:
    """Counts the elements in an intermediate directory of a Queue; 0 if it is gone."""
    try:
        links = disk.lstat(path).st_nlink
    except FileNotFoundError:
        return 0
    # Most file systems count subdirectories in the links: so the directory need not be read.
    if links >= 2:  # its own name, its `.`, and the `..` of each element
        return links - 2
    # Some file systems do not count, and ext4 stops at 65,000.
    return sum(map(bool, map(is_element, names_in(path))))


def make_obsolete(top: str, element: str, rndhex: int, disk: Disk, make: Callable[[str], None]) -> str:
    """Renames an element, DIRECTORY/ELEMENT, for removal. Returns its path. make: makes a directory in the queue's."""
    path = f"{top}/{element}"
    for attempt in range(ATTEMPTS):
        obsolete = f"{top}/{OBSOLETE_DIRECTORY}/{element_name(rndhex, attempt)}"
        try:
            disk.rename(path, obsolete)
        except FileNotFoundError:
            if not os.path.lexists(path):
                raise
            make(OBSOLETE_DIRECTORY)
        except OSError as error:
            if not is_taken(error):
                raise
        else:
            return obsolete
    raise FileExistsError(errno.EEXIST, f"no free name in {ATTEMPTS} attempts", obsolete)


def remove_element(path: str, disk: Disk) -> None:
    """Removes an obsolete or temporary element of a Queue. Tries again when a purge does the same, or another program
    locks the element meanwhile. OSError."""
    while True:
        for name in names_in(path):
            with contextlib.suppress(FileNotFoundError):
                if name == LOCKED_DIRECTORY:
                    disk.rmdir(f"{path}/{name}")
                else:
                    disk.unlink(f"{path}/{name}")
        if remove_if_empty(path, disk):
            return


def touch(path: str) -> None:
    """Sets a file's time of the last change to now. OSError with the path, which the error of os.utime lacks."""
    try:
        os.utime(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def is_older(path: str, limit: float, disk: Disk) -> bool:
    """Tells whether a file was last changed before a time. limit: seconds since the Epoch. Returns False if the file is
    gone."""
    try:
        return disk.lstat(path).st_mtime < limit
    except FileNotFoundError:
        return False


def is_taken(error: OSError) -> bool:
    """Tells whether a rename failed because a directory has the name already."""
    return error.errno in _NOT_EMPTY


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Keeps other purges by servers of qs out of a directory. Look at a lock again in the with block: two purges that
    saw the same old lock would both remove it, the second one a new lock in its place. FileNotFoundError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # not every file system has these locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def lock_file(path: str, disk: Disk) -> None:
    """Locks an element of a QueueSimple. FileExistsError if it is locked, FileNotFoundError if it is gone; OSError."""
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
    """Locks an element of a Queue. FileExistsError if it is locked, FileNotFoundError if it is gone; OSError."""
    lock = f"{path}/{LOCKED_DIRECTORY}"
    with masked(umask):
        disk.mkdir(lock)
    # Somebody else may have locked it and renamed it for removal while the directory was being made in it.
    disk.lstat(lock)


class DurableDirectory:
    """Makes the names in intermediate directories durable, and the directories' own names.

    Keeps the directory open that was made durable last, so that no other directory gets its inode's number. A copy of
    the object begins with none.
    """

    def __init__(self) -> None:
        self._changes = threading.Lock()
        self._fd = -1
        self._known: tuple[int, int] | None = None
        self._close = os.close

    def __reduce__(self) -> tuple[type["DurableDirectory"], tuple[Any, ...]]:
        return DurableDirectory, ()

    def __del__(self) -> None:
        if self._fd >= 0:
            self._close(self._fd)

    def sync(self, top: str, directory: str, disk: Disk) -> None:
        """Syncs the names in top/directory; does nothing if the directory is gone. OSError: the names may be lost."""
        try:
            fd = disk.open(f"{top}/{directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            disk.fsync(fd)
            status = disk.fstat(fd)
            found = (status.st_dev, status.st_ino)
            with self._changes:
                # Only a directory that is kept open is known: its inode cannot be another one's.
                known = self._known == found
            if not known:
                self._sync_above(top, disk)
                with self._changes:
                    fd, self._fd, self._known = self._fd, fd, found
        finally:
            if fd >= 0:
                disk.close(fd)

    def _sync_above(self, top: str, disk: Disk) -> None:
        disk.sync_directory(top)
        # Somebody who does not sync may have made the queue just now; the constructor syncs only what it makes itself.
        try:
            disk.sync_directory(os.path.dirname(os.path.abspath(top)))
        except OSError as error:
            if error.errno not in _FORBIDDEN:  # not everybody may read what is above a queue
                raise
