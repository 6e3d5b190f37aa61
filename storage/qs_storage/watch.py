"""Reports other processes' changes of directories, without those of this process.

The kernel reports all changes in order. Our operations note the events that they cause; an event that is the next
noted one is dropped. All others go to the owner of the directory, which asks the disk whether the report is still
true.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from . import inotify

_logger = logging.getLogger(__name__)
_MESSAGE_EVENTS = inotify.CLOSE_WRITE | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.DELETE
_QUEUE_EVENTS = inotify.CREATE | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.DELETE
_APPEARED = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE


class Watched(Protocol):
    def changed(self, name: bytes, *, appeared: bool) -> None:
        """Handles a file that another process made, renamed or removed. It may have changed again."""

    def rescan(self) -> None:
        """Lists the directory, as reports were lost."""

    def vanished(self) -> None:
        """Handles the removal of the directory."""


class Watch:
    """Watches any number of directories. Without inotify it logs that once, and reports nothing."""

    def __init__(self) -> None:
        self._owners: dict[int, Watched] = {}
        self.expected: deque[tuple[int, int, bytes]] = deque()
        """Our own changes whose reports were not read yet."""
        self._reporting = False
        self._inotify: inotify.Inotify | None = None
        try:
            self._inotify = inotify.Inotify()
        except (OSError, AttributeError) as error:
            _logger.warning(
                "no inotify (%s): files that other programs put into queues are seen at the next start", error
            )

    def fileno(self) -> int | None:
        """Returns a descriptor that is readable when there are reports."""
        return None if self._inotify is None else self._inotify.fd

    def add(self, directory: str, owner: Watched, *, of_queues: bool = False) -> int:
        """Watches a directory of messages, or of queues. Returns the watch, -1 for none."""
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
        if self._owners.pop(watch, None) is not None and self._inotify is not None:
            self._inotify.remove(watch)

    def expect(self, watch: int, event: int, name: str) -> None:
        """Notes a change of ours that `inotify` will report. Not for files that are ignored."""
        if watch >= 0:
            self.expected.append((watch, event, name.encode()))

    def refresh(self) -> None:
        """Reports the changes since the last call. Logs an owner's OSError."""
        if self._inotify is None or self._reporting:
            return  # called by an owner that handles a report: it gets the next one afterwards
        self._reporting = True
        try:
            expected = self.expected
            for event in self._inotify.events():
                if expected and expected[0] == event:
                    expected.popleft()
                elif not _is_ignored(event):
                    self._foreign(*event)
            expected.clear()  # all events of ours have been read; any that is left will never come
        finally:
            self._reporting = False

    def _foreign(self, watch: int, mask: int, name: bytes) -> None:
        if mask & inotify.OVERFLOW:
            _logger.warning("more changes by other programs than the kernel could report; the queues are listed again")
            self.expected.clear()
            for each in list(self._owners):
                self._tell(each, lambda owner: owner.rescan())
        elif mask & inotify.IGNORED:
            owner = self._owners.pop(watch, None)
            if owner is not None:
                owner.vanished()
        else:
            appeared = bool(mask & _APPEARED)
            self._tell(watch, lambda owner: owner.changed(name, appeared=appeared))

    def _tell(self, watch: int, what: Callable[[Watched], None]) -> None:
        owner = self._owners.get(watch)
        if owner is None:
            return
        try:
            what(owner)
        except OSError as error:
            _logger.error("changes by other programs could not be read: %s", error)

    def close(self) -> None:
        self._owners.clear()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _is_ignored(event: inotify.Event) -> bool:
    """Tells whether an event is about a file being written, or of a server."""
    _, mask, name = event
    return not mask & inotify.IS_DIRECTORY and (name[-4:] == b".new" or name[:1] == b".")
