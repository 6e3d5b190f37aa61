# ruff: noqa: N999 - programs import the module under this name
"""The base of all directory queues: the directory, and a cursor over its elements."""

import copy
import os
import random
from typing import Self

from ..disk import Disk
from .elements import DurableDirectory, is_directory, is_element, make_directory, names_in, touch


class QueueBase:
    """A directory and one cursor over its elements: the queue is its own iterator, as in dirq. The cursor's methods
    are for one thread at a time, all others for several."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        umask: int | None = None,
        rndhex: int | None = None,
        sync: bool = True,
        disk: Disk | None = None,
    ) -> None:
        """See the subclasses."""
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
        """Those of _directory, the next one last."""

    def _intermediate(self) -> list[str]:
        """Returns the intermediate directories, oldest first."""
        return sorted(filter(is_directory, names_in(self.path)))

    def _begin(self) -> None:
        self._forget()
        self._directories = self._intermediate()[::-1]

    def _advance(self) -> str:
        """Returns the next name, "" at the end."""
        while not self._elements:
            if not self._directories:
                return ""
            self._directory = self._directories.pop()
            names = names_in(f"{self.path}/{self._directory}")
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
        """Returns the first element's name, or "". Reads and caches what comes next. OSError."""
        self._begin()
        return self.next()

    def next(self) -> str:
        """Returns the next element's name from the cache. At the end "", or StopIteration after iter() or names()."""
        name = self._advance()
        if not name and self._iterating:
            self._iterating = False
            raise StopIteration
        return name

    def copy(self) -> Self:
        """Returns another object for the queue, with its own cursor at the same place."""
        new = copy.copy(self)
        new._directories = self._directories.copy()
        new._elements = self._elements.copy()
        return new

    def count(self) -> int:
        """Counts the elements, locked or not, without those being added or removed."""
        raise NotImplementedError("unsupported method: count()")

    def touch(self, ename: str) -> None:
        """Renews the lock of an element, so that `purge` does not take it for an old one. OSError."""
        touch(f"{self.path}/{ename}")


def _integer(name: str, value: int | None) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"'{name}' should be an integer, not {value!r}")
    return value
