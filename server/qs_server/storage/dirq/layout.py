"""What the two layouts of dirq have in common for a queue of the server, and what each has to say."""

import contextlib
import errno
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..disk import Disk
from .names import ATTEMPTS, is_directory

_logger = logging.getLogger(__name__)


class Owner(Protocol):
    """Is told of changes of ours, each after it was done."""

    def expect(self, folder: str, event: int, name: str) -> None:
        """One that inotify reports: the intermediate directory, what it is reported as, the name in it."""

    def folder_made(self, folder: str) -> None:
        """There is an intermediate directory."""


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
"""Whether a path was not changed for so many seconds."""


class Listed(NamedTuple):
    """What an intermediate directory holds: ids of elements that are not locked and of those that are, and names of
    what is neither."""

    free: list[int]
    locked: list[int]
    others: list[str]


class Layout(ABC):
    """The file operations on the elements of one queue. place: DIRECTORY/NAME. Any raises OSError."""

    def __init__(self, path: str, disk: Disk, *, sync: bool, owner: Owner) -> None:
        """path: the queue's directory; sync: what `commit` is going to cover is kept apart until then."""
        self.path = path
        self._disk = disk
        self._sync = sync
        self._owner = owner
        self._expect = owner.expect

    def folders(self) -> list[str]:
        """The names of the intermediate directories, oldest first."""
        return sorted(filter(is_directory, self._disk.directories_in(self.path)))

    def element(self, place: str) -> str:
        """The path of an element."""
        return f"{self.path}/{place}"

    @abstractmethod
    def listed(self, folder: str) -> Listed:
        """FileNotFoundError when the directory is gone."""

    @abstractmethod
    def clear_left_behind(self, folder: str, names: list[str], is_old: IsOld) -> None:
        """Removes what a crash left of elements in an intermediate directory ("": elsewhere). names: the others of
        `listed`."""

    @abstractmethod
    def being_written(self) -> set[int]:
        """The ids of elements that somebody is adding now, as far as they have one."""

    @abstractmethod
    def is_locked(self, place: str) -> bool:
        """Whether somebody has locked an element."""

    @abstractmethod
    def lock(self, place: str) -> bool:
        """Locks an element. False when somebody has it locked or removed."""

    @abstractmethod
    def unlock(self, place: str) -> None:
        """Unlocks an element that we have locked."""

    @abstractmethod
    def size(self, place: str, status: os.stat_result) -> int | None:
        """Bytes of payload; None when it is no message. status: of the element. FileNotFoundError when it is gone."""

    @abstractmethod
    def read(self, place: str) -> bytes:
        """The payload."""

    @abstractmethod
    def erase(self, place: str) -> None:
        """Removes an element that we have locked. FileNotFoundError."""

    def write(self, mid: int, payload: bytes, until: int) -> Staged:
        """Writes a message under a name that no program takes for an element. Tries again when a purge of another
        program has removed the directory for it, which is empty until then. until: when it becomes visible, 0: at once.
        FileExistsError when there is one of the name; FileNotFoundError when the queue is gone."""
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
        """What `_write` writes. UnsupportedError for a payload that cannot be in an element."""

    @abstractmethod
    def _write(self, staged: Staged, payload: bytes) -> None:
        """Writes it, or raises OSError and leaves nothing of it."""

    @abstractmethod
    def _make_above(self, staged: Staged) -> None:
        """Makes the directory that `_write` writes into, unless it is there."""

    @abstractmethod
    def lock_staged(self, staged: Staged) -> None:
        """What is going to be visible later has its lock before it has its name."""

    @abstractmethod
    def sync_staged(self, staged: Staged) -> None:
        """Makes its content durable."""

    @abstractmethod
    def publish(self, staged: Staged) -> str:
        """Makes it an element: its intermediate directory. FileExistsError when that has one of the name."""

    @abstractmethod
    def discard(self, staged: Staged) -> None:
        """Removes it. Raises nothing."""

    def bury(self) -> None:  # noqa: B027 - most layouts keep nothing of what is erased
        """Removes what is left of erased elements, after a commit. Raises nothing."""

    @abstractmethod
    def dismantle(self) -> None:
        """Removes everything that is no element: OSError ENOTEMPTY when there is one."""

    def make_folder(self, folder: str) -> None:
        """An intermediate directory, unless it is there."""
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(f"{self.path}/{folder}")
        self._owner.folder_made(folder)

    def _remove_folder(self, folder: str) -> None:
        """Removes an intermediate directory, unless it is gone. OSError ENOTEMPTY."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.rmdir(f"{self.path}/{folder}")

    def _try_unlink(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                _logger.warning("%s stays behind: %s", path, error)
