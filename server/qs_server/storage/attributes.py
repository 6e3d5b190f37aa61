"""What a message's name does not say and a restart must not forget: how often it was received, until when it is delayed.

Extended attributes of the file, which renames carry along: `user.qs.receives` and `user.qs.delayed` (the end of the
delay, which counts only while it is also the file's extension). Where the file system has none: a hidden file beside it.
"""

import errno
import os
from typing import NamedTuple, Protocol

from .disk import Disk, has_no_room

_RECEIVES = "user.qs.receives"
_DELAYED = "user.qs.delayed"
_NONE = frozenset({errno.ENODATA, errno.ENOTSUP, errno.ENOENT})
_PROBE = "user.qs.probe"


class Attributes(NamedTuple):
    """receives: how often; delayed: the end of the delay, 0 when there never was one."""

    receives: int = 0
    delayed: int = 0


class AttributeStore(Protocol):
    """Keeps the attributes of the messages in one directory. path: of the file as it is named now."""

    def read(self, path: str, mid: int) -> Attributes: ...
    def receives(self, path: str, mid: int) -> int: ...
    def write(self, path: str, mid: int, attributes: Attributes) -> None: ...
    def forget(self, mid: int) -> None: ...


class ExtendedAttributes:
    """In the file itself."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, path: str, mid: int) -> Attributes:
        """Those of a message; none when the file is gone."""
        return Attributes(self._number(path, _RECEIVES), self._number(path, _DELAYED))

    def receives(self, path: str, mid: int) -> int:
        """How often a message was received."""
        return self._number(path, _RECEIVES)

    def _number(self, path: str, name: str) -> int:
        try:
            value = self._disk.getxattr(path, name, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NONE:
                return 0
            raise
        return int(value) if value.isdigit() else 0

    def write(self, path: str, mid: int, attributes: Attributes) -> None:
        """Replaces those of a message."""
        try:
            if attributes.receives:
                self._disk.setxattr(path, _RECEIVES, b"%d" % attributes.receives, follow_symlinks=False)
            if attributes.delayed:
                self._disk.setxattr(path, _DELAYED, b"%d" % attributes.delayed, follow_symlinks=False)
        except OSError as error:
            # Consuming is what makes room again, so it must go on when there is none.
            if error.errno not in _NONE and not has_no_room(error):
                raise

    def forget(self, mid: int) -> None:
        """They went with the file."""


class SidecarFiles:
    """In `.MID.attributes` beside the message."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._sync = sync

    def _path(self, mid: int) -> str:
        return f"{self._directory}/.{mid}.attributes"

    def read(self, path: str, mid: int) -> Attributes:
        """Those of a message; none when there is no sidecar."""
        try:
            fd = self._disk.open(self._path(mid), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Attributes()
        try:
            words = self._disk.read(fd, 100).split()
        finally:
            self._disk.close(fd)
        return Attributes(*map(int, words)) if len(words) == 2 and all(map(bytes.isdigit, words)) else Attributes()

    def receives(self, path: str, mid: int) -> int:
        """How often a message was received."""
        return self.read(path, mid).receives

    def write(self, path: str, mid: int, attributes: Attributes) -> None:
        """Replaces those of a message."""
        try:
            self._disk.write_file(self._path(mid), b"%d %d\n" % attributes, sync=self._sync)
        except OSError as error:
            if not has_no_room(error):
                raise

    def forget(self, mid: int) -> None:
        """Removes the sidecar of a message that is gone."""
        try:
            self._disk.unlink(self._path(mid))
        except FileNotFoundError:
            pass


def store_for(directory: str, disk: Disk, *, sync: bool) -> AttributeStore:
    """The kind of store that the directory's file system can carry. sync: whether a sidecar is synced when written."""
    try:
        disk.setxattr(directory, _PROBE, b"1")
        disk.removexattr(directory, _PROBE)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM, errno.EACCES):
            return SidecarFiles(directory, disk, sync=sync)
        if not has_no_room(error):
            raise
    return ExtendedAttributes(disk)
