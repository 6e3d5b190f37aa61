"""The file operations that the server needs of a layout of dirq."""

import contextlib
import errno
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..disk import Disk
from .element_names import ATTEMPTS, is_directory

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Staged:
    """A written message that is not visible. until: when it will be, 0: at once; size: bytes; temporary: its path;
    folder: the intermediate directory to be, empty: not chosen yet."""

    mid: int
    until: int
    size: int
    temporary: str
    folder: str = ""


IsOld = Callable[[str, int], bool]
"""Takes a path and seconds: whether the file has not changed for so long."""


class Listed(NamedTuple):
    """An intermediate directory: ids of free and of locked elements, names of everything else."""

    free: list[int]
    locked: list[int]
    others: list[str]


class Changes(Protocol):
    """Is told of our own changes after they were made."""

    on_new_folder: Callable[[str], None]
    """Takes an intermediate directory that may be new."""

    def expect(self, folder: str, event: int, name: str) -> None:
        """Notes a change that `inotify` will report."""


class Layout(ABC):
    """The file operations on one queue's elements. place: DIRECTORY/NAME. All raise OSError."""

    def __init__(self, path: str, disk: Disk, changes: Changes, *, sync: bool) -> None:
        """path: of the queue; sync: whether to keep back until a commit what the commit has to cover."""
        self.path = path
        self._disk = disk
        self._sync = sync
        self._changes = changes
        self._expect = changes.expect

    def folders(self) -> list[str]:
        """Returns the intermediate directories, oldest first."""
        return sorted(filter(is_directory, self._disk.directories_in(self.path)))

    def element(self, place: str) -> str:
        return f"{self.path}/{place}"

    @abstractmethod
    def listed(self, folder: str) -> Listed:
        """Raises FileNotFoundError if the directory is gone."""

    @abstractmethod
    def clear_left_behind(self, folder: str, names: list[str], is_old: IsOld) -> None:
        """Removes what crashes left in an intermediate directory, or elsewhere (""). names: the others of `listed`."""

    @abstractmethod
    def being_written(self) -> set[int]:
        """Returns the ids of elements that are being added, as far as they have one."""

    @abstractmethod
    def is_locked(self, place: str) -> bool: ...

    @abstractmethod
    def lock(self, place: str) -> bool:
        """Returns False if the element is locked or gone."""

    @abstractmethod
    def unlock(self, place: str) -> None:
        """Unlocks an element that we have locked."""

    @abstractmethod
    def size(self, place: str, status: os.stat_result) -> int | None:
        """Returns bytes of payload; None for no message. status: of the element. FileNotFoundError."""

    @abstractmethod
    def read(self, place: str) -> bytes:
        """Reads the payload."""

    @abstractmethod
    def erase(self, place: str) -> None:
        """Removes an element that we have locked. FileNotFoundError."""

    @abstractmethod
    def bury(self) -> None:
        """Removes what is left of erased elements after a commit. Raises nothing."""

    def write(self, mid: int, payload: bytes, until: int) -> Staged:
        """Writes a message under a name that is no element's, again if another program's purge has removed its empty
        directory. until: when it becomes visible, 0: at once. FileExistsError; FileNotFoundError if the queue is
        gone; UnsupportedError for the payload."""
        staged = self._prepare(mid, payload, until)
        for _ in range(ATTEMPTS):
            try:
                self._write(staged, payload)
            except FileNotFoundError:
                self._make_above(staged)
            else:
                return staged
        raise FileNotFoundError(errno.ENOENT, f"removed by another program {ATTEMPTS} times", staged.temporary)

    @abstractmethod
    def _prepare(self, mid: int, payload: bytes, until: int) -> Staged:
        """Returns what `_write` writes. UnsupportedError."""

    @abstractmethod
    def _write(self, staged: Staged, payload: bytes) -> None:
        """Writes a message, or raises OSError and leaves nothing."""

    @abstractmethod
    def _make_above(self, staged: Staged) -> None:
        """Makes the directory that `_write` needs, unless it exists."""

    @abstractmethod
    def lock_staged(self, staged: Staged) -> None:
        """Locks a message that becomes visible later, now or in `publish`."""

    @abstractmethod
    def sync_staged(self, staged: Staged) -> None:
        """Makes the content durable."""

    @abstractmethod
    def publish(self, staged: Staged) -> str:
        """Makes it an element. Returns its intermediate directory. FileExistsError."""

    @abstractmethod
    def discard(self, staged: Staged) -> None:
        """Raises nothing."""

    @abstractmethod
    def dismantle(self) -> None:
        """Removes everything but elements and hidden files. OSError ENOTEMPTY if there is an element."""

    def _make_folder(self, folder: str) -> None:
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(f"{self.path}/{folder}")
        self._changes.on_new_folder(folder)

    def _remove_folder(self, folder: str) -> None:
        """Raises OSError ENOTEMPTY."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.rmdir(f"{self.path}/{folder}")

    def _fill(self, fd: int, payload: bytes) -> None:
        """Writes a payload into a new file, and closes it."""
        try:
            self._disk.write(fd, payload)
            if self._sync:
                self._disk.begin_writing(fd)
        finally:
            self._disk.close(fd)

    def _try_unlink(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                _logger.warning("%s stays behind: %s", path, error)
