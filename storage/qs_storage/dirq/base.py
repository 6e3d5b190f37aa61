"""What the queues of the library have in common, the errors, and two queues without a layout of their own: `QueueSet`
and `QueueNull`.

Beside these errors, OSError comes from the file system, and TypeError for arguments of a wrong type.
"""

import copy
import os
import random
from collections.abc import Sequence
from typing import NoReturn, Self

from ..disk import Disk
from ..engine import StorageError
from .elements import DurableDirectory, is_directory, is_element, make_directory, names_in, touch


class QueueError(StorageError):
    """A schema, an element's data, its name or its state does not allow the call."""


class QueueLockError(QueueError):
    """The element cannot be locked: another program has locked it, or it is gone."""


class QueueBase:
    """A directory and one cursor over its elements: the queue is its own iterator, as in dirq, whose programs rely on
    it.

    Ensures that names come in the order of time, and that a loop which misses an element added meanwhile leaves it to
    the next loop. The cursor's methods are for one thread at a time, all others for several."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        umask: int | None = None,
        rndhex: int | None = None,
        sync: bool = True,
        disk: Disk | None = None,
    ) -> None:
        """Makes the directory if it is missing. The subclasses describe the arguments."""
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"'path' should be a string, not {path!r}")
        self.path = os.fspath(path)
        self.umask = _integer("umask", umask)
        chosen = _integer("rndhex", rndhex)
        self.rndhex = random.randint(0, 15) if chosen is None else chosen % 16  # noqa: S311 - no secret
        self._sync = bool(sync)
        self._disk = disk or Disk()
        self._durable = DurableDirectory()
        self._forget()
        self._make("")
        status = os.stat(self.path)
        # By the directory itself, and not by its path: a set has each queue once, however it was named.
        self.id = f"{status.st_dev}:{status.st_ino}"

    def _make(self, directory: str) -> None:
        path = f"{self.path}/{directory}" if directory else self.path
        make_directory(path, self.umask, self._disk, sync=self._sync)

    def _make_durable(self, directory: str) -> None:
        """Syncs the names in an intermediate directory, unless syncing is off."""
        if self._sync:
            self._durable.sync(self.path, directory, self._disk)

    def _forget(self) -> None:
        self._iterating = False
        self._directories: list[str] = []
        """The directories to come, the next one last, where taking one is cheap."""
        self._directory = ""
        self._elements: list[str] = []
        """The elements of `_directory`, the next one last."""

    def _intermediate(self) -> list[str]:
        """Returns the intermediate directories, oldest first."""
        return sorted(filter(is_directory, names_in(self.path)))

    def _begin(self) -> None:
        self._forget()
        self._directories = self._intermediate()[::-1]

    def _advance(self) -> str:
        """Moves the cursor. Returns the next name, "" at the end."""
        while not self._elements:
            if not self._directories:
                return ""
            self._directory = self._directories.pop()
            names = names_in(f"{self.path}/{self._directory}")
            # A directory at a time: a queue may have a million elements.
            self._elements = sorted(filter(is_element, names), reverse=True)
        return f"{self._directory}/{self._elements.pop()}"

    def __iter__(self) -> Self:
        self._begin()
        self._iterating = True
        return self

    def names(self) -> Self:
        """Returns an iterator over the names of all elements, locked or not, oldest first."""
        return self.__iter__()

    def __next__(self) -> str:
        name = self._advance()
        if not name:
            self._iterating = False
            raise StopIteration
        return name

    def first(self) -> str:
        """Moves the cursor to the beginning, and reads names ahead. Returns the first element's name, or "".
        OSError."""
        self._begin()
        return self.next()

    def next(self) -> str:
        """Returns the next element's name from those read ahead. At the end, returns "", or raises StopIteration after
        iter() or names()."""
        name = self._advance()
        if not name and self._iterating:
            self._iterating = False
            raise StopIteration
        return name

    def copy(self) -> Self:
        """Returns another object for the queue, with a cursor of its own at the same element."""
        new = copy.copy(self)
        new._directories = self._directories.copy()
        new._elements = self._elements.copy()
        return new

    def count(self) -> int:
        """Counts the elements, locked or not, without those being added or removed."""
        raise NotImplementedError("unsupported method: count()")

    def touch(self, ename: str) -> None:
        """Renews the lock of an element, so that `purge` does not remove the lock as an old one. OSError."""
        touch(f"{self.path}/{ename}")


def _integer(name: str, value: int | None) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"'{name}' should be an integer, not {value!r}")
    return value


# -- a queue that keeps nothing ---------------------------------------------------------------------------------------


class QueueNull(QueueBase):
    """Drops what is added, and is always empty: for tests, and for data that nobody wants. QueueNull has no directory;
    methods that need an element raise NotImplementedError."""

    def __init__(self) -> None:
        self._forget()
        self.id = f"null:{id(self)}"

    def _intermediate(self) -> list[str]:
        return []

    def add(self, data: object) -> str:
        """Drops the data. Returns "" in place of a name."""
        return ""

    add_ref = add

    def add_path(self, path: str | os.PathLike[str]) -> str:
        """Removes the file. Returns "" in place of a name. OSError."""
        os.unlink(path)
        return ""

    def count(self) -> int:
        return 0

    def get(self, name: str) -> NoReturn:
        raise _no_elements("get")

    get_ref = get

    def get_path(self, name: str) -> NoReturn:
        raise _no_elements("get_path")

    def lock(self, name: str, permissive: bool = True) -> NoReturn:
        raise _no_elements("lock")

    def unlock(self, name: str, permissive: bool = False) -> NoReturn:
        raise _no_elements("unlock")

    def remove(self, name: str) -> NoReturn:
        raise _no_elements("remove")

    def touch(self, ename: str) -> NoReturn:
        raise _no_elements("touch")

    def purge(self, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Does nothing."""


def _no_elements(method: str) -> NotImplementedError:
    return NotImplementedError(f"unsupported method: {method}() (a null queue has no elements)")


# -- several queues as if they were one -------------------------------------------------------------------------------

Found = tuple[QueueBase, str] | tuple[None, None]
"""(None, None): there is no more."""


class QueueSet:
    """Merges the elements of several queues by name. Copies the queues, so that their own cursors stay where they
    are."""

    def __init__(self, *queues: QueueBase | Sequence[QueueBase]) -> None:
        """queues: one by one, or in a list or tuple. QueueError for a queue that is given twice; TypeError."""
        self.qset: list[QueueBase] = []
        self._iterating = False
        self._next: dict[str, str] = {}
        """The next element by queue id, "" at the end of a queue; missing: not read yet."""
        self.add(*queues)

    def add(self, *queues: QueueBase | Sequence[QueueBase]) -> None:
        """Adds queues, all or none. queues: as for the constructor."""
        wanted: list[QueueBase] = []
        for given in queues:
            wanted.extend(given if isinstance(given, list | tuple) else [given])  # type: ignore[list-item]
        known = {queue.id for queue in self.qset}
        for queue in wanted:
            _check(queue)
            if queue.id in known:
                raise QueueError(f"queue already in the set: {getattr(queue, 'path', queue.id)}")
            known.add(queue.id)
        self.qset += [queue.copy() for queue in wanted]
        self._begin()

    def remove(self, given_queue: QueueBase) -> None:
        """Removes the queue with the same directory, if the set has one. TypeError for anything but a queue."""
        _check(given_queue)
        self.qset = [queue for queue in self.qset if queue.id != given_queue.id]
        self._next.pop(given_queue.id, None)

    def count(self) -> int:
        return sum(queue.count() for queue in self.qset)

    def _begin(self) -> None:
        for queue in self.qset:
            queue._begin()
        self._next = {}
        self._iterating = False

    def _advance(self) -> Found:
        for queue in self.qset:
            if queue.id not in self._next:
                self._next[queue.id] = queue.next()
        ready = [queue for queue in self.qset if self._next[queue.id]]
        if not ready:
            return None, None
        queue = min(ready, key=lambda queue: self._next[queue.id])
        return queue, self._next.pop(queue.id)

    def __iter__(self) -> Self:
        self._begin()
        self._iterating = True
        return self

    def names(self) -> Self:
        """Returns an iterator over pairs of a queue and a name."""
        return self.__iter__()

    def __next__(self) -> tuple[QueueBase, str]:
        queue, name = self._advance()
        if queue is None or name is None:
            self._iterating = False
            raise StopIteration
        return queue, name

    def first(self) -> Found:
        """Moves all cursors to the beginning, and reads names ahead. Returns the first (queue, name), or (None, None).
        OSError."""
        self._begin()
        return self.next()

    def next(self) -> Found:
        """Returns the next (queue, name). At the end, returns (None, None), or raises StopIteration after iter() or
        names()."""
        found = self._advance()
        if found[0] is None and self._iterating:
            self._iterating = False
            raise StopIteration
        return found


def _check(queue: object) -> None:
    if not isinstance(queue, QueueBase):
        raise TypeError(f"directory queues expected, or a list or tuple of them, not {queue!r}")
