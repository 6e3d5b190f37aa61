"""A directory of messages and its index, kept in step: by our own operations and by reports of what others do.

File names are the truth. A message's file is named by its id; the extension is its state. When a file is not where the
index has it, another process was faster: its report is on the way or here, and the caller looks again.
"""

import logging
import os
import stat

from .attributes import Attributes, store_for
from .disk import Disk
from .engine import SECOND, Clock, Options
from .index import Index
from .names import NEW, message_name, parse_message
from .staging import finish_batches
from .watch import Watch

_logger = logging.getLogger(__name__)
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_STALE_AFTER = 600
"""Seconds after which a file that is being written, and not written to, was left behind by a crash."""


class MessageDirectory:
    """The files of one queue. Subclasses say what happens when a message arrives, and when the directory is gone."""

    def __init__(self, path: str, options: Options, *, clock: Clock, disk: Disk, watch: Watch, sync: bool) -> None:
        self.path = path
        self.options = options
        self.last_mid = -1
        self._clock = clock
        self._disk = disk
        self._watch = watch
        self._unit = 1000 if options.timestamps == "ms" else 1
        self._attributes = store_for(path, disk, sync=sync)
        self._watched = watch.add(path, self)  # before listing: what comes in between is seen twice, not never
        self._index = Index()

    # -- for subclasses

    def arrived(self, mid: int) -> None:
        """A message has become visible."""

    def hidden(self, mid: int, expiry: int) -> None:
        """A message has been hidden until then."""

    def vanished(self) -> None:
        """The directory is gone (from Watch)."""

    def is_staged(self, mid: int) -> bool:
        """Whether we are writing that message now."""
        return False

    # -- names

    def name_path(self, mid: int, expiry: int) -> str:
        """The path of a message in a state: ready when expiry is 0."""
        return f"{self.path}/{message_name(mid, expiry)}"

    def number(self, time: int) -> int:
        """A time as the number in a file name."""
        return time // self._unit

    def time(self, number: int) -> int:
        """A number in a file name as a time."""
        return number * self._unit

    # -- listing

    def rescan(self) -> None:
        """Lists the directory anew: at the start, and when reports were lost (from Watch)."""
        names = self._disk.files_in(self.path)
        if finish_batches(self.path, names, self._disk):
            self.rescan()
            return
        found: dict[int, int] = {}
        for name in names:
            parsed = parse_message(os.fsencode(name))
            if parsed is None:
                continue
            mid, expiry = parsed
            if expiry == NEW:
                self._clear_left_behind(mid)
            else:
                found[mid] = expiry
        self._index = Index(found.items())
        self.last_mid = max(self.last_mid, self._index.messages.last() or -1)
        if (first := self._index.ready.first()) is not None:
            self.arrived(first)
        if (due := self._index.next_expiry()) is not None:
            self.hidden(-1, due)

    def _clear_left_behind(self, mid: int) -> None:
        """Removes a file that was being written, when nobody can be writing it any more."""
        if self.is_staged(mid):
            return
        path = f"{self.path}/{mid}.new"
        try:
            if self._clock() / SECOND - self._disk.lstat(path).st_mtime > _STALE_AFTER:
                self._disk.unlink(path)
                _logger.info("%s was left behind by a crash; removed", path)
        except FileNotFoundError:
            pass  # its publisher has finished it, or given up; the watch reports which

    # -- reports (from Watch)

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """Another process made, renamed or removed a file."""
        parsed = parse_message(name)
        if parsed is None or parsed[1] == NEW:
            return
        mid, expiry = parsed
        known = self._index.expiry(mid)
        if not appeared:
            if known == expiry:
                self._index.remove(mid)
            return
        if known == expiry:
            return
        if known is not None:
            self._index.remove(mid)
        self._adopt(mid, expiry)

    def _adopt(self, mid: int, expiry: int) -> None:
        self._index.add(mid, expiry)
        self.last_mid = max(self.last_mid, mid)
        if not self.load(mid):
            return
        if expiry:
            self.hidden(mid, expiry)
        else:
            self.arrived(mid)

    # -- what names do not say

    def load(self, mid: int) -> bool:
        """Looks at the file of a message, unless that was done before. False when it is no message after all, or gone."""
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
        receives, delayed_until = self._attributes.read(path, mid)
        delayed = bool(expiry) and delayed_until == expiry
        if expiry and not delayed and not receives:
            # Taken by a program that does not count. It must not become new again when it comes back.
            receives = 1
            self._attributes.write(path, mid, Attributes(receives))
        index.load(mid, status.st_size, retrieved=receives > 0, delayed=delayed)
        return True

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
        self._attributes.forget(mid)
        self._index.remove(mid)
        return True

    def lost(self, mid: int, expiry: int) -> None:
        """A file is not where the index has it."""
        self._watch.refresh()
        if self._index.expiry(mid) == expiry and not os.path.lexists(self.name_path(mid, expiry)):
            self._index.remove(mid)

    def read(self, fd: int, size: int) -> bytes:
        """The whole content of an open file. size: what it was said to be."""
        payload = self._disk.read(fd, size + 1)
        if len(payload) == size:
            return payload
        parts = [payload]
        while part := self._disk.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)

    def unwatch(self) -> None:
        """Takes no more reports."""
        self._watch.remove(self._watched)
