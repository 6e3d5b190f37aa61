"""A queue's directory as pump and sink see it, whatever its layout: something to put payloads into and take them from.

Each wait here is at most as long as its caller says, who has a look at Ctrl-C in between.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeGuard

from ..storage import vsqs
from ..storage.dirq import Queue, QueueError, QueueSimple
from ..storage.dirq.schema import is_piece
from ..storage.engine import StorageError
from ..storage.settings import read_options
from .arrivals import Arrivals
from .bodies import Body
from .errors import described
from .layouts import DIRQ, VSQS, names_in

_LOOK_AGAIN = 2.0
"""Seconds after which the elements are looked at though nothing was reported: taking a lock away from within an element
of `dirq` is a change that the system reports to nobody."""


class Taken(NamedTuple):
    """A message that is out of others' reach. order: sorts as the messages were stored."""

    name: str
    order: str
    payload: bytes


class UnreadableError(StorageError):
    """An element is not as the schema says. Its text tells what to do."""


class End(Protocol):
    """What each layout does."""

    def put(self, payload: bytes, seconds: float) -> bool:
        """Stores a message. False when the queue has been full for as long as that. OSError; StorageError."""

    def take(self, seconds: float) -> Taken | None:
        """The oldest that nobody has. None when there was none for as long as that; 0: not to wait."""

    def remove(self, taken: Taken) -> None:
        """For good. One that is gone already is fine."""

    def give_back(self, taken: Taken) -> None:
        """For somebody else, as far as the layout allows it."""

    def close(self) -> None:
        """Lets go of the directory."""


class VsqsEnd:
    """The layout vsqs."""

    def __init__(self, path: str, *, sync: bool, capacity: int | None, visibility: float, put_only: bool) -> None:
        """capacity: messages, None: what the directory says; visibility: seconds that a message is hidden when taken,
        after which it comes back unless it was removed; put_only: see `open_end`."""
        self._visibility = visibility
        # The library waits for room under the bound that it is given; over that of the directory it is an error.
        bounds = [bound for bound in (capacity, read_options(path, "files").capacity) if bound is not None]
        self._queue = vsqs.Queue(path, min(bounds, default=None), create=True, publish_only=put_only, sync=sync)

    def put(self, payload: bytes, seconds: float) -> bool:
        """As End."""
        try:
            self._queue.publish(payload, timeout=seconds)
        except vsqs.QueueFullException:
            return False
        return True

    def take(self, seconds: float) -> Taken | None:
        """As End: the library waits for what inotify reports, and for windows that end."""
        mid, payload = self._queue.receive(self._visibility, timeout=seconds)
        return None if mid is None or payload is None else Taken(mid, mid.zfill(18), payload)

    def remove(self, taken: Taken) -> None:
        """As End."""
        self._queue.delete(taken.name)

    def give_back(self, taken: Taken) -> None:
        """Nothing: it comes back when its window ends."""

    def close(self) -> None:
        """As End."""
        self._queue.close()


class DirqEnd:
    """Both layouts of dirq."""

    def __init__(self, queue: Any, path: str, body: Body | None) -> None:
        """queue: one of our two classes; body: None for `dirq-simple`."""
        self._queue = queue
        self._path = path
        self._body = body
        self._arrivals = Arrivals(path)
        self._names: Iterator[str] = iter(())
        self._changed = True
        self._looked_at = 0.0

    def put(self, payload: bytes, seconds: float) -> bool:
        """As End: there is no capacity."""
        self._queue.add(payload if self._body is None else self._body.data(payload))
        return True

    def take(self, seconds: float) -> Taken | None:
        """As End."""
        taken = self._next()
        if taken is None and seconds > 0:
            self._changed = self._arrivals.wait(seconds) or self._changed
            taken = self._next()
        return taken

    def _next(self) -> Taken | None:
        taken = self._lock_one()
        if taken is None and (self._changed or time.monotonic() - self._looked_at > _LOOK_AGAIN):
            self._arrivals.refresh()  # before the list is made: what comes in between is looked at twice, not never
            self._changed = False
            self._names = self._listed()
            taken = self._lock_one()
            self._looked_at = time.monotonic()
        return taken

    def _lock_one(self) -> Taken | None:
        for name in self._names:
            if self._queue.lock(name):
                return self._got(name)
        return None

    def _listed(self) -> Iterator[str]:
        name = self._queue.first()
        while name:
            yield name
            name = self._queue.next()

    def _got(self, name: str) -> Taken:
        try:
            data = self._queue.get(name)
        except BaseException as error:
            was_locked = False
            with contextlib.suppress(Exception):
                was_locked = self._queue.unlock(name, permissive=True)
            if was_locked and self._body is not None and _is_other_than_the_schema(error):
                path = os.path.join(self._path, name)
                raise UnreadableError(f"{described(error, path)} ({_advice(path)})") from None
            raise
        return Taken(name, name, data if self._body is None else self._body.payload(data))

    def remove(self, taken: Taken) -> None:
        """As End."""
        try:
            self._queue.remove(taken.name)
        except FileNotFoundError:
            pass  # somebody has found the lock too old, and taken it away
        except QueueError:
            if self._queue.unlock(taken.name, permissive=True):  # else the same
                raise

    def give_back(self, taken: Taken) -> None:
        """Unlocked."""
        with contextlib.suppress(OSError):
            self._queue.unlock(taken.name)

    def close(self) -> None:
        """As End."""
        self._arrivals.close()


def _is_other_than_the_schema(error: BaseException) -> TypeGuard[QueueError | OSError]:
    """A piece is missing, a table is none, or what has a piece's name is a directory."""
    return isinstance(error, QueueError) or (isinstance(error, OSError) and error.errno in (errno.EILSEQ, errno.EISDIR))


def _advice(path: str) -> str:
    pieces = sorted(name for name, is_dir in names_in(path) if not is_dir and is_piece(name))
    if not pieces:
        return "it holds no piece of data: remove it if it is not needed"
    held = ", ".join(pieces)
    return f"it holds {held}: say with --schema which of that is to be read, as in --schema {pieces[0]}=binary"


def open_end(
    path: str,
    layout: str,
    body: Body,
    *,
    sync: bool = True,
    capacity: int | None = None,
    visibility: float = 10,
    put_only: bool = False,
) -> End:
    """Opens a directory, which is made if it is missing. put_only: nothing is going to be taken, so that a server may
    have the queue in its journal. OSError; StorageError."""
    if layout == VSQS:
        return VsqsEnd(path, sync=sync, capacity=capacity, visibility=visibility, put_only=put_only)
    return DirqEnd(open_dirq(path, layout, body, sync=sync), path, body if layout == DIRQ else None)


def open_dirq(path: str, layout: str, body: Body, *, sync: bool = True) -> Any:
    """One of our two classes, which have the same methods."""
    if layout == DIRQ:
        return Queue(path, schema=body.schema, sync=sync)
    return QueueSimple(path, sync=sync)
