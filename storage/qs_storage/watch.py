"""Reports other processes' changes of directories, without those of this process.

The kernel reports all changes in order. Operations of this process note the events that they will cause, and an event
that is the next noted one is dropped. All others go to the owner of the directory, which asks the disk whether the
report is still true. `Inotify` calls Linux's inotify(7), for which Python has no binding.
"""

import ctypes
import errno
import logging
import os
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

_logger = logging.getLogger(__name__)

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
"""Bytes that are read at a time: some thousand reports."""
_MESSAGE_EVENTS = CLOSE_WRITE | MOVED_FROM | MOVED_TO | DELETE
_QUEUE_EVENTS = CREATE | MOVED_FROM | MOVED_TO | DELETE
_APPEARED = CLOSE_WRITE | MOVED_TO | CREATE

Event = tuple[int, int, bytes]
"""A watch, one of the constants above, maybe with IS_DIRECTORY, and a name in the directory."""


class Inotify:
    """Linux's inotify(7), called through ctypes: Python has no binding. Never waits."""

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
            # Less than half a buffer: there is nothing more, and another call would only say so.
            if end < _BUFFER // 2:
                return events

    def close(self) -> None:
        """Closes the descriptor, which ends all watches."""
        os.close(self.fd)


# -- reports ----------------------------------------------------------------------------------------------------------


class Watched(Protocol):
    """The owner of a watched directory, which is told of changes by other processes: a store of messages, the root, an
    ingester, a folder of dirq."""

    def changed(self, name: bytes, *, appeared: bool, moved: bool = False) -> None:
        """Handles a file that another process made, renamed or removed. The file may have changed again since.
        appeared: True for a name that is there now, False for one that is gone; moved: True if by a rename."""

    def rescan(self) -> None:
        """Lists the directory. Called when reports were lost."""

    def vanished(self) -> None:
        """Handles the removal of the directory."""


class Watch:
    """Watches any number of directories, and reports what other processes change.

    Ensures that each change by another process is reported after it has happened, or `rescan` is called: reports may
    come late, twice, or about what has changed again, but none is missing. Changes of this process are left out.

    Assumes that each change of this process is noted with `expect`, in the order in which the kernel sees the changes,
    and that owners ask the disk. Without inotify, logs that once and reports nothing. Never waits."""

    def __init__(self) -> None:
        self._owners: dict[int, Watched] = {}
        self.expected: deque[tuple[int, int, bytes]] = deque()
        """Changes of this process whose reports were not read yet."""
        self._reporting = False
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
        except (OSError, AttributeError) as error:
            _logger.warning(
                "no inotify (%s): files that other programs put into queues are seen at the next start", error
            )

    def fileno(self) -> int | None:
        """Returns a descriptor that is readable when there are reports."""
        return None if self._inotify is None else self._inotify.fd

    def add(self, directory: str, owner: Watched, *, of_queues: bool = False) -> int:
        """Watches a directory of messages, or of queues. Returns the watch, -1 without inotify."""
        if self._inotify is None:
            return -1
        try:
            watch = self._inotify.add(directory, _QUEUE_EVENTS if of_queues else _MESSAGE_EVENTS)
        except FileNotFoundError:
            return -1  # the directory is gone, which the watch of its parent reports
        except OSError as error:
            _logger.warning(
                "%s cannot be watched (%s): foreign files in it are seen at the next start", directory, error
            )
            return -1
        self._owners[watch] = owner
        return watch

    def remove(self, watch: int) -> None:
        """Stops watching a directory. Ignores a watch that has ended."""
        if self._owners.pop(watch, None) is not None and self._inotify is not None:
            self._inotify.remove(watch)

    def expect(self, watch: int, event: int, name: str) -> None:
        """Notes a change of this process that `inotify` will report. Do not call it for files that are ignored."""
        if watch >= 0:
            self.expected.append((watch, event, name.encode()))

    def refresh(self) -> None:
        """Reports the changes since the last call. If an owner raises OSError, logs that."""
        if self._inotify is None or self._reporting:
            return  # called by an owner that handles a report: it gets the next one afterwards
        # An owner may do operations of its own, which read reports too.
        self._reporting = True
        try:
            expected = self.expected
            for event in self._inotify.events():
                # In order: the kernel reports all changes of a process in the order in which they were made.
                if expected and expected[0] == event:
                    expected.popleft()
                elif not _is_ignored(event):
                    self._foreign(*event)
            expected.clear()  # all events of ours have been read; any that is left will never come
        finally:
            self._reporting = False

    def _foreign(self, watch: int, mask: int, name: bytes) -> None:
        if mask & OVERFLOW:
            _logger.warning("more changes by other programs than the kernel could report; the queues are listed again")
            self.expected.clear()
            # The kernel has dropped reports: nobody knows of which directories.
            for each in list(self._owners):
                self._tell(each, lambda owner: owner.rescan())
        # The kernel has ended the watch: the directory is gone.
        elif mask & IGNORED:
            owner = self._owners.pop(watch, None)
            if owner is not None:
                owner.vanished()
        else:
            appeared, moved = bool(mask & _APPEARED), bool(mask & (MOVED_FROM | MOVED_TO))
            self._tell(watch, lambda owner: owner.changed(name, appeared=appeared, moved=moved))

    def _tell(self, watch: int, what: Callable[[Watched], None]) -> None:
        owner = self._owners.get(watch)
        if owner is None:
            return
        try:
            what(owner)
        except OSError as error:
            _logger.error("changes by other programs could not be read: %s", error)

    def close(self) -> None:
        """Stops watching all directories."""
        self._owners.clear()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _is_ignored(event: Event) -> bool:
    """Tells whether an event is about a file that is being written, or a file of a server."""
    _, mask, name = event
    return not mask & IS_DIRECTORY and (name[-4:] == b".new" or name[:1] == b".")
