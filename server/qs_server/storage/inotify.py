"""Linux's inotify: which names change in which directories, in order, for as long as nobody asks.

Python has no binding of its own; these are the three calls and the record of inotify(7).
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
OVERFLOW = 0x4000
IGNORED = 0x8000
IS_DIRECTORY = 0x40000000
_ONLY_DIRECTORY = 0x01000000
_NONBLOCK = 0o4000
_CLOEXEC = 0o2000000
_RECORD = struct.Struct("iIII")
_BUFFER = 256 * 1024


class Event(NamedTuple):
    """watch: what `add` gave; mask: one of the constants above, maybe with IS_DIRECTORY; name: in the directory."""

    watch: int
    mask: int
    name: bytes


class Inotify:
    """One instance; events of all its watches come in the order in which they happened."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._checked(self._libc.inotify_init1(_NONBLOCK | _CLOEXEC), "inotify_init1")

    def _checked(self, result: int, what: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            hint = {
                errno.ENOSPC: "; raise fs.inotify.max_user_watches",
                errno.EMFILE: "; raise fs.inotify.max_user_instances",
            }.get(code, "")
            raise OSError(code, os.strerror(code) + hint, what)
        return result

    def add(self, directory: str, mask: int) -> int:
        """Watches a directory; a number that its events carry."""
        return self._checked(
            self._libc.inotify_add_watch(self.fd, os.fsencode(directory), mask | _ONLY_DIRECTORY), directory
        )

    def remove(self, watch: int) -> None:
        """Stops watching. An event IGNORED follows."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def events(self) -> Iterator[Event]:
        """What has happened since the last call; never waits."""
        while True:
            try:
                data = os.read(self.fd, _BUFFER)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, mask, _, length = _RECORD.unpack_from(data, at)
                at += _RECORD.size
                yield Event(watch, mask, data[at : at + length].rstrip(b"\0"))
                at += length
            if len(data) < _BUFFER // 2:
                return

    def close(self) -> None:
        """Stops all watches."""
        os.close(self.fd)
