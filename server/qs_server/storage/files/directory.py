"""A directory of messages and its index, kept in step: by our own operations and by reports of what others do.

File names are the truth. A message's file is named by its id; the extension is its state. When a file is not where the
index has it, another process was faster: its report is on the way or here, and the caller looks again.
"""

import errno
import logging
import os
import stat
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from operator import eq

from ..activity import Activity
from ..disk import Disk
from ..engine import SECOND, Clock, Durability, Options
from ..index.message_index import Index
from ..lifecycle import Lifecycle
from ..names import MAX_MID, NEW, message_name, parse_message, ready_among
from ..watch import Watch
from .attributes import Attributes, store_for
from .ignored import ForeignNames
from .staging import finish_batches

_logger = logging.getLogger(__name__)
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FAR = MAX_MID // 10
"""Ids from here on (the year 5138 in microseconds) are a slip of whoever made the file."""
STALE_AFTER = 600
"""Seconds after which a file that is being written, and not written to, was left behind by a crash."""


@dataclass(slots=True)
class Shared:
    """What the queues of one engine have in common. vanished: is told the name of a queue whose directory is gone;
    lifecycle: who is told of what happens to messages, if anybody is."""

    clock: Clock
    durability: Durability
    disk: Disk
    watch: Watch
    activity: Activity
    vanished: Callable[[str], None] = lambda qid: None
    lifecycle: Lifecycle | None = None


class MessageDirectory:
    """The files of one queue. Not for several threads at once."""

    def __init__(self, path: str, qid: str, options: Options, shared: Shared) -> None:
        """path: an existing directory; qid: what messages are said to come from. Lists nothing yet: see `rescan`."""
        self.path = path
        self.qid = qid
        self.options = options
        self.last_mid = -1
        self._shared = shared
        self._clock = shared.clock
        self._durability = shared.durability
        self._disk = shared.disk
        self._watch = shared.watch
        self._activity = shared.activity
        self._on_vanished = shared.vanished
        self._unit = 1000 if options.timestamps == "ms" else 1
        self._attributes = store_for(path, shared.disk, sync=shared.durability is Durability.ALWAYS)
        self._unsynced: set[int] = set()  # messages whose file has to be synced at the next commit
        self._index = Index()
        self._foreign = ForeignNames(path)
        self._identity = self._look_up()
        self._watched = self._watch.add(path, self)  # before listing: what comes in between is seen twice, not never

    def __len__(self) -> int:
        return len(self._index)

    # -- what the engine is told

    def arrived(self) -> None:
        """A message has become visible."""
        self._activity.arrived.add(self.qid)

    def hidden(self, expiry: int) -> None:
        """A message has been hidden until then."""
        self._activity.announce(self.qid, self.time(expiry))

    def vanished(self) -> None:
        """The directory is gone (from Watch)."""
        self._on_vanished(self.qid)

    def touch(self, mid: int | None = None) -> None:
        """Names have changed, and the attributes of a message."""
        if self._durability is not Durability.NONE:
            self._activity.dirty.add(self.qid)
            if mid is not None and self._durability is Durability.ALWAYS:
                self._unsynced.add(mid)

    def _look_up(self) -> tuple[int, int]:
        status = self._disk.lstat(self.path)
        return status.st_dev, status.st_ino

    def in_place(self) -> bool:
        """Whether the directory is still the one that was opened."""
        try:
            return self._look_up() == self._identity
        except FileNotFoundError:
            return False

    def is_staged(self, name: str) -> bool:
        """Whether we are writing that file now."""
        return False

    # -- names

    def name_path(self, mid: int, expiry: int) -> str:
        """The path of a message in a state: ready when expiry is 0."""
        return f"{self.path}/{message_name(mid, expiry)}"

    def number(self, time: int) -> int:
        """A time as the number in a file name, which has 18 digits at most."""
        return min(time // self._unit, MAX_MID)

    def time(self, number: int) -> int:
        """A number in a file name as a time."""
        return number * self._unit

    def _saw(self, mid: int) -> None:
        """The ids that we give are greater than those that are there, but for one that leaves no room for more."""
        if self.last_mid < mid < FAR:
            self.last_mid = mid

    # -- listing

    def rescan(self) -> None:
        """Lists the directory anew: at the start, and when reports were lost (from Watch)."""
        ready, hidden, others = self._list()
        if finish_batches(self.path, others, self._disk):
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
                self._foreign.note(name)
        self._index = index = Index(ready, hidden)
        self._attributes.clear(others, lambda mid: mid in index.messages or mid in written)
        last = next((mid for mid in reversed(ready) if mid < FAR), -1)
        self._saw(max((mid for mid in hidden if last < mid < FAR), default=last))
        if self._index.ready:
            self.arrived()
        if (due := self._index.next_expiry()) is not None:
            self.hidden(due)

    def _list(self) -> tuple["array[int]", dict[int, int], list[str]]:
        """The ready messages in order, the hidden ones, and whatever else there is. In little more time than it takes
        to read the names, and few bytes a message."""
        ready = array("Q")
        hidden: dict[int, int] = {}
        others: list[str] = []
        for names in self._disk.file_blocks_in(self.path):
            mids, rest = ready_among(names)
            ready.fromlist(mids)
            for name in rest:
                parsed = parse_message(name)
                if parsed is None or parsed[1] == NEW:
                    others.append(os.fsdecode(name))
                elif parsed[1]:
                    hidden[parsed[0]] = parsed[1]
                else:
                    ready.append(parsed[0])
        mids = sorted(ready)  # in order block by block already: comparing is all that it takes, in order of memory
        if any(map(eq, mids, islice(mids, 1, None))):
            mids = sorted(set(mids))  # a name may be read twice when it is removed and made again meanwhile
        ready = array("Q", mids)
        for mid in list(hidden):
            at = bisect_left(ready, mid)
            if at < len(ready) and ready[at] == mid:
                del hidden[mid]  # the same message twice: it is not hidden
        return ready, hidden, others

    def clear_left_behind(self, name: str, after: int = STALE_AFTER) -> bool:
        """Removes a file that was being written, after so many seconds without a write. Whether it is gone."""
        path = f"{self.path}/{name}"
        try:
            if self._clock() / SECOND - self._disk.lstat(path).st_mtime > after and not self.is_staged(name):
                self._disk.unlink(path)
                _logger.info("%s was left behind by a crash; removed", path)
                return True
        except OSError as error:  # ENOENT: its writer has just finished it, or given up
            if error.errno != errno.ENOENT:
                _logger.warning("%s was left behind by a crash, and stays: %s", path, error)
        return False

    # -- reports (from Watch)

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """Another process made, renamed or removed a file. By now it, or we, may have done more."""
        parsed = parse_message(name)
        if parsed is None:
            self._foreign.note(os.fsdecode(name))
            return
        mid, expiry = parsed
        if expiry == NEW:
            return
        self._saw(mid)
        known = self._index.expiry(mid)
        if appeared is (known == expiry) or os.path.lexists(self.name_path(mid, expiry)) is not appeared:
            return
        if known is not None:
            self._index.remove(mid)
        if appeared:
            self._adopt(mid, expiry)

    def _adopt(self, mid: int, expiry: int) -> None:
        self._index.add(mid, expiry)
        try:
            if not self.load(mid):
                return
        except OSError as error:
            _logger.warning("%s cannot be looked at yet: %s", self.name_path(mid, expiry), error)
        if expiry:
            self.hidden(expiry)
        else:
            self.arrived()

    # -- what names do not say

    def load(self, mid: int) -> bool:
        """Looks at the file of a message, unless that was done before. False when it is no message, or gone."""
        index = self._index
        if index.loaded(mid):
            return True
        expiry = index.expiry(mid)
        if expiry is None:
            return False
        path = self.name_path(mid, expiry)
        try:
            status = self._disk.lstat(path)
        except FileNotFoundError:
            self.lost(mid, expiry)
            return False
        if not stat.S_ISREG(status.st_mode):
            self.disown(mid, path)
            return False
        if not expiry:
            self.load_ready(mid, path, status.st_size)
            return True
        receives, delayed_until = self._attributes.read(path, mid)
        delayed = delayed_until == expiry
        if not delayed and not receives:
            # Taken by a program that does not count. It must not become new again when it comes back.
            receives = 1
            self._attributes.write(path, mid, Attributes(receives))
        index.load(mid, status.st_size, retrieved=receives > 0, delayed=delayed)
        return True

    def load_ready(self, mid: int, path: str, size: int) -> None:
        """Notes what is known of a ready message's file, unless it was looked at before. size: in bytes."""
        if not self._index.loaded(mid):
            retrieved = self._attributes.receives(path, mid) > 0
            self._index.load(mid, size, retrieved=retrieved, delayed=False)

    def disown(self, mid: int, path: str) -> None:
        """Something has the name of a message and is none."""
        _logger.warning("%s is not a file, and no message", path)
        self._index.remove(mid)

    # -- changes of ours

    def rename(self, mid: int, old: int, new: int) -> bool:
        """From one state to another on disk. False when another process was faster."""
        try:
            self._disk.rename(self.name_path(mid, old), self.name_path(mid, new))
        except FileNotFoundError:
            self.lost(mid, old)
            return False
        self._watch.expect_rename(self._watched, message_name(mid, old), message_name(mid, new))
        return True

    def unlink(self, mid: int, expiry: int) -> bool:
        """Removes a message from disk and index. False when another process was faster."""
        if not self.load(mid):
            return False
        try:
            self._disk.unlink(self.name_path(mid, expiry))
        except FileNotFoundError:
            self.lost(mid, expiry)
            return False
        self._watch.expect_delete(self._watched, message_name(mid, expiry))
        self._index.remove(mid)
        self.forget_attributes(mid)
        return True

    def forget_attributes(self, mid: int) -> None:
        """Of a message that is gone. The next listing clears what cannot be removed now."""
        try:
            self._attributes.forget(mid)
        except OSError as error:
            _logger.warning("the attributes of message %s stay behind in %s: %s", mid, self.path, error)

    def lost(self, mid: int, expiry: int) -> None:
        """A file is not where the index has it."""
        self._watch.refresh()  # nothing, when this is about a report: then the next reports say where it went
        if self._index.expiry(mid) == expiry and not os.path.lexists(self.name_path(mid, expiry)):
            self._index.remove(mid)

    def read_file(self, fd: int, size: int) -> bytes:
        """The whole content of an open file. size: what it was said to be."""
        payload = self._disk.read(fd, size + 1)
        if len(payload) == size:
            return payload
        parts = [payload]
        while part := self._disk.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)

    # -- durability

    def commit(self) -> None:
        """Syncs what has changed (durability ALWAYS): the attributes of messages, then the names."""
        for mid in list(self._unsynced):
            expiry = self._index.expiry(mid)
            if expiry is not None:
                self._sync_message(self.name_path(mid, expiry))
            self._unsynced.discard(mid)
        self._disk.sync_directory(self.path)

    def _sync_message(self, path: str) -> None:
        try:
            fd = self._disk.open(path, READ)
        except (FileNotFoundError, PermissionError):
            return
        try:
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    @property
    def watched(self) -> bool:
        """Whether what others do is reported."""
        return self._watched >= 0

    def unwatch(self) -> None:
        """Takes no more reports."""
        self._watch.remove(self._watched)
