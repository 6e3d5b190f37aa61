"""Keeps metadata of messages over restarts, in the message's file or in a hidden file beside it."""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from .disk import NO_ROOM, Disk

_PROBE = "user.qs.probe"
_DENIED = frozenset({errno.EACCES, errno.EPERM})
ABSENT = frozenset({errno.ENODATA, errno.ENOTSUP, errno.ENOENT}) | _DENIED
"""Errors of an extended attribute that is missing or must not be read."""
_LARGEST = 2000
"""Bytes of the largest hidden file."""

Value = TypeVar("Value")


class Medium(Protocol[Value]):
    """Reads and writes metadata. path: of the file as it is named now. OSError."""

    def read(self, path: str, mid: int) -> Value:
        """Returns the default if there is none."""

    def write(self, path: str, mid: int, value: Value) -> None:
        """Raises FileNotFoundError if the message is gone."""


class Codec(NamedTuple, Generic[Value]):
    """The names and contents of hidden files: `.ID` and a suffix. base: 10, or 16 for 14 digits."""

    suffix: str
    base: int
    encode: Callable[[Value], bytes]
    decode: Callable[[bytes], Value]


class SidecarFiles(Generic[Value]):
    """Keeps metadata in hidden files in one directory."""

    def __init__(self, directory: str, disk: Disk, codec: Codec[Value], *, sync: bool) -> None:
        """sync: whether to sync written files."""
        self._directory = directory
        self._disk = disk
        self._codec = codec
        self._sync = sync
        self._spec, digits = ("014x", "[0-9a-f]{14}") if codec.base == 16 else ("d", "[0-9]{1,18}")
        self._match = re.compile(rf"\.({digits}){re.escape(codec.suffix)}").fullmatch

    def _path(self, mid: int) -> str:
        return f"{self._directory}/.{mid:{self._spec}}{self._codec.suffix}"

    def read(self, path: str, mid: int) -> Value:
        try:
            fd = self._disk.open_file(self._path(mid), os.O_RDONLY)
        except (FileNotFoundError, PermissionError):
            return self._codec.decode(b"")
        try:
            return self._codec.decode(self._disk.read(fd, _LARGEST))
        finally:
            self._disk.close(fd)

    def write(self, path: str, mid: int, value: Value) -> None:
        self._disk.write_file(self._path(mid), self._codec.encode(value) + b"\n", sync=self._sync)

    def remove(self, mid: int) -> None:
        """Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._path(mid))

    def orphans(self, names: Iterable[str], known: Callable[[int], bool]) -> Iterator[int]:
        """Yields the ids of files without a message, see MetadataStore.clear."""
        mids = (int(match[1], self._codec.base) for match in map(self._match, names) if match)
        return (mid for mid in mids if not known(mid))


class MetadataStore(Generic[Value]):
    """The metadata of one directory's messages. path: of the file as it is named now."""

    def __init__(self, medium: Medium[Value], merge: Callable[[Value, Value], Value]) -> None:
        """merge: joins the stored value and the one that could not be written."""
        self._medium = medium
        self._merge = merge
        self._sidecars = medium if isinstance(medium, SidecarFiles) else None
        self.beside = self._sidecars is not None
        """The metadata is in files of its own."""
        # Consuming makes room, so it has to work on a full disk, and also on files that we may not write to. Metadata
        # that could not be written is kept here for as long as the process lives.
        self.unwritten: dict[int, Value] = {}

    def read(self, path: str, mid: int) -> Value:
        """Returns the default for a message that is gone. OSError."""
        stored = self._medium.read(path, mid)
        unwritten = self.unwritten.get(mid)
        return stored if unwritten is None else self._merge(stored, unwritten)

    def write(self, path: str, mid: int, value: Value, *, or_fail: bool = False) -> None:
        """or_fail: a full disk raises OSError, as other failures do."""
        try:
            self._medium.write(path, mid, value)
        except FileNotFoundError:
            return
        except OSError as error:
            if or_fail or error.errno not in NO_ROOM | _DENIED:
                raise
            self.unwritten[mid] = value
        else:
            self.unwritten.pop(mid, None)

    def forget(self, mid: int) -> None:
        """Removes metadata of a message that is gone. OSError."""
        self.unwritten.pop(mid, None)
        if self._sidecars is not None:
            self._sidecars.remove(mid)

    def clear(self, names: Collection[str], known: Callable[[int], bool]) -> None:
        """Removes metadata without messages. names: of other files; known: tells whether a message exists. OSError."""
        for mid in () if self._sidecars is None else self._sidecars.orphans(names, known):
            self.forget(mid)


def read_attribute(disk: Disk, path: str, name: str) -> bytes:
    """Returns an extended attribute, empty if there is none. OSError."""
    try:
        return disk.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in ABSENT:
            return b""
        raise


def lists_attributes(directory: str, disk: Disk) -> bool | None:
    """Tells whether the file system lists extended attributes; None without any. Writes one to try it. OSError."""
    lists = False
    try:
        disk.setxattr(directory, _PROBE, b"1")
        with contextlib.suppress(OSError):
            lists = _PROBE in disk.listxattr(directory)
        disk.removexattr(directory, _PROBE)
    except OSError as error:
        if error.errno in _DENIED | {errno.ENOTSUP}:
            return None
        # ENODATA: another process tried at the same time and has removed the attribute.
        if error.errno not in NO_ROOM | {errno.ENODATA}:
            raise
    return lists
