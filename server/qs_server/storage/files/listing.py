"""Lists a queue's directory in the vsqs layout at the start, and then keeps its index by reports of what others do."""

import errno
import logging
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import islice
from operator import eq
from typing import NamedTuple

from ..disk import Disk
from ..engine import SECOND
from ..names import FAR, NEW, parse_message, ready_among
from ..shared import Shared
from .directory import MessageDirectory
from .ignored_files import IgnoredFiles
from .staging import finish_batches

_logger = logging.getLogger(__name__)
_STALE_AFTER = 600
"""Seconds after which a file that is being written, and not written to, was left behind by a crash."""


class FileListing:
    """Keeps the index of a queue: its DirectoryWatch. Reports come from Watch."""

    def __init__(self, qid: str, directory: MessageDirectory, shared: Shared, is_ours: Callable[[str], bool]) -> None:
        """is_ours: tells whether a file that is being written is to be left alone."""
        self._qid = qid
        self._directory = directory
        self._path = directory.path
        self._shared = shared
        self._disk = shared.disk
        self._is_ours = is_ours
        self._ignored = IgnoredFiles(directory.path)
        # Before listing: what comes in between is seen twice, not never.
        self._number = directory.watch = shared.watch.add(directory.path, self)

    @property
    def watched(self) -> bool:
        return self._number >= 0

    def unwatch(self) -> None:
        self._shared.watch.remove(self._number)

    def rescan(self) -> None:
        directory = self._directory
        ready, hidden, others = _list_messages(self._path, self._disk)
        if finish_batches(self._path, others, self._disk):
            self.rescan()
            return
        written: set[int] = set()
        for name in others:
            parsed = parse_message(os.fsencode(name))
            if parsed is not None and not self.clear_left_behind(name):
                written.add(parsed[0])
            elif name.startswith(".") and name.endswith(".tmp"):
                self.clear_left_behind(name)
            elif parsed is None:
                self._ignored.log(name)
        index = directory.index
        index.reset(ready, hidden)
        directory.origins.clear()
        for store in (directory.attributes, directory.letters):
            store.clear(others, lambda mid: mid in index.messages or mid in written)
        last = next((mid for mid in reversed(ready) if mid < FAR), -1)
        directory.saw(max((mid for mid in hidden if last < mid < FAR), default=last))
        if index.ready:
            directory.arrived()
        if (due := index.expiries.first()) is not None:
            directory.announce(due)

    def clear_left_behind(self, name: str, after: int = _STALE_AFTER) -> bool:
        """Removes a file that was being written, after so many seconds without a write. Returns whether it is gone."""
        path = f"{self._path}/{name}"
        try:
            idle = self._shared.clock() / SECOND - self._disk.lstat(path).st_mtime
            if idle > after and not self._is_ours(name):
                self._disk.unlink(path)
                _logger.info("%s was left behind by a crash; removed", path)
                return True
        except OSError as error:  # ENOENT: its writer has just finished it, or given up
            if error.errno != errno.ENOENT:
                _logger.warning("%s was left behind by a crash, and stays: %s", path, error)
        return False

    def vanished(self) -> None:
        self._shared.vanished(self._qid)

    def changed(self, name: bytes, *, appeared: bool) -> None:
        parsed = parse_message(name)
        if parsed is None:
            self._ignored.log(os.fsdecode(name))
            return
        mid, expiry = parsed
        directory, index = self._directory, self._directory.index
        if expiry == NEW:
            return
        directory.saw(mid)
        known = index.expiry(mid)
        if appeared is (known == expiry) or os.path.lexists(directory.name_path(mid, expiry)) is not appeared:
            return  # by now it, or we, have done more
        if known is not None:
            directory.drop(mid)
        if appeared:
            self._adopt(mid, expiry)

    def _adopt(self, mid: int, expiry: int) -> None:
        directory = self._directory
        directory.index.add(mid, expiry)
        try:
            if not directory.load(mid):
                return
        except OSError as error:
            _logger.warning("%s cannot be looked at yet: %s", directory.name_path(mid, expiry), error)
        if expiry:
            directory.announce(expiry)
        else:
            directory.arrived()


class _Listed(NamedTuple):
    """The ready messages in order, the hidden ones with their extensions, and the names of all other files."""

    ready: "array[int]"
    hidden: dict[int, int]
    others: list[str]


def _list_messages(path: str, disk: Disk) -> _Listed:
    """Lists a directory, in little more time than it takes to read the names. OSError."""
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
