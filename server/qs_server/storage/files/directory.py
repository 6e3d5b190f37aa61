"""A directory in the vsqs layout and the index of its messages, kept in step by our own operations and by reports of
what others do.

File names are the truth. A message's file is named by its id; the extension is its state. When a file is not where the
index has it, another process was faster: its report is on the way or here, and the caller looks again.
"""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator

from ..disk import READ
from ..engine import SECOND, Durability, Options
from ..index.message_index import Index
from ..message_store import MessageState
from ..names import FAR, MAX_MID, NEW, message_name, parse_message
from ..shared import DirectoryIdentity, Shared
from .attributes import Attributes, store_for
from .ignored_files import IgnoredFiles
from .listing import list_messages
from .staging import finish_batches

_logger = logging.getLogger(__name__)
STALE_AFTER = 600
"""Seconds after which a file that is being written, and not written to, was left behind by a crash."""
_NOT_TO_OPEN = frozenset({errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM})
"""Errors that mean: no file, or none that we may read."""


class MessageDirectory:
    """The files of one queue and their index: its MessageStore and its DirectoryWatch."""

    def __init__(self, path: str, qid: str, options: Options, shared: Shared, is_ours: Callable[[str], bool]) -> None:
        """path: an existing directory. is_ours: tells whether a file that is being written is to be left alone.
        Lists nothing yet: see `rescan`. OSError."""
        self.path = path
        self.index = Index()
        self.last_mid = -1
        self.attributes = store_for(path, shared.disk, sync=shared.always)
        self._qid = qid
        self._shared = shared
        self._disk = shared.disk
        self._watch = shared.watch
        self._activity = shared.activity
        self._is_ours = is_ours
        self._unit = 1000 if options.timestamps == "ms" else 1
        self._unsynced: set[int] = set()  # messages whose file has to be synced at the next commit
        self._ignored = IgnoredFiles(path)
        self.in_place = DirectoryIdentity(path, shared.disk).in_place
        self._watched = self._watch.add(path, self)  # before listing: what comes in between is seen twice, not never

    # -- what the engine is told

    def arrived(self) -> None:
        """Announces that a message has become visible."""
        self._activity.arrived.add(self._qid)

    def _announce(self, expiry: int) -> None:
        """Announces that a message is hidden until then."""
        self._activity.announce(self._qid, self.time(expiry))

    def vanished(self) -> None:
        """Tells the engine that the directory is gone (from Watch)."""
        self._shared.vanished(self._qid)

    def touch(self, mid: int | None = None) -> None:
        """Has the next commit sync names, and the attributes of a message."""
        if self._shared.durability is not Durability.NONE:
            self._activity.dirty.add(self._qid)
            if mid is not None and self._shared.always:
                self._unsynced.add(mid)

    # -- names

    def name_path(self, mid: int, expiry: int) -> str:
        """Returns the path of a message in a state: ready when expiry is 0."""
        return f"{self.path}/{message_name(mid, expiry)}"

    def path_of(self, mid: int) -> str:
        """Returns the path of a message, as far as the index knows."""
        return self.name_path(mid, self.index.expiry(mid) or 0)

    def number(self, time: int) -> int:
        """Returns a time as the number in a file name, which has 18 digits at most."""
        return min(time // self._unit, MAX_MID)

    def time(self, number: int) -> int:
        """Returns a number in a file name as a time."""
        return number * self._unit

    def pushed_at(self, mid: int) -> int:
        """Returns when a message was pushed."""
        return mid * self._unit

    def saw(self, mid: int) -> None:
        """Has our next ids be greater than this one. Ignores ids so large that none could follow."""
        if self.last_mid < mid < FAR:
            self.last_mid = mid

    # -- listing

    def rescan(self) -> None:
        """Lists the directory anew: at the start, and when reports were lost (from Watch)."""
        ready, hidden, others = list_messages(self.path, self._disk)
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
                self._ignored.log(name)
        self.index.reset(ready, hidden)
        self.attributes.clear(others, lambda mid: mid in self.index.messages or mid in written)
        last = next((mid for mid in reversed(ready) if mid < FAR), -1)
        self.saw(max((mid for mid in hidden if last < mid < FAR), default=last))
        if self.index.ready:
            self.arrived()
        if (due := self.index.next_expiry()) is not None:
            self._announce(due)

    def clear_left_behind(self, name: str, after: int = STALE_AFTER) -> bool:
        """Removes a file that was being written, after so many seconds without a write. Returns whether it is gone."""
        path = f"{self.path}/{name}"
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

    # -- reports (from Watch)

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """Takes notice of what another process did to a file. By now it, or we, may have done more."""
        parsed = parse_message(name)
        if parsed is None:
            self._ignored.log(os.fsdecode(name))
            return
        mid, expiry = parsed
        if expiry == NEW:
            return
        self.saw(mid)
        known = self.index.expiry(mid)
        if appeared is (known == expiry) or os.path.lexists(self.name_path(mid, expiry)) is not appeared:
            return
        if known is not None:
            self.index.remove(mid)
        if appeared:
            self._adopt(mid, expiry)

    def _adopt(self, mid: int, expiry: int) -> None:
        self.index.add(mid, expiry)
        try:
            if not self.load(mid):
                return
        except OSError as error:
            _logger.warning("%s cannot be looked at yet: %s", self.name_path(mid, expiry), error)
        if expiry:
            self._announce(expiry)
        else:
            self.arrived()

    # -- what names do not say

    def load(self, mid: int) -> bool:
        """Looks at the file of a message, unless that was done before. False when it is no message, or gone."""
        index = self.index
        if index.loaded(mid):
            return True
        expiry = index.expiry(mid)
        if expiry is None:
            return False
        path = self.name_path(mid, expiry)
        try:
            status = self._disk.lstat(path)
        except FileNotFoundError:
            self._lost(mid, expiry)
            return False
        if not stat.S_ISREG(status.st_mode):
            self._disown(mid, path)
            return False
        if not expiry:
            self._load_ready(mid, path, status.st_size)
            return True
        receives, delayed_until = self.attributes.read(path, mid)
        delayed = delayed_until == expiry
        if not delayed and not receives:
            # Taken by a program that does not count. It must not become new again when it comes back.
            receives = 1
            self.attributes.write(path, mid, Attributes(receives))
        index.load(mid, status.st_size, retrieved=receives > 0, delayed=delayed)
        return True

    def _load_ready(self, mid: int, path: str, size: int) -> None:
        if not self.index.loaded(mid):
            retrieved = self.attributes.receives(path, mid) > 0
            self.index.load(mid, size, retrieved=retrieved, delayed=False)

    def _disown(self, mid: int, path: str) -> None:
        """Forgets what has the name of a message and is none."""
        _logger.warning("%s is not a file, and no message", path)
        self.index.remove(mid)

    def read(self, mid: int, expiry: int, max_bytes: int | None = None) -> bytes | None:
        """Reads the payload of a message in a state. None: it is over max_bytes, or not there any more. OSError."""
        size = self.index.known_size(mid)
        if max_bytes is not None and size is not None and size > max_bytes:
            size = None  # it is looked at whether that is so still
        path = self.name_path(mid, expiry)
        try:
            fd = self._disk.open(path, READ)
        except FileNotFoundError:
            self._lost(mid, expiry)
            return None
        except OSError as error:
            if error.errno not in _NOT_TO_OPEN:
                raise
            self._disown(mid, path)
            return None
        try:
            payload = self._read_begin(fd, size) if size else b""
            if size and len(payload) == size:
                return payload  # of a regular file, as when its size was noted; an fstat costs as much as an open
            return self._look_into(fd, path, mid, max_bytes, payload)
        finally:
            self._disk.close(fd)

    def _read_begin(self, fd: int, size: int) -> bytes:
        """Reads one byte more than the size. Nothing when it cannot be read: it may be no regular file."""
        try:
            return self._disk.read(fd, size + 1)
        except OSError:
            return b""

    def _look_into(self, fd: int, path: str, mid: int, max_bytes: int | None, begin: bytes) -> bytes | None:
        """Reads a file that was not looked at before, or is not what it was. begin: has been read already."""
        status = self._disk.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            self._disown(mid, path)
            return None
        if mid in self.index.ready:
            self._load_ready(mid, path, status.st_size)
        if max_bytes is not None and status.st_size > max_bytes:
            return None
        return begin + self._disk.read_all(fd, max(status.st_size - len(begin), 0))

    def look(self, mid: int) -> MessageState | None:
        """Returns how a message is now; None when it is gone. OSError."""
        while (expiry := self.index.expiry(mid)) is not None:
            if self.index.loaded(mid) or self.load(mid):
                attributes = self.attributes.read(self.name_path(mid, expiry), mid)
                return MessageState(expiry, attributes.receives, delayed=self.index.is_delayed(mid))
        return None

    def is_current(self, mid: int, state: MessageState) -> bool:
        """Tells whether the file was there when its attributes were read."""
        if os.path.lexists(self.name_path(mid, state.hidden)):
            return True
        self._lost(mid, state.hidden)
        return False

    @contextlib.contextmanager
    def exclusive(self, mid: int) -> Iterator[MessageState | None]:
        """Gives how a message is now; None when it is gone. Nobody can be kept away: a rename or an unlink succeeds for
        one of several. OSError."""
        yield self.look(mid)

    # -- changes of ours

    def hide(self, mid: int, state: MessageState, wanted: MessageState, *, durable: bool = True) -> bool:
        """Renames a message to be hidden. False when another process was faster. OSError."""
        if wanted.delayed:
            delay = Attributes(wanted.receives, wanted.hidden)
            self.attributes.write(self.name_path(mid, state.hidden), mid, delay)
        if wanted.hidden != state.hidden and not self._rename(mid, state.hidden, wanted.hidden):
            return False
        try:
            if wanted.receives != state.receives:
                # After the rename, so that what another consumer got is not counted by us.
                self.attributes.write(self.name_path(mid, wanted.hidden), mid, Attributes(wanted.receives))
        except OSError:
            self._put_back(mid, wanted.hidden)
            raise
        self._note_hidden(mid, wanted.hidden, delayed=wanted.delayed, durable=durable)
        return True

    def _put_back(self, mid: int, expiry: int) -> None:
        try:
            self._rename(mid, expiry, 0)
        except OSError:
            self._note_hidden(mid, expiry, delayed=False)  # then it comes back when its window ends

    def _note_hidden(self, mid: int, expiry: int, *, delayed: bool, durable: bool = True) -> None:
        self.index.hide(mid, expiry, delayed=delayed)
        self._announce(expiry)
        if durable:
            self.touch(mid)

    def show(self, mid: int, state: MessageState) -> bool:
        """Renames a message to be ready. False when another process was faster. OSError."""
        if not self._rename(mid, state.hidden, 0):
            return False
        self.index.show(mid)
        self.arrived()
        self.touch()
        return True

    def remove(self, mid: int, state: MessageState) -> bool:
        """Unlinks a message. False when another process was faster. OSError."""
        removed = self.unlink(mid, state.hidden)
        if removed:
            self.touch()
        return removed

    def add(self, mid: int, expiry: int, size: int) -> None:
        """Notes that a message of ours was renamed to its name."""
        self._watch.expect_arrival(self._watched, message_name(mid, expiry))
        self.index.add(mid, expiry, size)
        if expiry:
            self._announce(expiry)
        else:
            self.arrived()

    def _rename(self, mid: int, old: int, new: int) -> bool:
        """Moves a message from one state to another on disk. False when another process was faster."""
        try:
            self._disk.rename(self.name_path(mid, old), self.name_path(mid, new))
        except FileNotFoundError:
            self._lost(mid, old)
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
            self._lost(mid, expiry)
            return False
        self._watch.expect_delete(self._watched, message_name(mid, expiry))
        self.index.remove(mid)
        self.forget_attributes(mid)
        return True

    def forget_attributes(self, mid: int) -> None:
        """Removes the attributes of a message that is gone. The next listing clears what cannot be removed now."""
        try:
            self.attributes.forget(mid)
        except OSError as error:
            _logger.warning("the attributes of message %s stay behind in %s: %s", mid, self.path, error)

    def _lost(self, mid: int, expiry: int) -> None:
        """Takes notice of a file that is not where the index has it."""
        self._watch.refresh()  # nothing, when this is about a report: then the next reports say where it went
        if self.index.expiry(mid) == expiry and not os.path.lexists(self.name_path(mid, expiry)):
            self.index.remove(mid)

    # -- time and durability

    def due(self, now: int) -> int | None:
        """Returns a hidden message whose time has come."""
        return self.index.due(now)

    def next_expiry(self) -> int | None:
        """Returns when the next hidden message is due."""
        number = self.index.next_expiry()
        return None if number is None else self.time(number)

    def commit(self) -> None:
        """Syncs what has changed: the attributes of messages, then the names. OSError."""
        for mid in list(self._unsynced):
            expiry = self.index.expiry(mid)
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
        """Tells whether what others do is reported."""
        return self._watched >= 0

    def unwatch(self) -> None:
        """Takes no more reports."""
        self._watch.remove(self._watched)
