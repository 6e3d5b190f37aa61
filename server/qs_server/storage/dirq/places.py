"""What is known of the elements of one queue: where they are, what the engine is told of them, what is to be synced."""

import contextlib
import logging
from typing import Protocol

from ..engine import Durability, Options
from ..files.directory import Shared
from ..index.message_index import Index
from ..index.midmap import MidMap
from ..lifecycle import Event
from .layout import Layout
from .lease_metadata import marks_for
from .mids import FAR, name_of, time_of

_logger = logging.getLogger(__name__)


class Folder(Protocol):
    """An intermediate directory."""

    elements: int
    watch: int


class Elements:
    """What is in the directory of a queue. Not for several threads at once."""

    _layout: Layout

    def __init__(self, path: str, qid: str, options: Options, shared: Shared) -> None:
        """path: an existing directory; qid: what messages are said to come from. Lists nothing yet: see `rescan`."""
        self.path = path
        self.qid = qid
        self.options = options
        self.last_mid = -1
        self._shared = shared
        self._clock = shared.clock
        self._disk = shared.disk
        self._watch = shared.watch
        self._activity = shared.activity
        self._always = shared.durability is Durability.ALWAYS
        self._marks = marks_for(path, shared.disk, sync=self._always)
        self._index = Index()
        self._places = MidMap()  # the intermediate directory of each element, as a number from 1
        self._folders: dict[str, Folder] = {}
        self._foreign: set[int] = set()  # elements that others have locked, as far as we know
        self._look_again_at: int | None = None
        self._unsynced: set[int] = set()
        self._unsynced_folders: set[str] = set()
        self._folders_made = False
        self._identity = self._look_up()
        self._watched = -1

    def __len__(self) -> int:
        return len(self._index)

    def time(self, number: int) -> int:
        """When a message was pushed."""
        return time_of(number)

    # -- what the engine is told

    def arrived(self) -> None:
        """A message has become visible."""
        self._activity.arrived.add(self.qid)

    def vanished(self) -> None:
        """The directory is gone (from Watch)."""
        self._shared.vanished(self.qid)

    def _look_up(self) -> tuple[int, int]:
        status = self._disk.lstat(self.path)
        return status.st_dev, status.st_ino

    def in_place(self) -> bool:
        """Whether the directory is still the one that was opened."""
        try:
            return self._look_up() == self._identity
        except FileNotFoundError:
            return False

    def _touch(self, mid: int | None = None, folder: str = "") -> None:
        """The marks or the lock of an element have changed, or names in an intermediate directory."""
        if self._shared.durability is not Durability.NONE:
            self._activity.dirty.add(self.qid)
            if self._always and mid is not None:
                self._unsynced.add(mid)
                folder = folder or self._folder_of(mid)
            if self._always and folder:
                self._unsynced_folders.add(folder)

    def note(self, event: Event, mid: int, receives: int | None, *, peer: str | None = None) -> None:
        """Tells the record of messages' lives, if there is one."""
        lifecycle = self._shared.lifecycle
        if lifecycle is not None:
            lifecycle.note(event, self.qid, mid, self._index.size(mid), receives, peer=peer)

    def note_removed(self) -> None:
        """The queue is gone with all that it holds. Sizes as far as they are known."""
        lifecycle = self._shared.lifecycle
        if lifecycle is not None:
            index = self._index
            for mid in index.messages.after(-1, len(index)):
                lifecycle.note("deleted", self.qid, mid, index.size(mid) if index.loaded(mid) else None, None)

    # -- places

    def _folder_of(self, mid: int) -> str:
        return folder_of(self._places.get(mid) or 1)

    def _place(self, mid: int) -> str:
        return f"{self._folder_of(mid)}/{name_of(mid)}"

    def _put(self, mid: int, folder: str) -> None:
        self._places.set(mid, number_of(folder))

    def _path(self, mid: int) -> str:
        return self._layout.element(self._place(mid))

    def _saw(self, mid: int) -> None:
        if self.last_mid < mid < FAR:
            self.last_mid = mid

    def _forget_place(self, mid: int) -> None:
        number = self._places.pop(mid)
        folder = None if number is None else self._folders.get(folder_of(number))
        if folder is not None:
            folder.elements -= 1

    def _forget_marks(self, mid: int) -> None:
        try:
            self._marks.forget(mid)
        except OSError as error:
            _logger.warning("the marks of message %s stay behind in %s: %s", mid, self.path, error)

    def expect(self, folder: str, event: int, name: str) -> None:
        """From the layout: a change of ours that will be reported."""
        if folder in self._folders:
            self._watch.expect(self._folders[folder].watch, event, name)

    # -- durability

    def commit(self) -> None:
        """Syncs what has changed (durability ALWAYS): the marks of elements, then the names."""
        for mid in list(self._unsynced):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                self._disk.sync_file(self._path(mid))
            self._unsynced.discard(mid)
        for folder in list(self._unsynced_folders):
            with contextlib.suppress(FileNotFoundError):
                self._disk.sync_directory(f"{self.path}/{folder}")
            self._unsynced_folders.discard(folder)
        if self._folders_made or self._marks.beside or not self.in_place():
            self._disk.sync_directory(self.path)
            self._folders_made = False
        self._layout.bury()

    def unwatch(self) -> None:
        """Takes no more reports."""
        for folder in self._folders.values():
            self._watch.remove(folder.watch)
        self._watch.remove(self._watched)


def number_of(folder: str) -> int:
    """An intermediate directory as a number, which is not 0."""
    return int(folder, 16) + 1


def folder_of(number: int) -> str:
    """And back."""
    return f"{number - 1:08x}"
