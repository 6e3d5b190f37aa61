"""A queue whose elements are directories: pieces of data, named and typed by a schema, each in a file.

The steps of an addition: write the files in a directory in `temporary`, sync them and it; rename it into the last
intermediate directory; sync that. A lock is the directory `locked` in an element; when it is made, the time of the
element's last change becomes that of the lock. A removal renames the element into `obsolete` first.
"""

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ..disk import Disk
from .base import QueueBase, QueueError, QueueLockError, QueueSet
from .elements import (
    ATTEMPTS,
    LOCKED_DIRECTORY,
    OBSOLETE_DIRECTORY,
    TEMPORARY_DIRECTORY,
    alone,
    count_elements,
    element_name,
    is_being_added,
    is_full_name,
    is_older,
    is_taken,
    lock_directory,
    make_obsolete,
    masked,
    names_in,
    read_file,
    remove_element,
    remove_if_empty,
)
from .schema import Schema, is_piece

__all__ = ["Queue", "QueueError", "QueueLockError", "QueueSet"]

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_NO_SCHEMA: Final[Mapping[str, str]] = MappingProxyType({})


class Queue(QueueBase):
    """A queue whose elements are dictionaries with a schema, as in dirq's Queue and Perl's Directory::Queue::Normal.

    Ensures that an element is there as a whole or not at all, also after a power loss unless `sync` is off, and that it
    is locked by one program at a time. Never waits for a lock."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        umask: int | None = None,
        maxelts: int = 16000,
        schema: Mapping[str, str] | None = _NO_SCHEMA,
        *,
        rndhex: int | None = None,
        sync: bool = True,
        disk: Disk | None = None,
    ) -> None:
        """path, umask, rndhex, sync, disk: as for QueueSimple. maxelts: the most elements of an intermediate directory.
        schema: types of the pieces of data by name (letters and digits): `binary` for bytes, `string`, or `table` for a
        dictionary of strings. A `?` after the type makes the piece optional, a `*` is ignored. The methods `add` and
        `get` need a schema. TypeError, QueueError for a wrong schema, OSError."""
        if not isinstance(maxelts, int):
            raise TypeError(f"'maxelts' should be an integer, not {maxelts!r}")
        self.maxelts = maxelts
        self._schema = Schema(schema)
        super().__init__(path, umask, rndhex, sync, disk)
        self._make(TEMPORARY_DIRECTORY)
        self._make(OBSOLETE_DIRECTORY)

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(self, data: Mapping[str, Any]) -> str:
        """Stores an element of these pieces. Returns its name, DIRECTORY/ELEMENT. If it raises, nothing is stored:
        QueueError without a schema, or for data that does not fit the schema; OSError."""
        contents = self._schema.encode(data)
        temporary = self._write(contents)
        try:
            name = self._rename(temporary)
        except BaseException:
            self._drop(temporary)
            raise
        try:
            self._make_durable(name.partition("/")[0])
        except BaseException:
            with contextlib.suppress(OSError, QueueError):  # unless somebody has it already
                if self.lock(name):
                    self._erase(name)
            raise
        return name

    enqueue = add

    def _write(self, contents: Mapping[str, bytes]) -> str:
        """Writes a temporary element. Returns its path."""
        for attempt in range(ATTEMPTS):
            temporary = f"{self.path}/{TEMPORARY_DIRECTORY}/{element_name(self.rndhex, attempt)}"
            try:
                with masked(self.umask):
                    self._disk.mkdir(temporary)
            except FileExistsError:
                continue
            except FileNotFoundError:
                self._make(TEMPORARY_DIRECTORY)
                continue
            try:
                for name, content in contents.items():
                    # Each piece is synced, then the directory: a rename must not make visible what a power loss
                    # takes.
                    self._write_file(f"{temporary}/{name}", content)
                if self._sync:
                    self._disk.sync_directory(temporary)
            except FileNotFoundError:
                self._drop(temporary)  # dirq's purge removes temporary elements that have no file yet, however new
            except BaseException:
                self._drop(temporary)
                raise
            else:
                return temporary
        raise FileExistsError(errno.EEXIST, f"no free name in {ATTEMPTS} attempts", temporary)

    def _write_file(self, path: str, content: bytes) -> None:
        with masked(self.umask):
            fd = self._disk.open(path, _NEW_FILE, 0o666)
        try:
            self._disk.write(fd, content)
            if self._sync:
                self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    def _rename(self, temporary: str) -> str:
        """Makes a complete element visible. Returns its name."""
        for attempt in range(ATTEMPTS):
            name = f"{self._insertion_directory()}/{element_name(self.rndhex, attempt)}"
            try:
                self._disk.rename(temporary, f"{self.path}/{name}")
            except FileNotFoundError:  # the intermediate directory has just been purged
                if not os.path.lexists(temporary):
                    raise
            except OSError as error:
                if not is_taken(error):
                    raise
            else:
                return name
        raise FileExistsError(errno.EEXIST, f"no free name in {ATTEMPTS} attempts", f"{self.path}/{name}")

    def _insertion_directory(self) -> str:
        """Returns the last intermediate directory, or a new one if it is full."""
        directories = self._intermediate()
        if not directories:
            name = f"{0:08x}"
        elif self._size(directories[-1]) < self.maxelts:
            return directories[-1]
        else:
            name = f"{int(directories[-1], 16) + 1:08x}"
        self._make(name)
        return name

    def _size(self, directory: str) -> int:
        return count_elements(f"{self.path}/{directory}", self._disk)

    def _drop(self, temporary: str) -> None:
        with contextlib.suppress(OSError):  # the error that has led here says more
            for name in names_in(temporary):
                self._disk.unlink(f"{temporary}/{name}")
            self._disk.rmdir(temporary)

    # -- locking --------------------------------------------------------------------------------------------------

    def lock(self, ename: str, permissive: bool = True) -> bool:
        """Locks an element. Returns False if the element is locked or gone; without permissive, raises FileExistsError
        or FileNotFoundError instead. OSError; QueueError for a bad name."""
        _check_name(ename)
        try:
            lock_directory(f"{self.path}/{ename}", self._disk, self.umask)
        except (FileExistsError, FileNotFoundError):
            if permissive:
                return False
            raise
        return True

    def unlock(self, ename: str, permissive: bool = False) -> bool:
        """Unlocks an element. If the element was not locked, returns False with permissive, and raises
        FileNotFoundError without. QueueError."""
        _check_name(ename)
        try:
            self._disk.rmdir(f"{self.path}/{ename}/{LOCKED_DIRECTORY}")
        except FileNotFoundError:
            if permissive:
                return False
            raise
        return True

    def _check_locked(self, ename: str, what: str) -> None:
        _check_name(ename)
        if not os.path.lexists(f"{self.path}/{ename}/{LOCKED_DIRECTORY}"):
            raise QueueError(f"cannot {what} {ename}: not locked (lock it first, and see what that returns)")

    # -- locked elements ------------------------------------------------------------------------------------------

    def get(self, ename: str) -> dict[str, Any]:
        """Returns the pieces of a locked element, in the order of the schema, without missing optional ones. QueueError
        without a schema or a lock, for a missing mandatory piece, or a file that is not a table; OSError for a file
        that cannot be read, or is not UTF-8."""
        types = self._schema.needed()
        self._check_locked(ename, "get")
        data: dict[str, Any] = {}
        for name in types:
            path = f"{self.path}/{ename}/{name}"
            try:
                content = read_file(path, self._disk)
            except FileNotFoundError:
                if name in self._schema.mandatory:
                    raise QueueError(f"missing data file: {path}") from None
                continue
            data[name] = self._schema.decode(name, content, path)
        return data

    def dequeue(self, ename: str, permissive: bool = True) -> dict[str, Any]:
        """Locks, gets and removes an element. If the element cannot be locked, raises QueueLockError (without
        permissive, the errors of `lock`). Otherwise raises the errors of `get` and `remove`, and unlocks the
        element."""
        with self._locked(ename, permissive):
            element = self.get(ename)
            self.remove(ename)
        return element

    def get_element(self, ename: str, permissive: bool = True) -> dict[str, Any]:
        """Locks, gets and unlocks an element. Raises the errors of `dequeue`. permissive: see `lock` and `unlock`."""
        with self._locked(ename, permissive):
            element = self.get(ename)
        self.unlock(ename, permissive)
        return element

    @contextlib.contextmanager
    def _locked(self, ename: str, permissive: bool) -> Any:
        """Locks an element, and unlocks it if the with block fails."""
        if not self.lock(ename, permissive):
            raise QueueLockError(f"couldn't lock element: {ename} (somebody else has it, or it is gone)")
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlock(ename, permissive=True)
            raise

    def remove(self, ename: str) -> None:
        """Removes a locked element. QueueError if it is not locked, or has a file that is not a piece of data.
        OSError."""
        self._check_locked(ename, "remove")
        self._erase(ename)

    def _erase(self, ename: str) -> None:
        path = f"{self.path}/{ename}"
        for name in names_in(path):
            # Looked at before anything goes: an element with a file that nobody knows of is left whole.
            if not is_piece(name):
                raise QueueError(f"unexpected file in {path}: {name} (remove it if it is not needed)")
        obsolete = make_obsolete(self.path, ename, self.rndhex, self._disk, self._make)
        # First: or a power loss could bring the element back without some of its pieces.
        self._make_durable(ename.partition("/")[0])
        remove_element(obsolete, self._disk)

    # -- all of them ----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Counts the elements, locked or not, without those being added or removed."""
        return sum(map(self._size, self._intermediate()))

    def purge(self, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Removes all empty intermediate directories but the last, elements that have been under addition or removal
        for maxtemp seconds, and locks older than maxlock seconds (0 for no bound). Looks at all elements, and moves the
        cursor to the end."""
        # Not the last one: others may be adding to it just now.
        for directory in self._intermediate()[:-1]:
            remove_if_empty(f"{self.path}/{directory}", self._disk)
        now = time.time()
        if maxtemp:
            for directory in (TEMPORARY_DIRECTORY, OBSOLETE_DIRECTORY):
                for name in filter(is_being_added, names_in(f"{self.path}/{directory}")):
                    path = f"{self.path}/{directory}/{name}"
                    if is_older(path, now - maxtemp, self._disk):
                        remove_element(path, self._disk)
        if maxlock:
            self._begin()
            while name := self._advance():
                self._purge_lock(name, now - maxlock)

    def _purge_lock(self, ename: str, limit: float) -> None:
        if not self._has_old_lock(ename, limit):
            return
        with contextlib.suppress(FileNotFoundError), alone(f"{self.path}/{ename}"):
            if self._has_old_lock(ename, limit):
                self.unlock(ename, permissive=True)

    def _has_old_lock(self, ename: str, limit: float) -> bool:
        path = f"{self.path}/{ename}"
        # In this order: the time of an element that is locked only now would be from before.
        return os.path.lexists(f"{path}/{LOCKED_DIRECTORY}") and is_older(path, limit, self._disk)


def _check_name(name: str) -> None:
    if not is_full_name(name):
        raise QueueError(f"invalid element name: {name!r} (8 hexadecimal digits, a slash, 14 hexadecimal digits)")
