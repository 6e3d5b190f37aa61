"""What an element's name and lock do not say, and a restart must not forget.

One extended attribute of the element's file or directory, `user.qs.state`: how often it was received; until when it is
locked by a server of ours, 0 when it is not; whether that is a delay. Where the file system has no extended attributes:
a hidden file in the queue's directory.

Whether a lock is ours: when the time of the element's last change is not after the end of the window. A server of ours
sets it to that end. Any other program's lock sets it to the present, and comes after the end of the window if it comes
at all: until then there is our lock, and afterwards dirq's `purge`, which goes by the same time, leaves it for as long
again as it leaves every lock.
"""

import contextlib
import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..disk import NO_ROOM, Disk
from ..files.attributes import SidecarFiles, store_for

_STATE = "user.qs.state"
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_NONE = frozenset({errno.ENODATA, errno.ENOTSUP, errno.ENOENT}) | _DENIED
_STATE_OF = re.compile(rb"([0-9]{1,18}) ([0-9]{1,18}) ([01])\n?")
_SIDECAR = re.compile(r"\.([0-9a-f]{14})\.state")
_LATEST_STAMP = 2**31 - 1
"""Seconds: the last time that every file system can keep."""


class Marks(NamedTuple):
    """receives: how often; until: the end of the window or the delay, 0 when a server of ours has no lock."""

    receives: int = 0
    until: int = 0
    delayed: bool = False


class MarkStore(ABC):
    """Keeps the marks of the elements of one queue. path: of the element, or what becomes it."""

    beside = False
    """Whether they are files in the queue's directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        # As in AttributeStore: consuming goes on when the disk is full, and with elements that others own.
        self._unwritten: dict[int, Marks] = {}

    def read(self, path: str, mid: int) -> Marks:
        """Those of an element; none when it is gone."""
        unwritten = self._unwritten.get(mid)
        return self._read(path, mid) if unwritten is None else unwritten

    def write(self, path: str, mid: int, marks: Marks, *, or_fail: bool = False) -> None:
        """Replaces those of an element. or_fail: a full disk raises OSError."""
        try:
            self._write(path, mid, marks)
        except FileNotFoundError:
            return
        except OSError as error:
            if or_fail or error.errno not in NO_ROOM | _DENIED:
                raise
            self._unwritten[mid] = marks
        else:
            self._unwritten.pop(mid, None)

    def forget(self, mid: int) -> None:
        """Those of an element that is gone."""
        self._unwritten.pop(mid, None)

    def clear(self, names: Iterable[str], known: Callable[[int], bool]) -> None:  # noqa: B027 - only if it is `beside`
        """Forgets what others left behind. names: of what is in the queue's directory; known: whether there is such an
        element."""

    @abstractmethod
    def _read(self, path: str, mid: int) -> Marks: ...

    @abstractmethod
    def _write(self, path: str, mid: int, marks: Marks) -> None: ...


class _InAttributes(MarkStore):
    def _read(self, path: str, mid: int) -> Marks:
        try:
            return _decode(self._disk.getxattr(path, _STATE, follow_symlinks=False))
        except OSError as error:
            if error.errno in _NONE:
                return Marks()
            raise

    def _write(self, path: str, mid: int, marks: Marks) -> None:
        self._disk.setxattr(path, _STATE, _encode(marks), follow_symlinks=False)


class _InFiles(MarkStore):
    """In `.NAME.state`."""

    beside = True

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        super().__init__(disk)
        self._directory = directory
        self._sync = sync

    def _path(self, mid: int) -> str:
        return f"{self._directory}/.{mid:014x}.state"

    def _read(self, path: str, mid: int) -> Marks:
        try:
            fd = self._disk.open(self._path(mid), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            return Marks()
        try:
            return _decode(self._disk.read(fd, 200))
        finally:
            self._disk.close(fd)

    def _write(self, path: str, mid: int, marks: Marks) -> None:
        self._disk.write_file(self._path(mid), _encode(marks) + b"\n", sync=self._sync)

    def forget(self, mid: int) -> None:
        super().forget(mid)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._path(mid))

    def clear(self, names: Iterable[str], known: Callable[[int], bool]) -> None:
        for name in names:
            match = _SIDECAR.fullmatch(name)
            if match is not None and not known(int(match[1], 16)):
                self.forget(int(match[1], 16))


def marks_for(directory: str, disk: Disk, *, sync: bool) -> MarkStore:
    """The kind of store that the directory's file system can carry. sync: whether a file is synced when written."""
    if isinstance(store_for(directory, disk, sync=sync), SidecarFiles):
        return _InFiles(directory, disk, sync=sync)
    return _InAttributes(disk)


def _encode(marks: Marks) -> bytes:
    return b"%d %d %d" % marks


def _decode(value: bytes) -> Marks:
    found = _STATE_OF.fullmatch(value)
    if found is None:
        return Marks()
    receives, until, delayed = found.groups()
    return Marks(int(receives), int(until), delayed == b"1")


def stamp(path: str, until: int) -> None:
    """Says in the time of an element's last change until when its lock is ours. Only its owner can; without, another
    program's `purge` may take our lock for an old one earlier."""
    when = min(until // 1_000_000, _LATEST_STAMP) * 1_000_000_000 + until % 1_000_000 * 1000
    if until // 1_000_000 > _LATEST_STAMP:
        when = _LATEST_STAMP * 1_000_000_000
    with contextlib.suppress(PermissionError, FileNotFoundError):
        os.utime(path, ns=(when, when))


def is_ours(marks: Marks, status: os.stat_result) -> bool:
    """Whether the lock of an element that is locked was made by a server of ours. status: looked up after the lock."""
    return marks.until > 0 and status.st_mtime_ns // 1000 <= marks.until
