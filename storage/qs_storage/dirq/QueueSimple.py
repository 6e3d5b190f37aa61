# ruff: noqa: N999 - programs import the module under this name
"""A queue whose elements are files: bytes, no schema.

The steps of an addition: create `NAME.tmp` exclusively, write, sync; link it to a name made from the time, which fails
when the name is taken; remove `NAME.tmp`; sync the directory. A lock is a second link of the element, `NAME.lck`. The
time of the element's last change tells since when it is locked.
"""

import contextlib
import errno
import os
import time

from ..disk import Disk
from .base import QueueBase
from .elements import (
    ATTEMPTS,
    LOCKED_SUFFIX,
    TEMPORARY_SUFFIX,
    alone,
    directory_of_now,
    element_name,
    is_element,
    is_older,
    lock_file,
    masked,
    names_in,
    read_file,
    remove_if_empty,
)

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_EXISTING_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = 1
"""Seconds since a change of a lock within which it may have been linked just now, and not have its time yet."""
_STEP = 0.02
"""Seconds to wait before looking again at a lock without its time."""


class QueueSimple(QueueBase):
    """A queue whose elements are bytes, each in a file, as in dirq's QueueSimple and Perl's Directory::Queue::Simple.

    Ensures that an element is there as a whole or not at all, also after a power loss unless `sync` is off, and that it
    is locked by one program at a time. Never waits for a lock."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        umask: int | None = None,
        granularity: int = 60,
        *,
        rndhex: int | None = None,
        sync: bool = True,
        disk: Disk | None = None,
    ) -> None:
        """path: the directory, made when missing; umask: the umask for new files and directories, None for the
        process's own; granularity: seconds until a new intermediate directory; rndhex: the last digit of names, modulo
        16, None: random; sync: True if changes have to survive a power loss once a call has returned; disk: the file
        operations. TypeError; OSError."""
        super().__init__(path, umask, rndhex, sync, disk)
        if not isinstance(granularity, int):
            raise TypeError(f"'granularity' should be an integer, not {granularity!r}")
        self.granularity = granularity

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(self, data: bytes | str) -> str:
        """Stores an element. Returns its name, DIRECTORY/FILE. data: bytes, or a string, which is stored as UTF-8.
        TypeError; OSError."""
        payload = data.encode() if isinstance(data, str) else data
        if not isinstance(payload, bytes):
            if not isinstance(payload, bytearray | memoryview):
                raise TypeError(f"an element is bytes or a string, not {data!r}")
            payload = bytes(payload)
        # A complete file gets the name by a link, which fails if the name is taken: a rename would replace the
        # element.
        directory, temporary = self._write(payload)
        try:
            name = self._link(temporary, directory)
        except BaseException:
            self._drop(temporary)
            raise
        try:
            with contextlib.suppress(FileNotFoundError):  # a purge has found it old
                self._disk.unlink(temporary)
            self._make_durable(directory)
        except BaseException:
            self._take_back(name)
            raise
        return name

    add_ref = add  # Perl's queues have both

    def add_path(self, path: str | os.PathLike[str]) -> str:
        """Moves a file of the same file system into the queue. Returns its name. If it raises OSError, the file is
        where it was. After a power loss the file may also be in its old directory, which is not synced."""
        path = os.fspath(path)
        if self._sync:
            self._disk.sync_file(path, _EXISTING_FILE)
        name = self._link(path, directory_of_now(self.granularity))
        try:
            self._make_durable(name.partition("/")[0])
            self._disk.unlink(path)
        except BaseException:
            self._take_back(name)
            raise
        return name

    def _write(self, payload: bytes) -> tuple[str, str]:
        """Writes a temporary element. Returns its intermediate directory and its path."""
        disk = self._disk
        directory, temporary, fd = self._create()
        try:
            try:
                disk.write(fd, payload)
                if self._sync:
                    disk.fsync(fd)
            finally:
                disk.close(fd)
        except BaseException:
            self._drop(temporary)
            raise
        return directory, temporary

    def _create(self) -> tuple[str, str, int]:
        for attempt in range(ATTEMPTS):
            directory = directory_of_now(self.granularity)
            path = f"{self.path}/{directory}/{element_name(self.rndhex, attempt)}{TEMPORARY_SUFFIX}"
            try:
                if self.umask is None:
                    return directory, path, self._disk.open(path, _NEW_FILE, 0o666)
                with masked(self.umask):
                    return directory, path, self._disk.open(path, _NEW_FILE, 0o666)
            except FileExistsError:
                pass
            except FileNotFoundError:  # not there yet, or just purged
                self._make(directory)
        raise FileExistsError(errno.EEXIST, f"no free name in {ATTEMPTS} attempts", path)

    def _link(self, source: str, directory: str) -> str:
        """Gives a complete file an element's name. Returns the name."""
        for attempt in range(ATTEMPTS):
            name = f"{directory}/{element_name(self.rndhex, attempt)}"
            try:
                self._disk.link(source, f"{self.path}/{name}")
            except FileExistsError:
                pass
            except FileNotFoundError:
                if not os.path.lexists(source):
                    raise
                self._make(directory)
            else:
                return name
        raise FileExistsError(errno.EEXIST, f"no free name in {ATTEMPTS} attempts", f"{self.path}/{name}")

    def _drop(self, temporary: str) -> None:
        with contextlib.suppress(OSError):  # the error that has led here says more
            self._disk.unlink(temporary)

    def _take_back(self, name: str) -> None:
        """Removes an element whose addition failed, unless a consumer has taken it."""
        with contextlib.suppress(OSError):
            if self.lock(name):
                self._erase(f"{self.path}/{name}", self.get_path(name))

    # -- locking --------------------------------------------------------------------------------------------------

    def lock(self, name: str, permissive: bool = True) -> bool:
        """Locks an element. Returns False if the element is locked or gone; without permissive, raises FileExistsError
        or FileNotFoundError instead."""
        try:
            lock_file(f"{self.path}/{name}", self._disk)
        except (FileExistsError, FileNotFoundError):
            if permissive:
                return False
            raise
        return True

    def unlock(self, name: str, permissive: bool = False) -> bool:
        """Unlocks an element. If the element was not locked, returns False with permissive, and raises
        FileNotFoundError without."""
        try:
            self._disk.unlink(self.get_path(name))
        except FileNotFoundError:
            if permissive:
                return False
            raise
        return True

    # -- locked elements ------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        """Reads a locked element. FileNotFoundError if it is not locked."""
        return read_file(self.get_path(name), self._disk)

    get_ref = get

    def get_path(self, name: str) -> str:
        """Returns the path of a locked element's file, without checking that the file exists."""
        return f"{self.path}/{name}{LOCKED_SUFFIX}"

    def remove(self, name: str) -> None:
        """Removes a locked element. FileNotFoundError if it is not locked."""
        path = f"{self.path}/{name}"
        lock = path + LOCKED_SUFFIX
        if not os.access(lock, os.F_OK):
            # Raises FileNotFoundError with the path, as `access` does not.
            self._disk.lstat(lock)
        self._erase(path, lock)
        if self._sync:
            self._make_durable(name.partition("/")[0])

    def _erase(self, path: str, lock: str) -> None:
        unlink = self._disk.unlink
        unlink(path)
        try:  # noqa: SIM105 - suppress takes a microsecond
            unlink(lock)
        except FileNotFoundError:  # a purge has found it old
            pass

    # -- all of them ----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Counts the elements, locked or not, without temporary ones."""
        found = (names_in(f"{self.path}/{directory}") for directory in self._intermediate())
        return sum(sum(map(bool, map(is_element, names))) for names in found)

    def purge(self, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Removes temporary elements and locks that are too old, and all empty intermediate directories but the last.
        maxtemp, maxlock: their greatest age in seconds, 0 for no bound. Reads all names."""
        now = time.time()
        limits = {
            TEMPORARY_SUFFIX: now - maxtemp if maxtemp else None,
            LOCKED_SUFFIX: now - maxlock if maxlock else None,
        }
        directories = self._intermediate()
        if maxtemp or maxlock:
            for directory in directories:
                path = f"{self.path}/{directory}"
                for suffix, limit in limits.items():
                    if limit is not None:
                        self._purge(path, [name for name in names_in(path) if name.endswith(suffix)], limit)
        for directory in directories[:-1]:
            remove_if_empty(f"{self.path}/{directory}", self._disk)

    def _purge(self, directory: str, names: list[str], limit: float) -> None:
        """Removes the files that were changed before the limit."""
        old = [path for path in (f"{directory}/{name}" for name in names) if is_older(path, limit, self._disk)]
        if not old:
            return
        with contextlib.suppress(FileNotFoundError), alone(directory):
            if any(map(self._is_new, old)):
                time.sleep(_STEP)
            for path in old:
                if is_older(path, limit, self._disk):
                    with contextlib.suppress(FileNotFoundError):
                        self._disk.unlink(path)

    def _is_new(self, path: str) -> bool:
        """Tells whether a lock may have been linked just now, and have the element's old time still."""
        try:
            return self._disk.lstat(path).st_ctime > time.time() - _NEW
        except FileNotFoundError:
            return False
