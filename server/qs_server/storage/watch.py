"""Reports what other processes do to directories, and leaves out what this process does to them.

The kernel reports every change, our own too, in order. Each operation of ours notes the event that it will cause. An
event that is the next noted one is ours and is dropped. All others are foreign and go to the owner of the directory.
The directory may have changed again since, so the owner asks the disk whether the report is still true.
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
    """Gets the reports about a directory."""

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """Handles a file that a foreign process made, renamed or removed. It may have changed again since."""

    def rescan(self) -> None:
        """Lists the directory again, as reports were lost."""

    def vanished(self) -> None:
        """Handles the removal of the directory itself."""


class Watch:
    """Watches any number of directories. Without inotify it reports nothing, and logs that once."""

    def __init__(self) -> None:
        self._owners: dict[int, Watched] = {}
        self.expected: deque[tuple[int, int, bytes]] = deque()
        """Reports of our own changes that wait to be read."""
        self._reporting = False
        self._inotify: inotify.Inotify | None = None
        try:
            self._inotify = inotify.Inotify()
        except (OSError, AttributeError) as error:
            _logger.warning(
                "no inotify (%s): files that other programs put into queues are seen at the next start", error
            )

    def fileno(self) -> int | None:
        """Returns a descriptor that is readable when there is something to report."""
        return None if self._inotify is None else self._inotify.fd

    def add(self, directory: str, owner: Watched, *, of_queues: bool = False) -> int:
        """Watches a directory of messages, or of queues. Returns the watch for `expect` and `remove`, -1 if there is
        none."""
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
        """Stops watching."""
        if self._owners.pop(watch, None) is not None and self._inotify is not None:
            self._inotify.remove(watch)

    def expect(self, watch: int, event: int, name: str) -> None:
        """Notes that a change of ours will be reported as this event of `inotify`. Do not note events of files that are
        ignored."""
        if watch >= 0:
            self.expected.append((watch, event, name.encode()))

    def refresh(self) -> None:
        """Reports the changes since the last call. Raises nothing: an owner's OSError is logged."""
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
        """Stops all watches."""
        self._owners.clear()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _is_ignored(event: inotify.Event) -> bool:
    """Tells whether an event is about a file that is being written, or that belongs to a server."""
    _, mask, name = event
    return not mask & inotify.IS_DIRECTORY and (name[-4:] == b".new" or name[:1] == b".")
