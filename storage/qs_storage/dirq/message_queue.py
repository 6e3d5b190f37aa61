"""A queue of the server in a dirq directory: lists its elements, and then updates the index by reports of changes;
writes messages, and gives them ids.

An element is ready unless it is locked, as dirq's consumers lock it: in flight or delayed. Any number of processes
may share the directory, as a lock succeeds for one of them.
"""

import contextlib
import errno
import logging
import os
import secrets
from array import array
from collections.abc import Collection

from ..directory_queue import DirectoryQueue
from ..door import set_aside
from ..engine import Draft, Options, QueueFullError
from ..index.midmap import MidSet
from ..message_store import Content, PendingMessage
from ..shared import EngineContext
from .elements import (
    FAR,
    LOCKED_SUFFIX,
    MAX_MID,
    Folder,
    Places,
    following,
    is_directory,
    is_element,
    mid_at,
    mid_of,
    name_of,
    names_in,
)
from .layouts import Layout, QueueLayout, SimpleLayout
from .schema import body_of
from .store import Elements, Lease, stamp

_logger = logging.getLogger(__name__)
_IDLE = 3600
"""Seconds for which an empty intermediate directory stays: dirq's programs fail if a listed one is gone."""


class _FolderWatcher:
    """Passes reports about one intermediate directory on to the store. Each intermediate directory has its own."""

    def __init__(self, listing: "WatchedElements", name: str) -> None:
        self._listing = listing
        self._name = name

    def changed(self, name: bytes, *, appeared: bool, moved: bool = False) -> None:
        self._listing.element_changed(self._name, os.fsdecode(name))

    def rescan(self) -> None:
        """Does nothing: the watcher of the queue's directory lists everything."""

    def vanished(self) -> None:
        self._listing.folder_gone(self._name)


class WatchedElements(Elements):
    """Lists the elements of a queue at the start, and keeps the list up to date by the reports of `Watch`.

    Ensures that an element which another program adds while the directory is listed is found by the listing or by a
    report. Assumes that a report may be out of date, and asks the disk."""

    _is_listed = False

    def close(self) -> None:
        for name in list(self.places.folders):
            self.places.unwatch(name)
        super().close()

    def rescan(self) -> None:
        self.layout.clear_left_behind("", [], self._is_old)
        # In this order, that of a push backwards: what others are adding meanwhile is seen in one state or the next.
        leases = self.leases
        files = names_in(self.path) if leases.beside else []
        written = self.layout.being_written() if files else set()
        known = MidSet(self.places.mids()) if self.guarded else MidSet()
        # All anew: reports were lost, or this is the start.
        self.places.clear()
        locked: list[int] = []
        for name in self.layout.folders():
            locked += self._place_all(name)
        if self.guarded and self._is_listed:
            self._withhold_all_but(known)
        # At the start, what is there counts as having been in the queue: nothing tells who has put it there.
        self._is_listed = True
        self._index_all([mid for mid in locked if mid in self.places])
        leases.clear(files, lambda mid: mid in self.places or mid in written)
        self._remove_idle_folders()

    def _withhold_all_but(self, known: MidSet) -> None:
        """Gives the listed elements that were not known before to the door."""
        for mid in self.places.mids():
            if mid not in known:
                place = self.places.place_of(mid)
                self.places.remove(mid)
                self.saw(mid)
                self.withhold(place)

    def _place_all(self, name: str) -> set[int]:
        """Adds an intermediate directory with its elements. Returns the locked ones."""
        free, locked = self._list(name)
        found = set(locked)
        last = self.places.last()
        for mid in sorted(free + locked):
            if mid <= last and mid in self.places:
                self._complain_of_twin(mid, name)
                found.discard(mid)
            else:
                self.places.add(mid, name)  # at the end, nearly always: directories and names go by the time
        return found

    def _list(self, name: str) -> tuple[list[int], list[int]]:
        """Watches and lists an intermediate directory. Returns the free and the locked elements."""
        # Watched before it is listed: what comes in between is seen twice, not never.
        watch = self.context.watch.add(f"{self.path}/{name}", _FolderWatcher(self, name), of_queues=True)
        self.places.folders[name] = Folder(watch=watch)
        try:
            listed = self.layout.listed(name)
        except FileNotFoundError:
            self.places.unwatch(name)  # or it would be taken for watched when it is made again
            return [], []
        self.layout.clear_left_behind(name, listed.others, self._is_old)
        return listed.free, listed.locked

    def _complain_of_twin(self, mid: int, folder: str) -> None:
        _logger.warning(
            "%s/%s/%s has the same name as an element in another directory; it is seen at the next start after that "
            "one is gone", self.path, folder, name_of(mid),
        )  # fmt: skip

    def _is_old(self, path: str, seconds: int) -> bool:
        try:
            return self.context.idle_seconds(path) > seconds
        except OSError:
            return False

    def _index_all(self, locked: list[int]) -> None:
        mids = self.places.mids()
        states = {mid: self.state_of(mid) for mid in locked}
        gone = {mid for mid, state in states.items() if state is None}
        hidden = {mid: state.hidden for mid, state in states.items() if state is not None and state.hidden}
        for mid in gone:
            self.places.remove(mid)
        self.saw(max((mid for mid in reversed(mids) if mid < FAR), default=-1))
        ready = array("Q", (mid for mid in mids if mid not in hidden and mid not in gone))
        self.reset(ready, hidden)

    def changed(self, name: bytes, *, appeared: bool, moved: bool = False) -> None:
        """Handles an intermediate directory that was made or removed."""
        folder = os.fsdecode(name)
        if is_directory(folder):
            if os.path.isdir(f"{self.path}/{folder}"):
                self.folder_made(folder)
            else:
                self.folder_gone(folder)

    def folder_made(self, folder: str) -> None:
        """Adds an intermediate directory, which may already contain elements."""
        if folder in self.places.folders:
            return
        self.touch_new_folder(folder)
        free, locked = self._list(folder)
        # Elements may have come between the making of the directory and this.
        for mid in (*free, *locked):
            self._adopt(mid, folder)
        self._remove_idle_folders()

    def folder_gone(self, folder: str) -> None:
        """Forgets an intermediate directory that was removed. The directory may have been made again since."""
        known = self.places.folders.get(folder)
        if known is None:
            return
        self.places.unwatch(folder)
        after = -1
        while known.elements > 0 and (mids := self.places.mids(after, 1000)):
            after = mids[-1]
            for mid in mids:
                if self.places.is_in(mid, folder):
                    self.look(mid)  # it stays if we have pushed it since, into the directory made again
        if os.path.isdir(f"{self.path}/{folder}"):
            self.folder_made(folder)

    def element_changed(self, folder: str, name: str) -> None:
        """Handles a change of an element or its lock. Either may have changed again since."""
        if not is_element(name.removesuffix(LOCKED_SUFFIX)):
            return
        mid = mid_of(name[:14])
        if self.places.is_in(mid, folder):
            self.look(mid)
        elif os.path.lexists(f"{self.path}/{folder}/{name[:14]}"):
            self._adopt(mid, folder)
        else:
            self.arrivals.pop(f"{folder}/{name[:14]}", None)

    def _adopt(self, mid: int, folder: str) -> None:
        if self.places.is_in(mid, folder):
            self.places.folders[folder].elements += 1  # by us, before the directory was known to us
            return
        if mid in self.places:
            self._complain_of_twin(mid, folder)
            return
        self.saw(mid)
        if self.guarded:
            self.withhold(f"{folder}/{name_of(mid)}")
        else:
            self._take_up(mid, folder)

    def _take_up(self, mid: int, folder: str) -> None:
        self.places.add(mid, folder)
        self.index.add(mid, 0)
        state = self.look(mid)
        if state is not None and not state.hidden:
            self.arrived()

    def folders(self) -> list[str]:
        return [f"{self.path}/{name}" for name in self.layout.folders()]

    def payload_file(self, name: str) -> str:
        return self.layout.payload_file(name)

    def admit(self, name: str) -> None:
        folder, _, element = name.partition("/")
        mid = mid_of(element)
        if mid in self.places:
            self._complain_of_twin(mid, folder)
        elif os.path.lexists(f"{self.path}/{name}"):
            self._take_up(mid, folder)

    def refuse(self, name: str) -> str | None:
        if not self.layout.lock(name):
            self._disk.lstat(self.layout.element(name))  # or it is gone
            return None
        folder, _, element = name.partition("/")
        try:
            refused = set_aside(f"{self.path}/{folder}", element, element, self._disk)
        except BaseException:
            self.layout.unlock(name)
            raise
        self.layout.unlock_renamed(name, f"{folder}/{refused}")
        self.touch(folder=folder)
        return f"{self.path}/{folder}/{refused}"

    def _remove_idle_folders(self) -> None:
        """Removes empty intermediate directories that have been unused for long, except the last, as dirq's purge
        does."""
        for name in sorted(self.places.folders)[:-1]:
            path = f"{self.path}/{name}"
            if not self.places.folders[name].elements and self._is_old(path, _IDLE):
                with contextlib.suppress(OSError):
                    self._disk.rmdir(path)
                    self.places.unwatch(name)


class ElementWriter:
    """Writes messages as elements, and gives them ids. See Writer.

    Ensures that ids increase, even past elements of programs whose clocks are ahead. A crash may leave half of a list,
    because dirq has no lists."""

    def __init__(self, elements: WatchedElements) -> None:
        self._elements = elements
        self._layout = elements.layout
        self._places = elements.places
        self._clock = elements.context.clock
        # dirq does this too: two servers that push in the same microsecond mostly have different names.
        self._digit = secrets.randbelow(16)

    def write(self, draft: Draft) -> PendingMessage:
        while True:
            last = self._elements.last_mid
            mid = max(mid_at(self._clock(), self._digit), following(last))
            if mid >= min(FAR, MAX_MID):
                raise QueueFullError(f"queue {self._elements.qid!r} has seen the message {last}: no greater id is left")
            # Also if it is not used: another program has it.
            self._elements.last_mid = mid
            if mid in self._places:
                continue  # somebody whose clock is ahead has added it
            try:
                until = self._clock() + draft.delay if draft.delay else 0
                return self._write(mid, (draft.payload, draft.headers), until)
            except FileExistsError:
                continue  # another publisher is writing one of that name

    def write_copy(self, mid: int, content: Content, file: str | None) -> PendingMessage:
        return self._write(mid, content, 0)

    def _write(self, mid: int, content: Content, until: int) -> PendingMessage:
        pending = self._layout.write(mid, content, until)
        if pending.folder and pending.folder not in self._places.folders:
            self._elements.folder_made(pending.folder)  # by us, or by somebody of whom we have not heard yet
        if until:
            try:
                self._elements.leases.write(pending.temporary, mid, Lease(0, until, delayed=True), or_fail=True)
                stamp(pending.temporary, until)
            except BaseException:
                self.discard([pending])
                raise
        return pending

    def sync(self, requests: Collection[list[PendingMessage]]) -> dict[int, OSError]:
        failures: dict[int, OSError] = {}
        for request in requests if self._elements.context.always else ():
            try:
                for pending in request:
                    self._layout.sync_content(pending)
            except OSError as error:
                failures[request[0].mid] = error
        return failures

    def show(self, pending: PendingMessage) -> None:
        mid, elements = pending.mid, self._elements
        if mid in self._places:
            # Another program has added one of this name since it was written.
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), elements.path_of(mid))
        folder = self._layout.publish(pending)
        self._places.add(mid, folder)
        elements.index.add(mid, pending.until, pending.size)
        if pending.headers is not None:
            elements.note_headers(mid)
        if folder not in self._places.folders:
            elements.folder_made(folder)
        elements.touch(folder=folder)
        if pending.until:
            elements.announce(mid, pending.until)
        else:
            elements.arrived()

    def finish(self, request: list[PendingMessage]) -> None:
        """Does nothing: each message of a request is complete by itself."""

    def take_back(self, pending: PendingMessage) -> None:
        try:
            with self._elements.exclusive(pending.mid) as state:
                if state is not None:
                    self._elements.remove(pending.mid, state)
        except OSError as error:
            _logger.error("message %s of a list that failed stays in %s: %s", pending.mid, self._elements.path, error)

    def discard(self, request: list[PendingMessage]) -> None:
        for pending in request:
            self._layout.discard(pending)
            if pending.until:
                self._elements.forget_lease(pending.mid)


def open_dirq_queue(path: str, qid: str, options: Options, context: EngineContext) -> DirectoryQueue:
    """Opens the queue in a directory. OSError; StorageError if elements of its schema cannot be messages."""
    places = Places(context.watch)
    layout: Layout
    if options.storage == "dirq":
        layout = QueueLayout(path, context.disk, body_of(options), places, sync=context.always)
    else:
        layout = SimpleLayout(path, context.disk, places, sync=context.always)
    elements = WatchedElements(path, qid, options, context, layout, places)
    return DirectoryQueue(elements, ElementWriter(elements))
