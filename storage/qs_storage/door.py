"""Keeps out of a queue with a schema what other programs put into its directory and what the schema refuses.

A check may take seconds. So it is made in a thread, and what is not checked yet is no message. What is refused gets a
name that no message has, `NAME.invalid`: no program takes it for a message, `ls` shows it, a start does not read it
again, and nothing of it is lost. When the schema changes, it gets its name back and is checked again.

The queues of files and of dirq give what comes to the `Door`. The journal reads files in a thread of its own, and calls
`Door.fault` there: see `journal/upkeep/ingest_run.py`.
"""

import contextlib
import logging
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import Protocol

from .disk import READ, Disk
from .engine import SECOND, Clock, Options, StorageError

_logger = logging.getLogger(__name__)
Refusal = Callable[[str, Options, bytes], str | None]
"""Takes a queue's name and options, and a payload. Says why the payload may not come in, None if it may. Called only
for options with a schema, in any thread; may take seconds. StorageError, OSError: nobody can say it now."""
MAX_SIZE = 64 << 20
"""Bytes of the largest file that is checked, as all of it is in memory then."""
SLICE = 0.05
"""Seconds after which a run begins no other check: other work of the engine waits for the end of the run."""
_FILES = 200
"""The most files of a run."""
LONG = 2 * SLICE
"""Seconds from which on a run is followed by a rest of the same length, so that slow checks take at most half of the
time that other work of the engine needs."""
_TRY_AGAIN = 1 * SECOND
"""Microseconds between tries after a failure, or of what another program has locked."""
_NAMED = 20
"""The most refused files of a queue that the log names: a directory may get a million."""
_TEXT = 1000
"""The most characters of a reason in the log."""
_SUFFIX = ".invalid"
_REFUSED = re.compile(r"([0-9]+(?:\.[0-9]+)?|[0-9a-f]{14})(?:-[0-9]+)?" + re.escape(_SUFFIX))
"""Matches what `set_aside` makes of the name of a message's file, or of an element of dirq."""


# -- the names of what is refused -------------------------------------------------------------------------------------


def is_refused(name: bytes) -> bool:
    """Tells whether a file has the name of one that was refused."""
    return name.endswith(_SUFFIX.encode()) and _REFUSED.fullmatch(os.fsdecode(name)) is not None


def set_aside(folder: str, name: str, public: str, disk: Disk) -> str:
    """Gives what is refused its new name, which it returns. public: the name that it gets back later. OSError."""
    for number in count(1):
        refused = f"{public}-{number}{_SUFFIX}" if number > 1 else public + _SUFFIX
        if not os.path.lexists(f"{folder}/{refused}"):  # an earlier one of the same name is not lost either
            break
    disk.rename(f"{folder}/{name}", f"{folder}/{refused}")
    return refused


def give_back(folder: str, refused: str, disk: Disk) -> str | None:
    """Gives what was refused its name back, which it returns; None if there is another file of that name, or it is
    gone. OSError."""
    found = _REFUSED.fullmatch(refused)
    if found is None or os.path.lexists(f"{folder}/{found[1]}"):
        return None
    try:
        disk.rename(f"{folder}/{refused}", f"{folder}/{found[1]}")
    except FileNotFoundError:
        return None
    return found[1]


def _give_all_back(folders: Callable[[], list[str]], disk: Disk) -> Iterator[None]:
    """Gives all that was refused in some directories its name back, and yields after each name that it looks at.
    OSError."""
    for folder in folders():
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                give_back(folder, entry.name, disk)
                yield


# -- checks -----------------------------------------------------------------------------------------------------------


class CannotCheckError(OSError):
    """Nobody can say now whether a payload is valid. What waits for that is looked at again."""


@dataclass(eq=False, frozen=True, slots=True)
class Arrival:
    """A message that another program has put into a directory, and that was not checked yet. name: below the queue's
    directory. Each report of the same name makes another arrival."""

    name: str


class GuardedStore(Protocol):
    """The messages of a queue that other programs put files into: see `MessageStore`."""

    path: str
    qid: str
    options: Options
    arrivals: dict[str, Arrival]

    def folders(self) -> list[str]:
        """Returns the paths of the directories that have messages. For any thread."""

    def payload_file(self, name: str) -> str:
        """Returns the path of the file with the payload of an arrival. For any thread."""

    def admit(self, name: str) -> None:
        """Takes up an arrival as a message. OSError."""

    def refuse(self, name: str) -> str | None:
        """Sets an arrival aside. Returns the path that it has then; None if another program has locked it.
        FileNotFoundError if it is gone, OSError."""


class Check:
    """Checks some of what has come into one queue, and gives what was refused earlier its names back.

    Ensures that `run` uses only files, and never raises; and that a run takes some 50 ms, or as long as one check."""

    def __init__(
        self,
        store: GuardedStore,
        arrivals: list[Arrival],
        names: Iterator[None] | None,
        fault: Callable[[bytes], str | None],
        disk: Disk,
    ) -> None:
        """names: gives names back, one by one; None if no name is to be given back. fault: says why a payload is
        refused, or raises OSError."""
        self.store = store
        self.left = deque(arrivals)
        """What has to be checked in a later run."""
        self.names = names
        self.results: list[tuple[Arrival, str | None]] = []
        """What was checked, and why it is refused, None if it is not."""
        self.error: OSError | None = None
        """The error that ended the run."""
        self.seconds = 0.0
        """The length of the run."""
        self.is_dropped = False
        """True if the queue was closed meanwhile."""
        self._fault = fault
        self._disk = disk

    def run(self) -> None:
        """Does the work. Never raises."""
        begun = perf_counter()
        try:
            while self.names is not None and perf_counter() - begun < SLICE:
                if next(self.names, self) is self:
                    self.names = None
            while self.left and perf_counter() - begun < SLICE:
                self.results.append((self.left[0], self._look(self.left[0].name)))
                self.left.popleft()
        except OSError as error:
            self.error = error
        self.seconds = perf_counter() - begun

    def _look(self, name: str) -> str | None:
        path = self.store.payload_file(name)
        try:
            fd = self._disk.open(path, READ)
        except FileNotFoundError:
            return None  # who takes it up finds nothing
        except PermissionError as error:
            return f"it cannot be read ({error.strerror})"
        except OSError:
            if stat.S_ISREG(self._disk.lstat(path).st_mode):
                raise
            return "it is no regular file"
        try:
            status = self._disk.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return "it is no regular file"
            if status.st_size > MAX_SIZE:
                return f"it has {status.st_size} bytes; no more than {MAX_SIZE} are checked"
            payload = self._disk.read_all(fd, status.st_size)
        finally:
            self._disk.close(fd)
        return self._fault(payload)


class Door:
    """Checks what other programs put into the directories of an engine's queues, and says what is refused.

    Ensures:
    1. What comes into a queue with a schema becomes a message only after a check, unless it was a message before.
    2. What is refused is named in the log, once, and is not read again before the queue's schema changes.
    3. While a schema cannot be used, what comes waits, and is looked at again every second.

    Assumes that the caller runs each `Check` in another thread and passes it to `finish`."""

    def __init__(self, refusal: Refusal, clock: Clock, disk: Disk) -> None:
        self._refusal = refusal
        self._clock = clock
        self._disk = disk
        self._waiting: dict[GuardedStore, deque[Arrival]] = {}
        """By queue, in the order of the rotation, so that a queue with many files does not keep others waiting."""
        self._names: dict[GuardedStore, Iterator[None]] = {}
        """Queues in which what was refused gets its names back."""
        self._not_before: dict[GuardedStore, int] = {}
        self._rests_until = 0
        self._running: Check | None = None
        self._named: dict[GuardedStore, int] = {}
        self._complaints: dict[GuardedStore, str] = {}

    def fault(self, qid: str, options: Options, payload: bytes) -> str | None:
        """Says why a payload may not come into a queue, None if it may. May take seconds. For any thread.
        CannotCheckError, OSError."""
        if not options.schema:
            return None
        try:
            why = self._refusal(qid, options, payload)
        except StorageError as error:
            raise CannotCheckError(str(error)) from error
        if why is None:
            return None
        text = "".join(character if character.isprintable() else " " for character in why[:_TEXT])
        return f"in queue {qid!r}, {text}"

    def arrive(self, store: GuardedStore, name: str) -> None:
        """Notes what has come into a queue, for a check. name: see Arrival."""
        arrival = store.arrivals[name] = Arrival(name)
        self._waiting.setdefault(store, deque()).append(arrival)

    def look_again(self, store: GuardedStore) -> None:
        """Checks again what was refused, as the queue's schema has changed."""
        self._names[store] = _give_all_back(store.folders, self._disk)
        self._not_before.pop(store, None)
        self._named.pop(store, None)

    def forget(self, store: GuardedStore) -> None:
        """Forgets a queue that is closed."""
        store.arrivals.clear()
        if self._running is not None and self._running.store is store:
            self._running.is_dropped = True
        for known in (self._waiting, self._names, self._not_before, self._named, self._complaints):
            known.pop(store, None)

    # -- doing the work -------------------------------------------------------------------------------------------

    def due(self) -> int | None:
        """Returns when there is work, 0 for now, None for never."""
        if self._running is not None or not (self._waiting or self._names):
            return None
        first = min(self._not_before.get(store, 0) for store in (*self._waiting, *self._names))
        return max(first, self._rests_until)

    def begin(self) -> Check | None:
        """Returns work for another thread, which has to be passed to `finish`; None if nothing is due."""
        now = self._clock()
        due = self.due()
        if due is None or due > now:
            return None
        store = next(each for each in (*self._names, *self._waiting) if self._not_before.get(each, 0) <= now)
        waiting = self._waiting.pop(store, deque())
        arrivals: list[Arrival] = []
        while waiting and len(arrivals) < _FILES:
            arrival = waiting.popleft()
            if store.arrivals.get(arrival.name) is arrival:  # else it is gone, or has come again
                arrivals.append(arrival)
        if waiting:
            self._waiting[store] = waiting  # the last in the rotation
        # A copy, as the queue's options may change while the thread is at it.
        fault = partial(self.fault, store.qid, replace(store.options))
        self._running = Check(store, arrivals, self._names.pop(store, None), fault, self._disk)
        return self._running

    def finish(self, check: Check) -> None:
        """Takes up what is valid, and sets aside what is refused."""
        self._running, store = None, check.store
        if check.is_dropped:
            return
        if check.seconds >= LONG:
            self._rests_until = self._clock() + int(check.seconds * SECOND)
        again, failure = self._settle_all(store, check.results)
        error = failure or check.error
        if check.names is not None and store not in self._names:
            # An iterator that has failed is at its end.
            self._names[store] = check.names if check.error is None else _give_all_back(store.folders, self._disk)
        for arrival in again:
            store.arrivals[arrival.name] = arrival
        left = [arrival for arrival in (*check.left, *again) if store.arrivals.get(arrival.name) is arrival]
        if left:
            self._waiting.setdefault(store, deque()).extendleft(reversed(left))
        if again or error is not None:
            self._not_before[store] = self._clock() + _TRY_AGAIN
        self._complain(store, "" if error is None else str(error))

    def _settle_all(
        self, store: GuardedStore, results: list[tuple[Arrival, str | None]]
    ) -> tuple[list[Arrival], OSError | None]:
        """Takes up arrivals, or sets them aside. Returns those for which that has to be tried again, and the error of
        one."""
        again: list[Arrival] = []
        error: OSError | None = None
        for arrival, why in results:
            # Else the file is gone, or was written anew, after it was read.
            if store.arrivals.get(arrival.name) is arrival:
                del store.arrivals[arrival.name]
                try:
                    if not self._settle(store, arrival.name, why):
                        again.append(arrival)
                except OSError as failure:
                    error = failure
                    again.append(arrival)
        return again, error

    def _settle(self, store: GuardedStore, name: str, why: str | None) -> bool:
        """Takes up an arrival, or sets it aside and logs why. Returns False if that has to be tried again. OSError."""
        if why is None:
            store.admit(name)
            return True
        try:
            path = store.refuse(name)
        except FileNotFoundError:
            return True
        if path is None:
            return False
        named = self._named[store] = self._named.get(store, 0) + 1
        if named <= _NAMED:
            _logger.warning("%s is no message, and stays: %s", path, why)
        elif named == _NAMED + 1:
            _logger.warning("%s holds more files that its schema refuses; they are not named", store.path)
        return True

    def _complain(self, store: GuardedStore, reason: str) -> None:
        """Logs once why what comes into a queue cannot be checked; and that it is checked again."""
        before = self._complaints.pop(store, "")
        if reason:
            self._complaints[store] = reason
        if reason and reason != before:
            _logger.error(
                "what other programs put into %s cannot be checked, and waits: %s; qs tries again every second",
                store.path,
                reason,
            )
        elif before and not reason:
            _logger.warning("what other programs put into %s is checked again", store.path)
