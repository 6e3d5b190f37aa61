"""Turns files that other programs put into a queue's directory into messages of the log.

A `Door` decides which files are read, and writes the records; `intake` works on the files, in the background and some
at a time. While the queue is full, files wait in the directory.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

from ...disk import Disk, has_no_room
from ...engine import SECOND, Clock, Options
from ...names import MAX_MID
from ...shared import Shared
from ..log import records
from ..queues.queue import LogQueue
from ..queues.store import Store
from .intake import File, Intake, OpenStates

_logger = logging.getLogger(__name__)
_NAMES = 4096
"""The most reported names that are kept; if there are more, the directory is listed."""
_NAMED = 20
"""The most files that the server's log names as not being messages."""
_TRY_AGAIN = 1 * SECOND
"""Microseconds between tries after a failure."""


class Doors:
    """Gives the doors of a log's queues their turns."""

    def __init__(self, open_states: OpenStates) -> None:
        """open_states: opens the states of messages that are files."""
        self.open_states = open_states
        self.busy: dict[Door, None] = {}
        """The doors that may have work, in the order of their turns."""

    def wake(self, door: "Door") -> None:
        self.busy[door] = None

    def due(self) -> int | None:
        """Returns when the first door is due, 0 for now; None if none has work or room in its queue."""
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
        """Returns a door that is due and makes it the last in turn; None if none is due."""
        for door in list(self.busy):
            if door.has_work and (due := door.due()) is not None and due <= now:
                del self.busy[door]
                self.busy[door] = None
                return door
        return None


def _oldest_first(blocks: Iterable[list[bytes]]) -> Iterator[bytes]:
    """Yields the names, sorted by their ids within each few thousand."""
    for block in blocks:
        for at in range(0, len(block), _NAMES):
            yield from sorted(block[at : at + _NAMES], key=lambda name: name.partition(b".")[0].rjust(18))


class Door:
    """Takes in files from the directory of one queue."""

    def __init__(self, path: str, disk: Disk, doors: Doors, clock: Clock, owner: "DoorQueue") -> None:
        """OSError if the directory does not exist."""
        self.path = path
        self._disk = disk
        self._doors = doors
        self._clock = clock
        self._owner = owner
        self._names: list[bytes] = []
        self._list_again = False
        self._listing: Iterator[bytes] | None = None
        self._listed_for: set[int] = set()  # tokens that the log had when the listing began
        self._running: Intake | None = None
        self._read: Intake | None = None  # its files are not in the log yet
        self._appended: Intake | None = None  # its files are in the log, and have to be removed
        self._not_before = 0
        self._logged_reason = ""  # why files wait, as last logged
        self._logged_strays: set[str] = set()
        self.is_closed = False

    # -- scheduling work ------------------------------------------------------------------------------------------

    def appeared(self, name: bytes) -> None:
        if len(self._names) >= _NAMES:
            self.list_again()
        elif not self._list_again:
            self._names.append(name)
            self._doors.wake(self)

    def list_again(self) -> None:
        """Schedules a look at all files."""
        self._names.clear()
        self._list_again = True
        self._doors.wake(self)

    def close(self) -> None:
        self.is_closed = True

    @property
    def has_work(self) -> bool:
        """True if there is work, now or later."""
        return not self.is_closed and (self._waits or self._read is not None or self._appended is not None)

    @property
    def _waits(self) -> bool:
        return bool(self._names) or self._listing is not None or self._list_again

    def due(self) -> int | None:
        """Returns when the door is due, 0 for now; None if it waits for room in the queue or for `finish`."""
        if self._running is not None:
            return None
        if self._read is None and self._appended is None and self._owner.room() <= 0:
            return None
        return self._not_before

    # -- doing the work -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of log that the next step takes."""
        return 0 if self._read is None else files_size(self._read.files)

    def advance(self, store: Store) -> Intake | None:
        """Does the next step: appends the files that were read, for the caller to commit, and returns None; or returns
        the next run, for a thread. Call it when nothing appended is uncommitted. OSError: the log has no room for
        `size`."""
        if self._read is None:
            return self._begin(store.log.background_sync())
        read = self._read
        self._owner.take_in_files(read.files, read.token)
        self._read, self._appended = None, read
        store.transaction.undo(self._take_back)
        return None

    def _take_back(self) -> None:
        self._appended = None
        self.list_again()

    def _begin(self, before: Callable[[], None] | None) -> Intake:
        tokens = set(self._owner.taken)
        if self._list_again and self._listing is None:
            self._list_again = False
            self._listing = _oldest_first(self._disk.file_blocks_in(self.path))
            self._listed_for = tokens
        names, self._names = self._names, []
        work = self._running = Intake(
            self.path,
            self._disk,
            self._doors.open_states,
            names=names,
            listing=self._listing,
            count=max(self._owner.room(), 0),
            committed_tokens=tokens,
            to_remove=[] if self._appended is None else [file.name for file in self._appended.files],
            before=before,
        )
        return work

    def finish(self, work: Intake) -> None:
        self._running = None
        if self.is_closed:
            return
        for name, why in work.strays:
            self._log_stray(name, why)
        if work.error is not None:
            self._listing = None
            self.list_again()
            self.put_off(work.error)
            return
        self._names[:0] = work.postponed
        if self._appended is not None:
            self._owner.note_unlinked([self._appended.token])
            self._appended = None
        if self._listing is not None and work.listing is None:
            self._owner.note_unlinked(self._listed_for.intersection(self._owner.taken))
        self._listing = work.listing
        if work.files:
            self._read = work
        if self._logged_reason:
            self._logged_reason = ""
            _logger.warning("files are taken in from %s again", self.path)
        self._doors.wake(self)

    def put_off(self, error: OSError) -> None:
        """Schedules another try, and logs the reason once."""
        self._not_before = self._clock() + _TRY_AGAIN
        self._doors.wake(self)
        reason = "there is no room for them" if has_no_room(error) else str(error)
        if reason != self._logged_reason and self._owner.in_place():
            _logger.error(
                "files in %s cannot be taken in, and wait: %s; qs tries again every second", self.path, reason
            )
            self._logged_reason = reason

    def _log_stray(self, name: str, why: str) -> None:
        if name in self._logged_strays or len(self._logged_strays) > _NAMED:
            return
        self._logged_strays.add(name)
        if len(self._logged_strays) > _NAMED:
            _logger.warning("%s holds more files that are not taken in; they are not named", self.path)
        else:
            _logger.warning("%s/%s is no message, and stays: %s", self.path, name, why)


def files_size(files: Iterable[File]) -> int:
    """Returns the bytes of log that files take as messages."""
    beside = records.PUSH_SIZE + records.SMALL
    return sum(len(file.payload) + beside + len(file.reason.encode()) for file in files) + records.SMALL


class DoorQueue(LogQueue):
    """A queue of the log with its directory, which is a door: files that other programs put there become messages."""

    def __init__(  # noqa: PLR0917
        self, path: str, qid: str, options: Options, shared: Shared, store: Store, doors: Doors
    ) -> None:
        """OSError if the directory does not exist."""
        super().__init__(path, qid, options, shared, store)
        self.unbounded = False
        """True to take in files whatever the queue's capacity is."""
        self.is_closed = False
        self.door = Door(path, shared.disk, doors, shared.clock, self)
        self._watched = shared.watch.add(path, self)

    def room(self) -> int:
        """Returns how many files may be taken in."""
        capacity = self.options.capacity
        return MAX_MID if capacity is None or self.unbounded else capacity - len(self)

    def take_in_files(self, files: Sequence[File], token: int) -> None:
        """Stores the messages of files: each keeps its id where that is free. NoRoomError: nothing has changed."""
        now, transaction = self.clock(), self.transaction
        size = files_size(files)
        if size > transaction.left_to_pushes:
            raise transaction.refusal(size, push=True)
        kept: dict[int, File] = {}
        others: list[File] = []
        for file in sorted(files, key=itemgetter(1)):
            if file.mid in kept or file.mid in self.index.messages:
                others.append(file)
            else:
                kept[file.mid] = file
        self._take_in_run(list(kept), list(kept.values()), now)
        self._take_in_run(self.free_ids(len(others), now), others, now)
        self.taken[token] = transaction.append(records.Taken(self.number, token).write())
        transaction.undo(self.taken.pop, token)

    def _take_in_run(self, mids: Sequence[int], files: Sequence[File], now: int) -> None:
        if not files:
            return
        self.push_run(mids, [file.payload for file in files], now)
        self.saw(mids[-1])
        for mid, file in zip(mids, files, strict=True):
            if file.reason:
                self.transaction.append(records.Reason(self.number, mid, *file.state, file.reason).write())
                self.set_reason(mid, file.reason)
            elif any(file.state):
                self.transaction.append(records.Changed(self.number, mid, *file.state).write())
            if any(file.state):
                self.restore_state(mid, file.state)

    def note_unlinked(self, tokens: Iterable[int]) -> None:
        """Notes that the files of these tokens are removed. The note may be lost: a start finds no such file."""
        for token in tokens:
            del self.taken[token]
            self.transaction.note((records.Unlinked(self.number, token).write(),))

    # -- the directory: see `EngineQueue` and `Watched` -----------------------------------------------------------

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """Takes in a file that was made or renamed in the directory (called by Watch)."""
        if appeared:
            self.door.appeared(name)

    def rescan(self) -> None:
        """Takes in all files in the directory (called by Watch when reports were lost)."""
        self.door.list_again()

    def vanished(self) -> None:
        """Reports that the directory is gone (called by Watch)."""
        self._activity.vanished[self.qid] = None

    def close(self) -> list[int]:
        """Stops watching the directory. Returns an empty list, as no push is unfinished."""
        self.is_closed = True
        self.door.close()
        if self._watched >= 0:
            self._shared.watch.remove(self._watched)
        return []
