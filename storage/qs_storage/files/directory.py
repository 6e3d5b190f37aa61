"""The messages of a directory in the vsqs layout, and their index.

File names are the truth: a message's id, and its state as the extension. If a file is not where the index has it,
another process was faster: its report is on the way, and the caller looks again.
"""

import errno
import logging
import os
import stat
from contextlib import AbstractContextManager, nullcontext, suppress

from ..disk import READ
from ..engine import Durability, Headers, Options, Origin
from ..index.midmap import MidMap
from ..message_store import Content, MessageState, MessageStore
from ..metadata import Attributes, OriginStore, StoredHeaders, store_for
from ..names import FAR, MAX_MID, message_name
from ..shared import EngineContext
from ..watch import DELETE, MOVED_FROM, MOVED_TO

_logger = logging.getLogger(__name__)
_NOT_TO_OPEN = frozenset({errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM})
"""Errors of something that is not a file, or must not be read."""


class MessageDirectory(MessageStore):
    """The messages of a directory in the vsqs layout: looks at them, and changes them. `WatchedDirectory` lists them.

    Ensures that a change of state is one rename, and a removal one unlink: of several processes one succeeds, and the
    others get False. What a rename does not carry (receives, reasons) is written before it if the next holder needs it,
    else after it.

    Assumes that file names are the truth. If a file is not where the index has it, another process was faster: its
    report is on the way, and the caller looks again."""

    far = FAR

    def __init__(self, path: str, qid: str, options: Options, context: EngineContext) -> None:
        super().__init__(path, qid, options, context)
        self.attributes = store_for(path, context.disk, sync=context.always)
        self.letters = OriginStore(path, context.disk, beside=self.attributes.beside, sync=context.always)
        self._headed = MidMap()
        """The loaded messages with headers: twice their bytes, and 1 more if they are in a hidden file."""
        self._unit = 1000 if options.timestamps == "ms" else 1

    # -- what the engine is told

    def announce(self, expiry: int) -> None:
        """Announces when a hidden message becomes visible."""
        self._activity.announce(self.qid, self.time(expiry))
        if self.options.retention is not None:
            self.arrived()  # a delayed one may be too old before

    def touch(self, mid: int | None = None) -> None:
        """Makes the next commit sync the directory's names, and a message's attributes."""
        if self.context.durability is not Durability.NONE:
            self._activity.dirty.add(self.qid)
            if mid is not None and self.context.always:
                self._unsynced.add(mid)

    # -- names

    def name_path(self, mid: int, expiry: int) -> str:
        """Returns the path of a message's file in a state. expiry: 0 for a ready message."""
        return f"{self.path}/{message_name(mid, expiry)}"

    def path_of(self, mid: int) -> str:
        return self.name_path(mid, self.index.expiry(mid) or 0)

    def number(self, time: int) -> int:
        return min(time // self._unit, MAX_MID)

    def time(self, number: int) -> int:
        """Converts a number of the layout to microseconds since the Epoch. Returns at most what an answer can say, as
        other programs may choose any number."""
        return number if self._unit == 1 else min(number * self._unit, MAX_MID)

    def pushed_at(self, mid: int) -> int:
        return mid if self._unit == 1 else min(mid * self._unit, MAX_MID)

    def last_at(self, time: int) -> int:
        return time // self._unit

    # -- looking at one

    def load(self, mid: int) -> bool:
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
            self.lost(mid, expiry)
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
        size = status.st_size + self._load_history(mid, path)
        index.load(mid, size, retrieved=receives > 0, delayed=delayed)
        return True

    def _load_ready(self, mid: int, path: str, size: int) -> None:
        if not self.index.loaded(mid):
            retrieved = False
            # One look tells for most messages that there is nothing to read.
            if self.attributes.may_be_there(path, mid):
                retrieved = self.attributes.receives(path, mid) > 0
                size += self._load_history(mid, path)
            self.index.load(mid, size, retrieved=retrieved, delayed=False)

    def _load_history(self, mid: int, path: str) -> int:
        """Reads where a message comes from, and why it was given back. Returns the bytes of its headers."""
        origin = self.letters.read(path, mid)
        if origin is not None:
            self.origins[mid] = origin
        self._load_reason(mid, path)
        headers = self.attributes.headers.find(path, mid)
        if headers is None:
            return 0
        self._note_headers(mid, headers)
        return headers.size

    def _note_headers(self, mid: int, headers: StoredHeaders) -> None:
        self._headed.set(mid, 2 * headers.size + headers.is_file)

    def stored_headers(self, mid: int) -> StoredHeaders | None:
        """Returns where the headers of a loaded message are, None without any."""
        found = self._headed.get(mid)
        return None if found is None else StoredHeaders(found // 2, is_file=found % 2 > 0)

    def _load_reason(self, mid: int, path: str) -> None:
        if reason := self.attributes.reasons.read(path, mid):
            self.reasons[mid] = reason
        else:
            self.reasons.pop(mid, None)

    def reload_reason(self, mid: int, expiry: int) -> None:
        """Reads a message's reason again after the message was gone and has come back. OSError."""
        if self.index.loaded(mid):
            self._load_reason(mid, self.name_path(mid, expiry))

    def _disown(self, mid: int, path: str) -> None:
        """Forgets a message whose name belongs to something other than a file."""
        _logger.warning("%s is not a file, and no message", path)
        self.drop(mid)

    def look(self, mid: int, *, removing: bool = False) -> MessageState | None:
        while (expiry := self.index.expiry(mid)) is not None:
            if self.load(mid):
                return MessageState(expiry, self._receives(mid, expiry, removing), self.index.is_delayed(mid))
        return None

    def _receives(self, mid: int, expiry: int, removing: bool) -> int:
        try:
            return self.attributes.receives(self.name_path(mid, expiry), mid)
        except OSError:
            if removing:
                return -1
            raise

    def is_current(self, mid: int, state: MessageState) -> bool:
        if os.path.lexists(self.name_path(mid, state.hidden)):
            return True
        self.lost(mid, state.hidden)
        return False

    def exclusive(self, mid: int, *, removing: bool = False) -> AbstractContextManager[MessageState | None]:
        # Nobody has to be kept away: a rename or an unlink succeeds for one of several processes.
        return nullcontext(self.look(mid, removing=removing))

    def read(self, mid: int, hidden: int, max_bytes: int | None = None) -> Content | None:
        path = self.name_path(mid, hidden)
        try:
            fd = self._disk.open(path, READ)
        except FileNotFoundError:
            self.lost(mid, hidden)
            return None
        except OSError as error:
            if error.errno not in _NOT_TO_OPEN:
                raise
            self._disown(mid, path)
            return None
        try:
            status = self._disk.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self._disown(mid, path)
                return None
            if self.index.known_size(mid) is None and mid in self.index.ready:
                self._load_ready(mid, path, status.st_size)
            stored = self.stored_headers(mid) if self._headed.count else None
            size = status.st_size if stored is None else status.st_size + stored.size
            if max_bytes is not None and size > max_bytes:
                return None
            payload = self._disk.read_all(fd, status.st_size)
        finally:
            self._disk.close(fd)
        if stored is None:
            return payload, ()
        headers = self._read_headers(mid, hidden, is_file=stored.is_file)
        return None if headers is None else (payload, headers)

    def _read_headers(self, mid: int, hidden: int, *, is_file: bool) -> Headers | None:
        """Returns the headers of a message, None if the message is in another state than `hidden`."""
        path = self.name_path(mid, hidden)
        headers = self.attributes.headers.read(path, mid, is_file=is_file)
        # The file may have been renamed after it was opened: then it is not there to be asked.
        if not headers and not os.path.lexists(path):
            self.lost(mid, hidden)
            return None
        return headers

    # -- changes of ours

    def add(self, mid: int, expiry: int, size: int, headers: StoredHeaders | None) -> None:
        """Adds a message to the index after its file has got its name. size: with its headers."""
        self.context.watch.expect(self.watch, MOVED_TO, message_name(mid, expiry))
        if headers is not None:
            self._note_headers(mid, headers)
        self.index.add(mid, expiry, size)
        if expiry:
            self.announce(expiry)
        else:
            self.arrived()

    def receive(
        self, mid: int, size: int, origin: Origin | None, reason: str | None, headers: StoredHeaders | None
    ) -> None:
        """Adds a message that was moved here from another queue. size: with its headers; origin: the origin of a dead
        letter; reason: the message's last one, None without one."""
        if headers is not None:
            self._note_headers(mid, headers)
        self.index.add(mid, 0, size)
        if origin is not None:
            self.origins[mid] = origin
        if reason is not None:
            self.reasons[mid] = reason
        self.arrived()
        self.touch()

    def hide(self, mid: int, state: MessageState, wanted: MessageState, *, durable: bool = True) -> bool:
        if wanted.delayed:
            # Before the rename: a server that sees the new name has to see that it is a delay, and no window.
            delay = Attributes(wanted.receives, wanted.hidden)
            self.attributes.write(self.name_path(mid, state.hidden), mid, delay)
        if wanted.hidden != state.hidden and not self._rename(mid, state.hidden, wanted.hidden):
            return False
        try:
            if wanted.receives != state.receives:
                # After the rename, so that what another consumer got is not counted by us.
                self.attributes.write(self.name_path(mid, wanted.hidden), mid, Attributes(wanted.receives))
        except OSError:
            try:
                # Back to ready: nobody has been given it.
                self._rename(mid, wanted.hidden, 0)
            except OSError:
                self._note_hidden(mid, wanted, durable)  # then it comes back when its window ends
            raise
        self._note_hidden(mid, wanted, durable)
        if wanted.receives < state.receives and not wanted.receives:
            self.index.new.add(mid)
        return True

    def _note_hidden(self, mid: int, state: MessageState, durable: bool) -> None:
        self.index.hide(mid, state.hidden, delayed=state.delayed)
        self.announce(state.hidden)
        if durable:
            self.touch(mid)

    def show(self, mid: int, state: MessageState, receives: int) -> bool:
        path, recounted = self.name_path(mid, state.hidden), receives != state.receives
        if recounted:
            # Before the rename, as another consumer may have it right afterwards.
            self.attributes.write(path, mid, Attributes(receives), or_fail=True)
        try:
            if not self._rename(mid, state.hidden, 0):
                return False
        except OSError:
            if recounted:
                # The message is as it was: so has to be its count.
                self.attributes.write(path, mid, Attributes(state.receives))
            raise
        self.index.show(mid)
        if recounted and not receives:
            self.index.new.add(mid)
        self.arrived()
        self.touch(mid if recounted else None)
        return True

    def write_reason(self, mid: int, hidden: int, reason: str) -> None:
        """Writes why a message is given back. Call it before the message is given back. hidden: the state of the
        message's file; reason: empty for none. On a full disk, or for another user's file, keeps the reason in memory
        until the process ends. OSError."""
        self.attributes.reasons.write(self.name_path(mid, hidden), mid, reason)
        if reason:
            self.reasons[mid] = reason
        else:
            self.reasons.pop(mid, None)
        self.touch(mid)

    def remove(self, mid: int, state: MessageState) -> bool:
        removed = self.unlink(mid, state.hidden)
        if removed:
            self.touch()
        return removed

    def _rename(self, mid: int, old: int, new: int) -> bool:
        """Changes a message's state on disk. Returns False if another process was faster."""
        try:
            self._disk.rename(self.name_path(mid, old), self.name_path(mid, new))
        except FileNotFoundError:
            self.lost(mid, old)
            return False
        watch = self.context.watch
        watch.expect(self.watch, MOVED_FROM, message_name(mid, old))
        watch.expect(self.watch, MOVED_TO, message_name(mid, new))
        return True

    def unlink(self, mid: int, expiry: int) -> bool:
        """Removes a message from disk and index. Returns False if another process was faster. OSError."""
        try:
            self._disk.unlink(self.name_path(mid, expiry))
        except FileNotFoundError:
            self.lost(mid, expiry)
            return False
        self.context.watch.expect(self.watch, DELETE, message_name(mid, expiry))
        self.forget_attributes(mid)
        self.drop(mid)
        return True

    def drop(self, mid: int) -> None:
        """Removes a message that is gone from the index."""
        self.index.remove(mid)
        if self.origins:
            self.origins.pop(mid, None)
        if self.reasons:
            self.reasons.pop(mid, None)
        if self._headed.count:
            self._headed.pop(mid)

    def forget_loaded(self) -> None:
        """Forgets what is known of messages beside the index, for a new listing."""
        self.origins.clear()
        self.reasons.clear()
        self._headed = MidMap()

    def forget_attributes(self, mid: int, headers: StoredHeaders | None = None) -> None:
        """Removes the attributes of a message that is gone, before `drop`. If that fails, a later listing removes them.
        headers: those of a message that never was in the index."""
        if headers is None and self._headed.count:
            headers = self.stored_headers(mid)
        try:
            self.attributes.forget(mid)
            self.letters.forget(mid)
            if headers is not None and headers.is_file:
                self.attributes.headers.forget(mid)
        except OSError as error:
            _logger.warning("the attributes of message %s stay behind in %s: %s", mid, self.path, error)

    def lost(self, mid: int, expiry: int) -> None:
        """Handles a message whose file is not where the index has it."""
        self.context.watch.refresh()  # nothing, when this is about a report: then the next reports say where it went
        if self.index.expiry(mid) == expiry and not os.path.lexists(self.name_path(mid, expiry)):
            self.drop(mid)

    # -- time and durability

    def dismantle(self) -> None:
        """Does nothing: a directory in this layout has files only."""

    def due(self, now: int) -> int | None:
        return self.index.due(now)

    def next_expiry(self) -> int | None:
        number = self.index.expiries.first()
        return None if number is None else self.time(number)

    def commit(self) -> None:
        # Files before the directory: a name must not be durable before what it promises.
        for mid in list(self._unsynced):
            if self.index.expiry(mid) is not None:
                with suppress(FileNotFoundError, PermissionError):
                    self._disk.sync_file(self.path_of(mid), READ)
            self._unsynced.discard(mid)
        self._disk.sync_directory(self.path)
