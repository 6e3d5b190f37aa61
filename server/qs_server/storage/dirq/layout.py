"""The file operations on elements that a queue of the server needs of a layout of dirq."""

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
    """A message that is written and not visible yet: its id, when it becomes visible (0: at once), bytes of payload,
    where it is, and the intermediate directory that it is for (empty: to be found)."""

    mid: int
    until: int
    size: int
    temporary: str
    folder: str = ""


IsOld = Callable[[str, int], bool]
"""Tells whether a path was not changed for so many seconds."""


class Listed(NamedTuple):
    """The content of an intermediate directory: ids of elements that are not locked and of those that are, and names of
    everything else."""

    free: list[int]
    locked: list[int]
    others: list[str]


class Changes(Protocol):
    """Is told of our own changes of a queue's directory, each after it was made."""

    on_new_folder: Callable[[str], None]
    """Takes an intermediate directory that may be a new one."""

    def expect(self, folder: str, event: int, name: str) -> None:
        """Notes a change in an intermediate directory that will be reported as this: see `inotify`."""


class Layout(ABC):
    """The file operations on the elements of one queue. place: DIRECTORY/NAME. All raise OSError."""

    def __init__(self, path: str, disk: Disk, changes: Changes, *, sync: bool) -> None:
        """path: the queue's directory; changes: is told of changes of ours; sync: whether what a commit is going to
        cover is kept apart until then."""
        self.path = path
        self._disk = disk
        self._sync = sync
        self._changes = changes
        self._expect = changes.expect

    def folders(self) -> list[str]:
        """Returns the names of the intermediate directories, oldest first."""
        return sorted(filter(is_directory, self._disk.directories_in(self.path)))

    def element(self, place: str) -> str:
        """Returns the path of an element."""
        return f"{self.path}/{place}"

    @abstractmethod
    def listed(self, folder: str) -> Listed:
        """Lists an intermediate directory. FileNotFoundError when it is gone."""

    @abstractmethod
    def clear_left_behind(self, folder: str, names: list[str], is_old: IsOld) -> None:
        """Removes what a crash left of elements in an intermediate directory ("": elsewhere). names: the others of
        `listed`."""

    @abstractmethod
    def being_written(self) -> set[int]:
        """Returns the ids of elements that somebody is adding now, as far as they have one."""

    @abstractmethod
    def is_locked(self, place: str) -> bool:
        """Tells whether somebody has locked an element."""

    @abstractmethod
    def lock(self, place: str) -> bool:
        """Locks an element. False when somebody has it locked or removed."""

    @abstractmethod
    def unlock(self, place: str) -> None:
        """Unlocks an element that we have locked."""

    @abstractmethod
    def size(self, place: str, status: os.stat_result) -> int | None:
        """Returns the bytes of payload; None when it is no message. status: of the element. FileNotFoundError when it
        is gone."""

    @abstractmethod
    def read(self, place: str) -> bytes:
        """Reads the payload."""

    @abstractmethod
    def erase(self, place: str) -> None:
        """Removes an element that we have locked. FileNotFoundError."""

    @abstractmethod
    def bury(self) -> None:
        """Removes what is left of erased elements, after a commit. Raises nothing."""

    def write(self, mid: int, payload: bytes, until: int) -> Staged:
        """Writes a message under a name that no program takes for an element. Tries again when a purge of another
        program has removed the directory for it, which is empty until then. until: when it becomes visible, 0: at once.
        FileExistsError when there is one of the name; FileNotFoundError when the queue is gone; UnsupportedError for a
        payload that cannot be in an element."""
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
        """Writes it, or raises OSError and leaves nothing of it."""

    @abstractmethod
    def _make_above(self, staged: Staged) -> None:
        """Makes the directory that `_write` writes into, unless it is there."""

    @abstractmethod
    def lock_staged(self, staged: Staged) -> None:
        """Locks what is going to be visible later, before or when it gets its name."""

    @abstractmethod
    def sync_staged(self, staged: Staged) -> None:
        """Makes its content durable."""

    @abstractmethod
    def publish(self, staged: Staged) -> str:
        """Makes it an element. Returns its intermediate directory. FileExistsError when that has one of the name."""

    @abstractmethod
    def discard(self, staged: Staged) -> None:
        """Removes it. Raises nothing."""

    @abstractmethod
    def dismantle(self) -> None:
        """Removes everything that is no element, but for hidden files. OSError ENOTEMPTY when there is an element."""

    def _make_folder(self, folder: str) -> None:
        """Makes an intermediate directory, unless it is there."""
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(f"{self.path}/{folder}")
        self._changes.on_new_folder(folder)

    def _remove_folder(self, folder: str) -> None:
        """Removes an intermediate directory, unless it is gone. OSError ENOTEMPTY."""
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
