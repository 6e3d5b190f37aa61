"""What other processes do to the directories, told apart from what this process does to them.

The kernel reports every change, our own too, in one order. Each operation of ours notes what it will be reported as;
a report that is the next of those is ours and needs nothing. All others are foreign and go to the queue concerned.
"""

import logging
from collections import deque
from typing import Protocol

from . import inotify

_logger = logging.getLogger(__name__)
_MESSAGE_EVENTS = inotify.CLOSE_WRITE | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.DELETE
_QUEUE_EVENTS = inotify.CREATE | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.DELETE
_APPEARED = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE


class Watched(Protocol):
    """A directory's owner."""

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """A foreign process made, renamed or removed a file."""

    def rescan(self) -> None:
        """Reports were lost: look at everything again."""

    def vanished(self) -> None:
        """The directory itself is gone."""


class Watch:
    """Reports for any number of directories. Without inotify it reports nothing, and says so once in the log."""

    def __init__(self) -> None:
        self._owners: dict[int, Watched] = {}
        self._expected: deque[tuple[int, int, bytes]] = deque()
        # Names that a foreign process touched while reports of ours on the same message were still to come:
        # then ours have to be replayed too, for the last one to win.
        self._disturbed: set[bytes] = set()
        self._inotify: inotify.Inotify | None = None
        try:
            self._inotify = inotify.Inotify()
        except (OSError, AttributeError) as error:
            _logger.warning(
                "no inotify (%s): files that other programs put into queues are seen at the next start", error
            )

    def fileno(self) -> int | None:
        """Readable when there is something to report."""
        return None if self._inotify is None else self._inotify.fd

    def add(self, directory: str, owner: Watched, *, of_queues: bool = False) -> int:
        """Watches a directory of messages (or of queues). The number is what `expect` and `remove` want."""
        if self._inotify is None:
            return -1
        try:
            watch = self._inotify.add(directory, _QUEUE_EVENTS if of_queues else _MESSAGE_EVENTS)
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

    def expect_rename(self, watch: int, old: str, new: str) -> None:
        """A rename of ours has been done."""
        if watch >= 0:
            self._expected.append((watch, inotify.MOVED_FROM, old.encode()))
            self._expected.append((watch, inotify.MOVED_TO, new.encode()))

    def expect_arrival(self, watch: int, new: str) -> None:
        """A rename of ours has been done, from a name that is reported to nobody."""
        if watch >= 0:
            self._expected.append((watch, inotify.MOVED_TO, new.encode()))

    def expect_delete(self, watch: int, name: str) -> None:
        """An unlink of ours has been done."""
        if watch >= 0:
            self._expected.append((watch, inotify.DELETE, name.encode()))

    def refresh(self) -> None:
        """Reports what has happened since the last call."""
        if self._inotify is None:
            return
        expected = self._expected
        for event in self._inotify.events():
            if event.name.endswith(b".new") or event.name.startswith(b"."):
                continue
            if expected and expected[0] == event:
                expected.popleft()
                if self._disturbed and _stem(event.name) in self._disturbed:
                    self._report(event)
                if not expected:
                    self._disturbed.clear()
            else:
                self._foreign(event)

    def _foreign(self, event: inotify.Event) -> None:
        if event.mask & inotify.OVERFLOW:
            _logger.warning("more changes by other programs than the kernel could report; the queues are listed again")
            self._expected.clear()
            self._disturbed.clear()
            for owner in list(self._owners.values()):
                owner.rescan()
        elif event.mask & inotify.IGNORED:
            owner_gone = self._owners.pop(event.watch, None)
            if owner_gone is not None:
                owner_gone.vanished()
        else:
            if self._expected:
                self._disturbed.add(_stem(event.name))
            self._report(event)

    def _report(self, event: inotify.Event) -> None:
        owner = self._owners.get(event.watch)
        if owner is not None:
            owner.changed(event.name, appeared=bool(event.mask & _APPEARED))

    def close(self) -> None:
        """Stops all watches."""
        self._owners.clear()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _stem(name: bytes) -> bytes:
    return name.partition(b".")[0]
