"""Waits with inotify for elements that are added to a directory in one of the layouts of dirq."""

import os
import select

from qs_storage import inotify
from qs_storage.dirq.element_names import LOCKED_SUFFIX, TEMPORARY_SUFFIX

from .layouts import intermediates

_APPEARED = inotify.CREATE | inotify.MOVED_TO
_LOCK, _WRITTEN = LOCKED_SUFFIX.encode(), TEMPORARY_SUFFIX.encode()
_WITHOUT = 0.2
"""Seconds between two looks without inotify."""


class Arrivals:
    """Watches a directory and its intermediate directories, also those made later."""

    def __init__(self, path: str) -> None:
        """path: an existing directory."""
        self._path = path
        self._watched: dict[str, int] = {}
        self._to_watch = True
        self._top = -1
        self._inotify: inotify.Inotify | None = None
        try:
            self._inotify = inotify.Inotify()
            self._top = self._inotify.add(path, _APPEARED)
        except (OSError, AttributeError):  # the latter where the C library has no such calls
            self._give_up()

    def _give_up(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def refresh(self) -> bool:
        """Reads the reports and watches new directories. Returns whether there may be a new element."""
        if self._inotify is None:
            return True
        changed = False
        for watch, mask, name in self._inotify.events():
            if mask & inotify.IGNORED:
                self._watched = {known: number for known, number in self._watched.items() if number != watch}
            changed = changed or _is_arrival(mask, name)
            self._to_watch = self._to_watch or watch in (self._top, -1)
        return self._watch_new() or changed

    def _watch_new(self) -> bool:
        found = False
        if not self._to_watch:
            return False
        self._to_watch = False
        for name in intermediates(self._path):
            if name not in self._watched and self._inotify is not None:
                try:
                    self._watched[name] = self._inotify.add(os.path.join(self._path, name), _APPEARED | inotify.DELETE)
                    found = True
                except FileNotFoundError:
                    continue
                except OSError:
                    self._give_up()
                    return True
        return found

    def wait(self, seconds: float) -> bool:
        """Waits for a new element; False after so many seconds without one."""
        if self._inotify is None:
            select.select([], [], [], min(seconds, _WITHOUT))
            return True
        select.select([self._inotify.fd], [], [], seconds)
        return self.refresh()

    def close(self) -> None:
        self._give_up()


def _is_arrival(mask: int, name: bytes) -> bool:
    """Selects new elements and removed locks, not files being written and new locks."""
    if mask & inotify.DELETE:
        return name.endswith(_LOCK)
    return bool(mask & (_APPEARED | inotify.OVERFLOW)) and not name.endswith((_LOCK, _WRITTEN))
