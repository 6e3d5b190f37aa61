"""Elements as they are, and the index that says so too.

The disk is the truth. Whoever is about to do something to an element looks at it first (`look`), alone among the
servers of ours (`alone`); the index only says where to look.
"""

import contextlib
import errno
import fcntl
import logging
from collections.abc import Iterator
from typing import NamedTuple

from ..engine import SECOND
from ..files.directory import READ
from .lease_metadata import Marks, is_ours
from .places import Elements

_logger = logging.getLogger(__name__)
FOREIGN = 1 << 62
"""The expiry of an element that another program has locked: nobody knows until when."""
NOT_TO_OPEN = frozenset({errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR})
"""Errors that mean: no element, or none that we may use."""
_LOOK_AGAIN = 1 * SECOND


class Sight(NamedTuple):
    """An element as it was a moment ago. hidden: 0 when it is ready, FOREIGN, or the end of its window or delay."""

    hidden: int
    marks: Marks


class Sights(Elements):
    """Looks at elements, and changes them."""

    # -- looking at one

    def _sight(self, mid: int) -> Sight | None:
        place = self._place(mid)
        path = self._layout.element(place)
        # In this order: the time of an element that is locked only now would be from before.
        locked = self._layout.is_locked(place)
        try:
            status = self._disk.lstat(path)
        except FileNotFoundError:
            return None
        marks = self._marks.read(path, mid)
        if not locked:
            return Sight(0, marks)
        return Sight(marks.until if is_ours(marks, status) else FOREIGN, marks)

    def look(self, mid: int) -> Sight | None:
        """How an element is now, which the index then says too. None when it is gone, or no message."""
        index = self._index
        if index.expiry(mid) is None:
            return None
        sight = self._sight(mid)
        if sight is None:
            self._drop(mid)
            return None
        if not index.loaded(mid) and not self._load(mid, sight):
            return None
        known = index.expiry(mid)
        if sight.hidden:
            delayed = sight.marks.delayed and sight.hidden != FOREIGN
            if known != sight.hidden or index.is_delayed(mid) is not delayed:
                index.hide(mid, sight.hidden, delayed=delayed)
            if not delayed:
                index.new.discard(mid)
            self._hidden(mid, sight.hidden)
        elif known:
            self._shown(mid)
        return sight

    def _load(self, mid: int, sight: Sight) -> bool:
        size = self._size(mid)
        if size is None:
            return False
        delayed = sight.marks.delayed and bool(self._index.expiry(mid)) and sight.hidden not in (0, FOREIGN)
        self._index.load(mid, size, retrieved=sight.marks.receives > 0, delayed=delayed)
        return True

    def _size(self, mid: int) -> int | None:
        """Bytes of payload. None when it is gone, or no message; then it is dropped."""
        place = self._place(mid)
        try:
            size = self._layout.size(place, self._disk.lstat(self._layout.element(place)))
        except FileNotFoundError:
            self._drop(mid)
            return None
        if size is None:
            self.disown(mid)
        return size

    def _content(self, mid: int) -> bytes | None:
        """The payload; None when the element is gone, or is no message."""
        try:
            return self._layout.read(self._place(mid))
        except FileNotFoundError:
            self._size(mid)
        except OSError as error:
            if error.errno not in NOT_TO_OPEN:
                raise
            self.disown(mid)
        return None

    def load(self, mid: int) -> bool:
        """As `look`, unless that was done before."""
        return self._index.loaded(mid) or self.look(mid) is not None

    def disown(self, mid: int) -> None:
        """Something has the name of an element and is no message, or none for us."""
        _logger.warning("%s is no message that can be used (permissions, or the pieces of its schema)", self._path(mid))
        self._drop(mid)

    def _hidden(self, mid: int, expiry: int) -> None:
        """An element is hidden until then."""
        if expiry != FOREIGN:
            self._foreign.discard(mid)
            self._activity.announce(self.qid, expiry)
            return
        self._foreign.add(mid)
        if self._look_again_at is None:
            self._look_again_at = self._clock() + _LOOK_AGAIN
        self._activity.announce(self.qid, self._look_again_at)

    def _shown(self, mid: int) -> None:
        """An element is ready now."""
        self._foreign.discard(mid)
        self._index.show(mid)
        self.arrived()

    def look_at_foreign(self) -> None:
        """Looks again, once a second, at what others have locked, for as long as they have: that a lock of a Queue goes
        raises no event, as it is a change inside of the element, and watching each element would be a watch a message.
        """
        if self._look_again_at is None or self._clock() < self._look_again_at:
            return
        for mid in list(self._foreign):
            self.look(mid)
        self._look_again_at = self._clock() + _LOOK_AGAIN if self._foreign else None

    def next_expiry(self) -> int | None:
        """When `expire` has something to do."""
        due = self._index.next_expiry()
        if self._foreign and self._look_again_at is not None:
            return min(due or FOREIGN, self._look_again_at)
        return due

    # -- acting on one

    @contextlib.contextmanager
    def alone(self, mid: int) -> Iterator[Sight | None]:
        """In the with block no other server of ours changes that element. How it is now; None: gone, or not usable."""
        try:
            fd = self._disk.open(self._path(mid), READ)
        except FileNotFoundError:
            self._drop(mid)
            yield None
            return
        except OSError as error:
            if error.errno not in NOT_TO_OPEN:
                raise
            self.disown(mid)
            yield None
            return
        try:
            with contextlib.suppress(OSError):  # not every file system has these locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield self.look(mid)
        finally:
            self._disk.close(fd)

    def _unlock(self, mid: int, sight: Sight) -> None:
        """Makes an element ready that a server of ours has locked. To be called alone."""
        self._layout.unlock(self._place(mid))
        self._marks.write(self._path(mid), mid, Marks(sight.marks.receives))
        self._touch(mid)
        self._shown(mid)

    def _erase(self, mid: int) -> bool:
        """Removes an element that we have locked. False when it is gone."""
        folder = self._folder_of(mid)
        try:
            self._layout.erase(self._place(mid))
        except FileNotFoundError:
            self._drop(mid)
            return False
        self._touch(folder=folder)
        self._drop(mid)
        return True

    def _drop(self, mid: int) -> None:
        """An element is not there any more."""
        if self._index.expiry(mid) is not None:
            self._index.remove(mid)
        self._forget_place(mid)
        self._foreign.discard(mid)
        self._unsynced.discard(mid)
        self._forget_marks(mid)
