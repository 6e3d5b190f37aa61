"""The directory of a queue of the log: files that other programs put there become messages.

The door decides what is looked at and when, and writes the records; `intake` does what has to do with files. All of it
is done at leisure, one directory at a time, a bounded number of files at once. Files wait in the directory while the
queue is at its capacity.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ..disk import Disk, has_no_room
from ..engine import SECOND, Clock
from ..shared import DirectoryIdentity
from .intake import File, Intake, OpenStates, token_of
from .store import Store

_logger = logging.getLogger(__name__)
_NAMES = 4096
"""Names that are kept of those that were reported; if there are more, the directory is listed."""
_NAMED = 20
"""Files that are no messages of which the log says so one by one."""
_TRY_AGAIN = 1 * SECOND
"""After which what could not be done is tried again."""


class Doors:
    """The doors of a log's queues that have something to do, in turn."""

    def __init__(self, open_states: OpenStates) -> None:
        """open_states: what reads the states of messages that are files."""
        self.open_states = open_states
        self.busy: dict[Door, None] = {}
        """Those that may have something to do."""

    def wake(self, door: "Door") -> None:
        """Notes that a door has something to do."""
        self.busy[door] = None

    def due(self) -> int | None:
        """When the first of them should be worked on; 0: now; None: there is nothing to do, or it waits for room in its
        queue."""
        first: int | None = None
        for door in list(self.busy):
            if not door.has_work:
                del self.busy[door]
            elif (due := door.due()) is not None:
                if not due:
                    return 0
                first = due if first is None else min(first, due)
        return first

    def next(self, now: int) -> "Door | None":
        """The door to be worked on now."""
        for door in list(self.busy):
            if door.has_work and (due := door.due()) is not None and due <= now:
                del self.busy[door]
                self.busy[door] = None  # it is the last one now
                return door
        return None


def _oldest_first(blocks: Iterable[list[bytes]]) -> Iterator[bytes]:
    """The names, some thousand at a time in the order of their ids."""
    for block in blocks:
        for at in range(0, len(block), _NAMES):
            yield from sorted(block[at : at + _NAMES], key=lambda name: name.partition(b".")[0].rjust(18))


class Owner(Protocol):
    """A queue, as far as its door knows it."""

    taken: dict[int, int]

    def room(self) -> int: ...
    def take_in_files(self, files: Sequence[File], token: int, /) -> None: ...
    def note_unlinked(self, tokens: Iterable[int], /) -> None: ...


class Door:
    """One directory."""

    def __init__(self, path: str, disk: Disk, doors: Doors, clock: Clock, owner: Owner) -> None:
        """OSError when there is no such directory."""
        self.path = path
        self._disk = disk
        self._doors = doors
        self._clock = clock
        self._owner = owner
        self.in_place = DirectoryIdentity(path, disk).in_place
        self._names: deque[bytes] = deque()
        self._list_again = False
        self._listing: Iterator[bytes] | None = None
        self._listed_for: set[int] = set()  # tokens that the log had when the listing began
        self._running: Intake | None = None
        self._read: Intake | None = None  # its files are to be committed
        self._appended: Intake | None = None  # its files are in the log, and to be removed
        self._not_before = 0
        self._complaint = ""
        self._named: set[str] = set()
        self.is_closed = False

    # -- what is to be done ---------------------------------------------------------------------------------------

    def appeared(self, name: bytes) -> None:
        """Has a file looked at."""
        if len(self._names) >= _NAMES:
            self.list_again()
        elif not self._list_again:
            self._names.append(name)
            self._doors.wake(self)

    def list_again(self) -> None:
        """Has all files looked at."""
        self._names.clear()
        self._list_again = True
        self._doors.wake(self)

    def close(self) -> None:
        """Takes nothing more in."""
        self.is_closed = True

    @property
    def has_work(self) -> bool:
        """Whether there is anything to do, now or later."""
        return not self.is_closed and (self._waits or self._read is not None or self._appended is not None)

    @property
    def _waits(self) -> bool:
        return bool(self._names) or self._listing is not None or self._list_again

    def due(self) -> int | None:
        """When it should be worked on; 0: now; None: not before there is room in the queue, or before `finish`."""
        if self._running is not None:
            return None
        if self._read is None and self._appended is None and self._owner.room() <= 0:
            return None
        return self._not_before

    # -- doing it -------------------------------------------------------------------------------------------------

    def advance(self, store: Store) -> Intake | None:
        """Appends what was read, for the caller to commit; or, with all that was appended committed, gives the next
        piece of work, for a thread. OSError: there is no room in the log."""
        if self._read is None:
            return self._begin(store.log.background_sync())
        read = self._read
        self._owner.take_in_files(read.files, read.token)
        self._read, self._appended = None, read
        store.undo.append((self._take_back,))
        return None

    def _take_back(self) -> None:
        self._appended = None
        self.list_again()

    def _begin(self, before: Callable[[], None] | None) -> Intake:
        known = set(self._owner.taken)
        if self._list_again and self._listing is None:
            self._list_again = False
            self._listing = _oldest_first(self._disk.file_blocks_in(self.path))
            self._listed_for = known
        names, self._names = list(self._names), deque()
        work = Intake(self.path, self._disk, names, self._listing, max(self._owner.room(), 0), self._doors.open_states)
        work.before, work.known = before, known
        if self._appended is not None:
            work.remove = [file.name for file in self._appended.files]
        self._running = work
        return work

    def finish(self, work: Intake) -> None:
        """Takes over what was done."""
        self._running = None
        if self.is_closed:
            return
        for name, why in work.strays:
            self._name_stray(name, why)
        if work.error is not None:
            self._listing = None
            self.list_again()
            self.put_off(work.error)
            return
        self._names.extendleft(reversed(work.left))
        if self._appended is not None:
            self._owner.note_unlinked([self._appended.token])
            self._appended = None
        if self._listing is not None and work.listing is None:
            self._owner.note_unlinked(self._listed_for.intersection(self._owner.taken))
        self._listing = work.listing
        if work.files:
            self._read = work
        if self._complaint:
            self._complaint = ""
            _logger.warning("files are taken in from %s again", self.path)
        self._doors.wake(self)

    def put_off(self, error: OSError) -> None:
        """Tries again later, and says why, once."""
        self._not_before = self._clock() + _TRY_AGAIN
        self._doors.wake(self)
        what = "there is no room for them" if has_no_room(error) else str(error)
        if what != self._complaint and self.in_place():
            _logger.error(
                "files in %s cannot be taken in, and wait: %s; it is tried again every second", self.path, what
            )
            self._complaint = what

    def _name_stray(self, name: str, why: str) -> None:
        if name in self._named or len(self._named) > _NAMED:
            return
        self._named.add(name)
        if len(self._named) > _NAMED:
            _logger.warning("%s holds more files that are not taken in; they are not named", self.path)
        else:
            _logger.warning("%s/%s is no message, and stays: %s", self.path, name, why)

    def clear(self) -> None:
        """Removes what is left of files that are messages already, so that an empty queue can be removed. OSError."""
        for name in self._disk.files_in(self.path):
            if token_of(os.fsencode(name)) in self._owner.taken:
                self._disk.unlink(f"{self.path}/{name}")
