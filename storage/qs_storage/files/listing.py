"""Lists a queue's directory in the vsqs layout at the start, and then updates the index by reports of changes."""

import contextlib
import errno
import fcntl
import logging
import os
from array import array
from bisect import bisect_left
from itertools import islice
from operator import eq
from typing import NamedTuple

from ..disk import Disk
from ..door import is_refused, set_aside
from ..engine import Options
from ..names import FAR, NEW, message_name, parse_message, ready_among
from ..shared import EngineContext
from .directory import MessageDirectory

_logger = logging.getLogger(__name__)
BATCH = ".batch-"
"""Begins the name of a batch file, see `writer.py`."""
TEMPORARY = ".tmp"
END = "end"
"""The last line of a complete batch file."""
MOST_IGNORED = 20
"""Ignored files of a queue that the log names: a directory may have a million."""
_MOVING = 1000
"""The most messages of which the directory knows that another program is renaming them."""
_STALE = 600
"""Seconds without a write after which a file counts as left by a crash: one that is alive is assumed to go on
sooner."""


class WatchedDirectory(MessageDirectory):
    """Lists the messages of a directory at the start, and keeps the list up to date by the reports of `Watch`.

    Ensures that the index has each message once the report about it was read, and that lists of crashed publishers are
    completed or left as they are, never shown in part. Assumes that a report may be out of date, and asks the disk.
    Never removes a file that somebody may still be writing."""

    def __init__(self, path: str, qid: str, options: Options, context: EngineContext, *, clears: bool) -> None:
        """clears: True to remove the files of crashed writers. OSError."""
        super().__init__(path, qid, options, context)
        self.writing: set[int] = set()
        """Messages that this process is writing."""
        self._clears = clears
        self._ignored: set[str] = set()
        """Files that were logged."""
        self._moving: dict[int, None] = {}
        """Messages whose old name is gone by a rename, the last ones: they come again under another name, and were
        messages before."""
        self._is_listed = False

    def rescan(self) -> None:
        index, disk = self.index, self._disk
        ready, hidden, others = _list_messages(self.path, disk)
        # A list that a crash left half published: it is completed, and then the directory has other names.
        if _finish_batches(self.path, others, disk):
            self.rescan()
            return
        written: set[int] = set()
        for name in others:
            parsed = parse_message(os.fsencode(name))
            if parsed is not None and not self.clear_left_behind(name):
                written.add(parsed[0])
            elif name.startswith(".") and name.endswith(TEMPORARY):
                self.clear_left_behind(name)
            elif parsed is None and not is_refused(os.fsencode(name)):
                self._log_ignored(name)
        # At the start, what is there counts as having been in the queue: nothing tells who has put it there.
        arrived = self._not_known(ready, hidden) if self.guarded and self._is_listed else []
        self._is_listed = True
        index.reset(ready, hidden)
        self.forget_loaded()
        self._clear_metadata(others, written)
        last = next((mid for mid in reversed(ready) if mid < FAR), -1)
        # New ids have to be greater than all here, but not than mistakes.
        self.saw(max((mid for mid in hidden if last < mid < FAR), default=last))
        if index.ready:
            self.arrived()
        if (due := index.expiries.first()) is not None:
            self.announce(due)
        for mid, expiry in arrived:
            self.drop(mid)
            self._withhold(mid, expiry)

    def _not_known(self, ready: "array[int]", hidden: dict[int, int]) -> list[tuple[int, int]]:
        """Returns the listed messages that were not known before, with their expiries."""
        known = self.index.messages
        found = [(mid, 0) for mid in ready if mid not in known]
        return found + [(mid, expiry) for mid, expiry in hidden.items() if mid not in known]

    def _clear_metadata(self, others: list[str], written: set[int]) -> None:
        """Removes metadata without messages. others: the names in the directory that are not messages; written:
        messages that are being written."""

        def known(mid: int) -> bool:
            return mid in self.index.messages or mid in written

        for store in (self.attributes, self.letters):
            store.clear(others, known)
        for name in self.attributes.headers.left_behind(others, known):
            self.clear_left_behind(name)  # not at once: its message may have come since the directory was read

    def clear_left_behind(self, name: str, after: int = _STALE) -> bool:
        """Removes a file that has not been written to for `after` seconds. Returns True if the file is gone."""
        path = f"{self.path}/{name}"
        is_ours = name.endswith(".new") and int(name.removesuffix(".new")) in self.writing
        try:
            idle = self.context.idle_seconds(path)
            if idle > after and self._clears and not is_ours:
                self._disk.unlink(path)
                _logger.info("%s was left behind by a crash; removed", path)
                return True
        except OSError as error:  # ENOENT: its writer has just finished it, or given up
            if error.errno != errno.ENOENT:
                _logger.warning("%s was left behind by a crash, and stays: %s", path, error)
        return False

    def changed(self, name: bytes, *, appeared: bool, moved: bool = False) -> None:
        parsed = parse_message(name)
        if parsed is None and not is_refused(name):
            self._log_ignored(os.fsdecode(name))
        elif parsed is not None and parsed[1] != NEW:
            self.saw(parsed[0])
            self._changed(*parsed, appeared=appeared, moved=moved)

    def _changed(self, mid: int, expiry: int, *, appeared: bool, moved: bool) -> None:
        known = self.index.expiry(mid)
        if moved and not appeared and known is not None and self.guarded:
            self._note_moving(mid)
        if appeared and known == expiry:
            if expiry or mid in self._moving or not self._withhold(mid, expiry):
                self.reload_reason(mid, expiry)  # another server may have received it meanwhile, and given it back
            else:
                self.drop(mid)  # it was written anew
            self._moving.pop(mid, None)
            return
        is_there = os.path.lexists(self.name_path(mid, expiry))
        if self.arrivals and not appeared and not is_there:
            self.arrivals.pop(message_name(mid, expiry), None)
        if appeared is (known == expiry) or is_there is not appeared:
            return  # by now it, or we, have done more
        if known is not None:
            self.drop(mid)
        if not appeared:
            return
        if mid in self._moving or not self._withhold(mid, expiry):
            self._moving.pop(mid, None)
            self._adopt(mid, expiry)

    def _note_moving(self, mid: int) -> None:
        self._moving[mid] = None
        if len(self._moving) > _MOVING:
            del self._moving[next(iter(self._moving))]  # it went to another directory

    def _withhold(self, mid: int, expiry: int) -> bool:
        """Gives a message of another program to the door. Returns False if it may be taken up at once."""
        if not self.guarded:
            return False
        # What another server has moved here as a dead letter is not checked, as what this one moves is not.
        if self.letters.read(self.name_path(mid, expiry), mid) is not None:
            return False
        self.withhold(message_name(mid, expiry))
        return True

    def folders(self) -> list[str]:
        return [self.path]

    def payload_file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def admit(self, name: str) -> None:
        found = parse_message(name.encode())
        if found is not None and os.path.lexists(f"{self.path}/{name}"):
            if self.index.expiry(found[0]) is not None:
                self.drop(found[0])
            self._adopt(*found)

    def refuse(self, name: str) -> str | None:
        refused = set_aside(self.path, name, name, self._disk)
        self.touch()
        return f"{self.path}/{refused}"

    def _adopt(self, mid: int, expiry: int) -> None:
        self.index.add(mid, expiry)
        try:
            if not self.load(mid):
                return
        except OSError as error:
            _logger.warning("%s cannot be looked at yet: %s", self.name_path(mid, expiry), error)
        if expiry:
            self.announce(expiry)
        else:
            self.arrived()

    def _log_ignored(self, name: str) -> None:
        """Logs, once for each file, that a file is not a message. Leaves out files that are hidden (of servers and
        editors) or gone."""
        path, logged = f"{self.path}/{name}", self._ignored
        if name.startswith(".") or name in logged or len(logged) > MOST_IGNORED or not os.path.lexists(path):
            return
        logged.add(name)
        if len(logged) > MOST_IGNORED:
            _logger.warning(
                "%s holds more than %d files that are no messages; no more are named", self.path, MOST_IGNORED
            )
        else:
            _logger.warning(
                "%s is no message, and is ignored: the name of one is a number (microseconds since the Epoch), as in "
                "1760000000000000",
                path,
            )


class _Listed(NamedTuple):
    """The names in a directory: ready messages in order, hidden ones with their extensions, all other names."""

    ready: "array[int]"
    hidden: dict[int, int]
    others: list[str]


def _list_messages(path: str, disk: Disk) -> _Listed:
    """Lists a directory, which takes little more time than reading the names. OSError."""
    found = array("Q")
    hidden: dict[int, int] = {}
    others: list[str] = []
    for names in disk.file_blocks_in(path):
        mids, rest = ready_among(names)
        found.fromlist(mids)
        for name in rest:
            parsed = parse_message(name)
            if parsed is None or parsed[1] == NEW:
                others.append(os.fsdecode(name))
            elif parsed[1]:
                hidden[parsed[0]] = parsed[1]
            else:
                found.append(parsed[0])
    mids = sorted(found)  # each block is in order already
    if any(map(eq, mids, islice(mids, 1, None))):
        mids = sorted(set(mids))  # a name may be read twice when it is removed and made again meanwhile
    ready = array("Q", mids)
    for mid in list(hidden):
        at = bisect_left(ready, mid)
        if at < len(ready) and ready[at] == mid:
            del hidden[mid]  # the same message twice: it is not hidden
    return _Listed(ready, hidden, others)


def _finish_batches(directory: str, names: list[str], disk: Disk) -> bool:
    """Completes the lists of crashed publishers. names: the names in the directory. Returns True if there were such
    lists. OSError."""
    batches = [name for name in names if name.startswith(BATCH) and not name.endswith(TEMPORARY)]
    return sum(_finish_batch(directory, name, disk) for name in batches) > 0


def _finish_batch(directory: str, name: str, disk: Disk) -> bool:
    try:
        fd = disk.open_file(f"{directory}/{name}", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False  # its publisher is at it
        # With the lock held: its publisher is gone, and no other server completes the list at the same time.
        _do_what_it_says(directory, disk.read(fd, disk.fstat(fd).st_size), disk)
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}")
    finally:
        disk.close(fd)
    return True


def _do_what_it_says(directory: str, note: bytes, disk: Disk) -> None:
    lines = note.split(b"\n")
    # Its publisher crashed while it wrote this: nothing was renamed yet, and nothing is.
    if lines[-1] != END.encode():
        return
    for line in lines[:-1]:
        old, _, new = line.partition(b" ")
        if parse_message(old) and parse_message(new):
            with contextlib.suppress(FileNotFoundError):
                disk.rename(f"{directory}/{old.decode()}", f"{directory}/{new.decode()}")
