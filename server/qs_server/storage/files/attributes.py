"""What a message's name does not say and a restart must not forget: how often it was received, how long it is delayed.

Extended attributes of the file, which renames carry along: `user.qs.receives` and `user.qs.delayed` (the end of the
delay, which counts only while it is also the file's extension). Where the file system has none: a hidden file beside
it.
"""

import contextlib
import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..disk import NO_ROOM, Disk

_RECEIVES = "user.qs.receives"
_DELAYED = "user.qs.delayed"
_PROBE = "user.qs.probe"
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_NONE = frozenset({errno.ENODATA, errno.ENOTSUP, errno.ENOENT}) | _DENIED
_SIDECAR = re.compile(r"\.([0-9]{1,18})\.attributes")


class Attributes(NamedTuple):
    """receives: how often; delayed: the end of the delay, 0 when there never was one."""

    receives: int = 0
    delayed: int = 0


class Stored(NamedTuple):
    """A message as a file of the layout vsqs has it. expiry: hidden until then, 0: visible."""

    mid: int
    expiry: int
    attributes: Attributes
    payload: bytes


class AttributeStore(ABC):
    """Keeps the attributes of the messages in one directory. path: of the file as it is named now."""

    def __init__(self) -> None:
        # Consuming is what makes room again, so it goes on when the disk is full; and it goes on with files of others
        # that we may not write to. What could not be written is known here for as long as the process lives.
        self._unwritten: dict[int, Attributes] = {}

    def read(self, path: str, mid: int) -> Attributes:
        """Those of a message; none when the file is gone."""
        stored = self._read(path, mid)
        unwritten = self._unwritten.get(mid)
        return stored if unwritten is None else max(stored, unwritten)

    def receives(self, path: str, mid: int) -> int:
        """How often a message was received."""
        return self.read(path, mid).receives

    def write(self, path: str, mid: int, attributes: Attributes, *, or_fail: bool = False) -> None:
        """Replaces those of a message. or_fail: a full disk raises OSError."""
        try:
            self._write(path, mid, attributes)
        except FileNotFoundError:
            return
        except OSError as error:
            if or_fail or error.errno not in NO_ROOM | _DENIED:
                raise
            self._unwritten[mid] = attributes
        else:
            self._unwritten.pop(mid, None)

    def forget(self, mid: int) -> None:
        """Those of a message that is gone."""
        self._unwritten.pop(mid, None)

    @abstractmethod
    def clear(self, names: Iterable[str], known: Callable[[int], bool]) -> None:
        """Forgets what others left behind. names: of all files in the directory but messages; known: whether a message
        is there."""

    @abstractmethod
    def _read(self, path: str, mid: int) -> Attributes: ...

    @abstractmethod
    def _write(self, path: str, mid: int, attributes: Attributes) -> None: ...


class ExtendedAttributes(AttributeStore):
    """In the file itself."""

    def __init__(self, disk: Disk, *, lists: bool = False) -> None:
        """lists: the file system lists attributes by their names, which most do. Then it is looked first whether there
        are any: most messages have none, and to ask for one that is not there takes twice as long."""
        super().__init__()
        self._disk = disk
        self._lists = lists

    def receives(self, path: str, mid: int) -> int:
        return self.read(path, mid).receives if mid in self._unwritten else self._numbers(path, _RECEIVES)[0]

    def _read(self, path: str, mid: int) -> Attributes:
        return Attributes(*self._numbers(path, _RECEIVES, _DELAYED))

    def _numbers(self, path: str, *names: str) -> list[int]:
        there = self._names(path) if self._lists else names
        return [self._number(path, name) if name in there else 0 for name in names]

    def _names(self, path: str) -> list[str]:
        try:
            return self._disk.listxattr(path, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NONE:
                return []
            raise

    def _number(self, path: str, name: str) -> int:
        try:
            value = self._disk.getxattr(path, name, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NONE:
                return 0
            raise
        return int(value) if value.isdigit() and len(value) <= 18 else 0

    def _write(self, path: str, mid: int, attributes: Attributes) -> None:
        for name, value in ((_RECEIVES, attributes.receives), (_DELAYED, attributes.delayed)):
            if value:
                self._disk.setxattr(path, name, b"%d" % value, follow_symlinks=False)

    def clear(self, names: Iterable[str], known: Callable[[int], bool]) -> None:
        """Nothing stays behind when a file goes."""


class SidecarFiles(AttributeStore):
    """In `.MID.attributes` beside the message."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        super().__init__()
        self._directory = directory
        self._disk = disk
        self._sync = sync

    def _path(self, mid: int) -> str:
        return f"{self._directory}/.{mid}.attributes"

    def _read(self, path: str, mid: int) -> Attributes:
        try:
            fd = self._disk.open(self._path(mid), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            return Attributes()
        try:
            words = self._disk.read(fd, 100).split()
        finally:
            self._disk.close(fd)
        return Attributes(*map(int, words)) if len(words) == 2 and all(map(bytes.isdigit, words)) else Attributes()

    def _write(self, path: str, mid: int, attributes: Attributes) -> None:
        self._disk.write_file(self._path(mid), b"%d %d\n" % attributes, sync=self._sync)

    def forget(self, mid: int) -> None:
        super().forget(mid)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._path(mid))

    def clear(self, names: Iterable[str], known: Callable[[int], bool]) -> None:
        for name in names:
            match = _SIDECAR.fullmatch(name)
            if match is not None and not known(int(match[1])):
                self.forget(int(match[1]))


def store_for(directory: str, disk: Disk, *, sync: bool) -> AttributeStore:
    """The kind of store that the directory's file system can carry. sync: whether a sidecar is synced when written."""
    lists = False
    try:
        disk.setxattr(directory, _PROBE, b"1")
        with contextlib.suppress(OSError):
            lists = _PROBE in disk.listxattr(directory)
        disk.removexattr(directory, _PROBE)
    except OSError as error:
        if error.errno in _DENIED | {errno.ENOTSUP}:
            return SidecarFiles(directory, disk, sync=sync)
        # ENODATA: another process asked at the same time and was faster to clean up.
        if error.errno not in NO_ROOM | {errno.ENODATA}:
            raise
    return ExtendedAttributes(disk, lists=lists)
