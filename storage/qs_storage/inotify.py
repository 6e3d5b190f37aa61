"""Calls Linux's inotify(7), for which Python has no binding: it reports changes of names in directories, in order."""

import ctypes
import errno
import os
import struct

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
_HEADER = _RECORD.size
_unpack = _RECORD.unpack_from
_BUFFER = 64 * 1024


Event = tuple[int, int, bytes]
"""A watch, one of the constants above, maybe with IS_DIRECTORY, and a name in the directory."""


class Inotify:
    def __init__(self) -> None:
        # One buffer for all calls: malloc is slow for this size, and a request makes several calls.
        self._buffer = bytearray(_BUFFER)
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
        """Watches a directory. Returns the watch. OSError."""
        return self._checked(
            self._libc.inotify_add_watch(self.fd, os.fsencode(directory), mask | _ONLY_DIRECTORY), directory
        )

    def remove(self, watch: int) -> None:
        """Stops watching. An event IGNORED follows."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def events(self) -> list[Event]:
        """Returns the events since the last call, in order; never waits."""
        events: list[Event] = []
        data = self._buffer
        while True:
            try:
                end = os.readv(self.fd, (data,))
            except BlockingIOError:
                return events
            at = 0
            while at < end:
                watch, mask, _, length = _unpack(data, at)
                at += _HEADER
                events.append((watch, mask, bytes(data[at : at + length]).rstrip(b"\0")))
                at += length
            if end < _BUFFER // 2:
                return events

    def close(self) -> None:
        os.close(self.fd)
