"""Which elements there are: listed at the start, and then kept by reports of what others do."""

import contextlib
import logging
import os
from array import array

from ..engine import SECOND, Options
from ..files.directory import Shared
from ..index.message_index import Index
from ..index.midmap import MidMap
from .element_state import Sights
from .folders import names_in
from .mids import FAR, mid_of, name_of
from .names import is_directory
from .places import number_of
from .simple_layout import is_name

_logger = logging.getLogger(__name__)
_IDLE = 3600
"""Seconds for which an empty intermediate directory stays: programs that use dirq walk over the directories that they
have found before, for as long as they take, and fail when one is gone."""


class WatchedFolder:
    """An intermediate directory that is watched: what Watch tells of it goes to its queue."""

    def __init__(self, queue: "Listing", name: str) -> None:
        self._queue = queue
        self.name = name
        self.elements = 0
        self.watch = -1

    def changed(self, name: bytes, *, appeared: bool) -> None:
        self._queue.element_changed(self.name, os.fsdecode(name))

    def rescan(self) -> None:
        """The queue lists everything."""

    def vanished(self) -> None:
        self._queue.folder_gone(self.name)


class Listing(Sights):
    """Keeps the index of a queue."""

    def __init__(self, path: str, qid: str, options: Options, shared: Shared) -> None:
        super().__init__(path, qid, options, shared)
        self._watched = self._watch.add(path, self, of_queues=True)  # before listing, as in MessageDirectory

    # -- listing

    def rescan(self) -> None:
        """Lists everything anew: at the start, and when reports were lost (from Watch)."""
        for folder in self._folders.values():
            self._watch.remove(folder.watch)
        self._folders.clear()
        self._foreign.clear()
        self._layout.clear_left_behind("", [], self._is_old)
        # In this order, that of a push backwards: what others are adding meanwhile is seen in one state or the next.
        files = names_in(self.path) if self._marks.beside else []
        written = self._layout.being_written() if files else set()
        self._places = MidMap()
        every: list[int] = []
        for name in self._layout.folders():
            every += self._place_all(name)
        self._index_all(every)
        self._marks.clear(files, lambda mid: mid in self._places or mid in written)
        self._remove_idle_folders()

    def _place_all(self, name: str) -> set[int]:
        """Takes up an intermediate directory and gives its elements their places; those that are locked."""
        free, locked = self._list(name)
        found, number = set(locked), number_of(name)
        last = self._places.last() or -1
        for mid in sorted(free + locked):
            if mid <= last and self._places.get(mid) is not None:
                self._complain_of_twin(mid, name)
                found.discard(mid)
            else:
                self._places.set(mid, number)  # at the end, nearly always: directories and names go by the time
                self._folders[name].elements += 1
        return found

    def _list(self, name: str) -> tuple[list[int], list[int]]:
        """Takes up an intermediate directory: its elements that are free, and those that are locked."""
        folder = self._folders[name] = WatchedFolder(self, name)
        folder.watch = self._watch.add(f"{self.path}/{name}", folder, of_queues=True)
        try:
            listed = self._layout.listed(name)
        except FileNotFoundError:
            self._watch.remove(folder.watch)
            del self._folders[name]  # or it would be taken for watched when it is made again
            return [], []
        self._layout.clear_left_behind(name, listed.others, self._is_old)
        return listed.free, listed.locked

    def _complain_of_twin(self, mid: int, folder: str) -> None:
        _logger.warning(
            "%s/%s/%s has the same name as an element in another directory; it is seen at the next start after that "
            "one is gone", self.path, folder, name_of(mid),
        )  # fmt: skip

    def _is_old(self, path: str, seconds: int) -> bool:
        try:
            return self._clock() / SECOND - self._disk.lstat(path).st_mtime > seconds
        except OSError:
            return False

    def _index_all(self, locked: list[int]) -> None:
        """Makes the index of all elements that have a place."""
        mids = array("Q", self._places.after(-1, len(self._places)))
        sights = {mid: self._sight(mid) for mid in locked}
        hidden = {mid: sight.hidden for mid, sight in sights.items() if sight is not None and sight.hidden}
        gone = {mid for mid, sight in sights.items() if sight is None}
        self._index = Index(array("Q", (mid for mid in mids if mid not in hidden and mid not in gone)), hidden)
        for mid in gone:
            self._forget_place(mid)
        self._saw(max((mid for mid in reversed(mids) if mid < FAR), default=-1))
        for mid in hidden:
            self.look(mid)
        if self._index.ready:
            self.arrived()

    # -- reports (from Watch)

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """An intermediate directory has been made or removed."""
        folder = os.fsdecode(name)
        if is_directory(folder):
            if os.path.isdir(f"{self.path}/{folder}"):
                self.folder_made(folder)
            else:
                self.folder_gone(folder)

    def folder_made(self, folder: str) -> None:
        """There is an intermediate directory: made by us, or by somebody who may have put elements there by now."""
        if folder in self._folders:
            return
        self._folders_made = True
        self._touch(folder=folder)
        free, locked = self._list(folder)
        for mid in (*free, *locked):
            self._found(mid, folder)
        self._remove_idle_folders()

    def folder_gone(self, folder: str) -> None:
        """An intermediate directory has been removed, and maybe made again."""
        known = self._folders.pop(folder, None)
        if known is None:
            return
        self._watch.remove(known.watch)
        number = number_of(folder)
        after = -1
        while known.elements > 0 and (mids := self._places.after(after, 1000)):
            after = mids[-1]
            for mid in mids:
                if self._places.get(mid) == number:
                    self.look(mid)  # it stays if we have pushed it since, into the directory that we have made again
        if os.path.isdir(f"{self.path}/{folder}"):
            self.folder_made(folder)

    def element_changed(self, folder: str, name: str) -> None:
        """Something has happened to an element, or its lock. By now it, or we, may have done more."""
        if not is_name(name):
            return
        mid = mid_of(name[:14])
        if self._places.get(mid) == number_of(folder):
            self.look(mid)
        elif os.path.lexists(f"{self.path}/{folder}/{name[:14]}"):
            self._found(mid, folder)

    def _found(self, mid: int, folder: str) -> None:
        """Somebody has added an element."""
        known = self._places.get(mid)
        if known is not None:
            if known == number_of(folder):
                self._folders[folder].elements += 1  # by us, before the directory was known to us
            else:
                self._complain_of_twin(mid, folder)
            return
        if folder in self._folders:
            self._folders[folder].elements += 1
        self._put(mid, folder)
        self._index.add(mid, 0)
        self._saw(mid)
        sight = self.look(mid)
        if sight is not None and not sight.hidden:
            self.arrived()

    def _remove_idle_folders(self) -> None:
        """Empty ones that nobody has used for long, but for the last: as dirq's purge does."""
        for name in sorted(self._folders)[:-1]:
            path = f"{self.path}/{name}"
            if not self._folders[name].elements and self._is_old(path, _IDLE):
                with contextlib.suppress(OSError):
                    self._disk.rmdir(path)
                    self._watch.remove(self._folders.pop(name).watch)
