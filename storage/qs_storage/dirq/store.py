"""Looks at the elements of a queue, changes them, and updates the index.

The disk is the truth: each operation looks at its element first (`look`), and keeps other servers of qs away from it
(`exclusive`). The index says where to look.

A lease says how often an element was received, and until when a server of qs has locked the element. A lease is an
extended attribute of the element, `user.qs.state`, or, where the file system has none, a hidden file `.NAME.state` in
the queue's directory. A server of qs sets the time of a locked element's last change to the end of its lease; any other
program sets that time to the present. So a lock belongs to a server of qs while the time of the last change is not
after the end of the lease. Another program's lock can only follow later. dirq's `purge` compares the same time, and so
spares the lock of a server as long as any other.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from ..disk import READ
from ..engine import SECOND, Durability, Options
from ..index.midmap import MidSet
from ..message_store import FOREIGN, Content, MessageState, MessageStore
from ..metadata import Kind, MetadataStore, lists_attributes
from ..shared import EngineContext
from .elements import FAR, Places, mid_at, time_of
from .layouts import Layout

_logger = logging.getLogger(__name__)
_NOT_TO_OPEN = frozenset({errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR})
"""Errors of something that is not an element, or must not be used."""
_LATEST = 10**17
"""Microseconds: the end of the longest window."""
_LOOK_AGAIN = 1 * SECOND
"""Microseconds between two looks at elements that other programs have locked: no event says that a lock has gone."""
_LEASE = re.compile(rb"([0-9]{1,18}) ([0-9]{1,18}) ([01])")
_LATEST_STAMP = 2**31 - 1
"""Seconds: the last time that every file system can keep."""


class Lease(NamedTuple):
    """What this server, or another one of qs, knows of an element. until: the end of the window or the delay, 0 if no
    server has locked the element; delayed: True for a delay."""

    receives: int = 0
    until: int = 0
    delayed: bool = False


def _decode_lease(value: bytes) -> Lease:
    found = _LEASE.fullmatch(value)
    if found is None:
        return Lease()
    receives, until, delayed = found.groups()
    return Lease(int(receives), int(until), delayed == b"1")


_KIND = Kind("user.qs.state", ".state", 16, lambda lease: b"%d %d %d" % lease, _decode_lease)


class Elements(MessageStore):
    """The elements of a queue: looks at them, and changes them. `WatchedElements` lists them.

    Ensures that a server of qs and a program of dirq never have an element at the same time, by taking a lock of the
    layout for each receive. The lease has what dirq does not know: the count of receives and the end of a window.

    Assumes that clocks of programs on the directory agree. The disk is the truth: each operation looks at its element
    first (`look`), and keeps other servers of qs away from it (`exclusive`)."""

    far = FAR
    of_queues = True

    def __init__(  # noqa: PLR0917
        self, path: str, qid: str, options: Options, context: EngineContext, layout: Layout, places: Places
    ) -> None:
        """path: an existing directory. OSError."""
        super().__init__(path, qid, options, context)
        self.layout = layout
        self.places = places
        lists = None if lists_attributes(path, context.disk) is None else False  # each has one, so it is asked for
        self.leases = MetadataStore(_KIND, path, context.disk, lists=lists, sync=context.always)
        self._clock = context.clock
        self._headed = MidSet()
        """The loaded elements with headers."""
        self._foreign: set[int] = set()
        """Elements that other programs are known to have locked."""
        self._look_again_at: int | None = None
        self._unsynced_folders: set[str] = set()
        self._folders_made = False

    # -- what the engine is told

    def touch(self, mid: int | None = None, folder: str = "") -> None:
        """Makes the next commit sync an element's lease or lock, or the names in an intermediate directory."""
        if self.context.durability is not Durability.NONE:
            self._activity.dirty.add(self.qid)
            if self.context.always and mid is not None:
                self._unsynced.add(mid)
                folder = folder or self.places.folder_of(mid)
            if self.context.always and folder:
                self._unsynced_folders.add(folder)

    def touch_new_folder(self, folder: str) -> None:
        """Makes the next commit sync an intermediate directory and its name."""
        self._folders_made = True
        self.touch(folder=folder)

    def pushed_at(self, mid: int) -> int:
        return time_of(mid)

    def last_at(self, time: int) -> int:
        return mid_at(time, 15)

    def number(self, time: int) -> int:
        return min(time, _LATEST)

    def time(self, number: int) -> int:
        return number

    # -- looking at one

    def state_of(self, mid: int) -> MessageState | None:
        """Returns an element's state on disk; None if it is gone. OSError."""
        place = self.places.place_of(mid)
        path = self.layout.element(place)
        # In this order: the time of an element that is locked only now would be from before.
        locked = self.layout.is_locked(place)
        try:
            status = self._disk.lstat(path)
        except FileNotFoundError:
            return None
        lease = self.leases.read(path, mid)
        if not locked:
            return MessageState(0, lease.receives)
        if not _is_ours(lease, status):
            # When such a lock ends, only its owner knows.
            return MessageState(FOREIGN, lease.receives)
        return MessageState(lease.until, lease.receives, lease.delayed)

    def look(self, mid: int) -> MessageState | None:
        index = self.index
        if index.expiry(mid) is None:
            return None
        state = self.state_of(mid)
        if state is None:
            self.drop(mid)
            return None
        if not index.loaded(mid) and not self._load(mid, state):
            return None
        known = index.expiry(mid)
        if state.hidden:
            if known != state.hidden or index.is_delayed(mid) is not state.delayed:
                index.hide(mid, state.hidden, delayed=state.delayed)
            if not state.delayed:
                index.new.discard(mid)
            self.announce(mid, state.hidden)
        elif known:
            self._show(mid)
        return state

    def _load(self, mid: int, state: MessageState) -> bool:
        size = self._size(mid)
        if size is None:
            return False
        delayed = state.delayed and bool(self.index.expiry(mid))
        self.index.load(mid, size, retrieved=state.receives > 0, delayed=delayed)
        return True

    def _size(self, mid: int) -> int | None:
        """Returns the bytes of an element's payload and headers. Drops an element that is gone or is not a message, and
        returns None."""
        place = self.places.place_of(mid)
        try:
            size = self.layout.size(place, self._disk.lstat(self.layout.element(place)))
        except FileNotFoundError:
            self.drop(mid)
            return None
        if size is None:
            self._disown(mid)
            return None
        headers = self.layout.size_of_headers(place)
        if headers:
            self.note_headers(mid)
        return size + headers

    def note_headers(self, mid: int) -> None:
        """Notes that an element has headers."""
        self._headed.add(mid)

    def is_current(self, mid: int, state: MessageState) -> bool:
        return True  # `look` has seen it

    def read(self, mid: int, hidden: int, max_bytes: int | None = None) -> Content | None:
        if max_bytes is not None and self.index.size(mid) > max_bytes:
            return None
        try:
            headed = self._headed.count > 0 and mid in self._headed
            return self.layout.read(self.places.place_of(mid), headed=headed)
        except FileNotFoundError:
            self._size(mid)
        except OSError as error:
            if error.errno not in _NOT_TO_OPEN:
                raise
            self._disown(mid)
        return None

    def load(self, mid: int) -> bool:
        return self.index.loaded(mid) or self.look(mid) is not None

    def _disown(self, mid: int) -> None:
        """Forgets an element that cannot be a message."""
        _logger.warning(
            "%s is no message that can be used (permissions, or the pieces of its schema)", self.path_of(mid)
        )
        self.drop(mid)

    def path_of(self, mid: int) -> str:
        return self.layout.element(self.places.place_of(mid))

    def announce(self, mid: int, expiry: int) -> None:
        """Announces when a hidden element becomes visible; for an element that another program has locked, when to look
        again."""
        if expiry != FOREIGN:
            self._foreign.discard(mid)
            self._activity.announce(self.qid, expiry)
            if self.options.retention is not None:
                self.arrived()  # a delayed one may be too old before
            return
        self._foreign.add(mid)
        if self._look_again_at is None:
            self._look_again_at = self._clock() + _LOOK_AGAIN
        self._activity.announce(self.qid, self._look_again_at)

    def _show(self, mid: int) -> None:
        self._foreign.discard(mid)
        self.index.show(mid)
        self.arrived()

    def due(self, now: int) -> int | None:
        # That a lock of a Queue goes raises no event, as it is a change inside of the element; watching each element
        # would be a watch a message.
        if self._look_again_at is not None and now >= self._look_again_at:
            for mid in list(self._foreign):
                self.look(mid)
            self._look_again_at = now + _LOOK_AGAIN if self._foreign else None
        return self.index.due(now)

    def next_expiry(self) -> int | None:
        due = self.index.expiries.first()
        if self._foreign and self._look_again_at is not None:
            return min(due or FOREIGN, self._look_again_at)
        return due

    def reset(self, ready: "array[int]", hidden: dict[int, int]) -> None:
        """Replaces the index after a listing."""
        self._foreign.clear()
        self._headed = MidSet()
        self.index.reset(ready, hidden)
        for mid in hidden:
            self.look(mid)
        if self.index.ready:
            self.arrived()

    # -- acting on one

    @contextlib.contextmanager
    def exclusive(self, mid: int, *, removing: bool = False) -> Iterator[MessageState | None]:
        """Locks an element for other servers of qs, and yields its state: see MessageStore."""
        if self.index.expiry(mid) is None:
            yield None
            return
        try:
            fd = self._disk.open(self.path_of(mid), READ)
        except FileNotFoundError:
            self.drop(mid)
            yield None
            return
        except OSError as error:
            if error.errno not in _NOT_TO_OPEN:
                raise
            self._disown(mid)
            yield None
            return
        try:
            with contextlib.suppress(OSError):  # not every file system has these locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield self.look(mid)
        finally:
            self._disk.close(fd)

    def _lock(self, mid: int, state: MessageState, lease: Lease) -> bool:
        """Locks a ready element, with a lease. Returns False if another program was faster."""
        path = self.path_of(mid)
        # First: a kill right after the lock leaves one whose end is known.
        self.leases.write(path, mid, lease)
        locked = denied = False
        try:
            locked = self.layout.lock(self.places.place_of(mid))
        except PermissionError:
            denied = True
        finally:
            if not locked:
                self.leases.write(path, mid, Lease(state.receives))
        if locked:
            stamp(path, lease.until)
        elif denied:
            self._disown(mid)
        else:
            self.look(mid)
        return locked

    def hide(self, mid: int, state: MessageState, wanted: MessageState, *, durable: bool = True) -> bool:
        path = self.path_of(mid)
        lease = Lease(wanted.receives, wanted.hidden, wanted.delayed)
        if not state.hidden:
            if not self._lock(mid, state, lease):
                return False
        elif wanted.hidden >= state.hidden:
            # In this order: at any moment the time is not after the end of the lease, which tells that it is ours.
            self.leases.write(path, mid, lease)
            stamp(path, wanted.hidden)
        else:
            stamp(path, wanted.hidden)
            self.leases.write(path, mid, lease)
        self.index.hide(mid, wanted.hidden, delayed=wanted.delayed)
        self.announce(mid, wanted.hidden)
        if durable:
            self.touch(mid)
        return True

    def show(self, mid: int, state: MessageState, receives: int) -> bool:
        self.layout.unlock(self.places.place_of(mid))
        self.leases.write(self.path_of(mid), mid, Lease(receives))
        self.touch(mid)
        self._show(mid)
        return True

    def remove(self, mid: int, state: MessageState) -> bool:
        # A free element is locked before it is removed, as any program of dirq does: then no other one has it.
        if not state.hidden and not self._lock(mid, state, Lease(state.receives, self._clock() + SECOND)):
            return False
        folder = self.places.folder_of(mid)
        try:
            self.layout.erase(self.places.place_of(mid))
        except FileNotFoundError:
            self.drop(mid)
            return False
        self.touch(folder=folder)
        self.drop(mid)
        return True

    def drop(self, mid: int) -> None:
        """Forgets an element that is gone, and its lease."""
        if self.index.expiry(mid) is not None:
            self.index.remove(mid)
        self.places.remove(mid)
        self._foreign.discard(mid)
        self._unsynced.discard(mid)
        if self._headed.count:
            self._headed.discard(mid)
        self.forget_lease(mid)

    def forget_lease(self, mid: int) -> None:
        """Removes the lease of an element that is gone. If that fails, the next listing removes the lease."""
        try:
            self.leases.forget(mid)
        except OSError as error:
            _logger.warning("the lease of message %s stays behind in %s: %s", mid, self.path, error)

    # -- durability

    def dismantle(self) -> None:
        self.layout.dismantle()

    def commit(self) -> None:
        for mid in list(self._unsynced):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                self._disk.sync_file(self.path_of(mid))
            self._unsynced.discard(mid)
        for folder in list(self._unsynced_folders):
            with contextlib.suppress(FileNotFoundError):
                self._disk.sync_directory(f"{self.path}/{folder}")
            self._unsynced_folders.discard(folder)
        # Most commits change nothing in the queue's own directory. If that is gone, this raises FileNotFoundError.
        if self._folders_made or self.leases.beside or not self.in_place():
            self._disk.sync_directory(self.path)
            self._folders_made = False
        self.layout.remove_obsolete()


def stamp(path: str, until: int) -> None:
    """Sets an element's time of the last change to the end of its lease, if this process owns the element: see the top
    of this file."""
    # Whole numbers: a float would lose microseconds, and the lock would not be recognized as ours.
    seconds, micros = divmod(until, 1_000_000)
    if seconds > _LATEST_STAMP:
        seconds, micros = _LATEST_STAMP, 0
    when = seconds * 1_000_000_000 + micros * 1000
    with contextlib.suppress(PermissionError, FileNotFoundError):
        os.utime(path, ns=(when, when))


def _is_ours(lease: Lease, status: os.stat_result) -> bool:
    """Tells whether a server of qs has made an element's lock. status: looked up after the lock."""
    return lease.until > 0 and status.st_mtime_ns // 1000 <= lease.until
