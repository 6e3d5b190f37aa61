"""The two ends of a queue's directory, whatever its layout: pump puts payloads in, sink takes them out.

Each wait is at most as long as its caller says, so that the caller sees Ctrl-C in between.
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
"""Seconds after which elements are listed though nothing was reported: inotify does not report that a lock within an
element of `dirq` is gone."""


class Taken(NamedTuple):
    """A message that no other consumer can take. order: sorts as the messages were stored."""

    name: str
    order: str
    payload: bytes


class UnreadableError(StorageError):
    """An element is not as the schema says. The text tells what to do."""


class End(Protocol):
    """What pump and sink ask of each layout."""

    def put(self, payload: bytes, seconds: float) -> bool:
        """Stores a message. False when the queue was full for all the seconds. OSError; StorageError."""

    def take(self, seconds: float) -> Taken | None:
        """Takes the oldest message that nobody has; None when there was none for all the seconds, 0: does not wait."""

    def remove(self, taken: Taken) -> None:
        """Removes a message, which may be gone already."""

    def give_back(self, taken: Taken) -> None:
        """Lets other consumers have a message, as far as the layout allows it."""

    def close(self) -> None:
        """Closes what is open."""


class VsqsEnd:
    """A queue in the layout vsqs."""

    def __init__(self, path: str, *, sync: bool, capacity: int | None, visibility: float, put_only: bool) -> None:
        """capacity: messages, None: what the directory says; visibility: seconds after which a message that was taken
        comes back unless it was removed; put_only: see `open_end`."""
        self._visibility = visibility
        # The library waits for room under the bound that it is given; over that of the directory it is an error.
        bounds = [bound for bound in (capacity, read_options(path, "files").capacity) if bound is not None]
        self._queue = vsqs.Queue(path, min(bounds, default=None), create=True, publish_only=put_only, sync=sync)

    def put(self, payload: bytes, seconds: float) -> bool:
        """See End."""
        try:
            self._queue.publish(payload, timeout=seconds)
        except vsqs.QueueFullException:
            return False
        return True

    def take(self, seconds: float) -> Taken | None:
        """See End. The library waits for reports of inotify, and for the ends of windows."""
        mid, payload = self._queue.receive(self._visibility, timeout=seconds)
        return None if mid is None or payload is None else Taken(mid, mid.zfill(18), payload)

    def remove(self, taken: Taken) -> None:
        """See End."""
        self._queue.delete(taken.name)

    def give_back(self, taken: Taken) -> None:
        """Does nothing: the message comes back when its window ends."""

    def close(self) -> None:
        """See End."""
        self._queue.close()


class DirqEnd:
    """A queue in one of the layouts of dirq."""

    def __init__(self, queue: Any, path: str, body: Body | None) -> None:
        """queue: see `open_dirq`; body: None for `dirq-simple`."""
        self._queue = queue
        self._path = path
        self._body = body
        self._arrivals = Arrivals(path)
        self._names: Iterator[str] = iter(())
        self._changed = True
        self._looked_at = 0.0

    def put(self, payload: bytes, seconds: float) -> bool:
        """See End. There is no capacity."""
        self._queue.add(payload if self._body is None else self._body.data(payload))
        return True

    def take(self, seconds: float) -> Taken | None:
        """See End."""
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
        """See End."""
        try:
            self._queue.remove(taken.name)
        except FileNotFoundError:
            pass  # somebody has found the lock too old, and taken it away
        except QueueError:
            if self._queue.unlock(taken.name, permissive=True):  # else the same
                raise

    def give_back(self, taken: Taken) -> None:
        """See End."""
        with contextlib.suppress(OSError):
            self._queue.unlock(taken.name)

    def close(self) -> None:
        """See End."""
        self._arrivals.close()


def _is_other_than_the_schema(error: BaseException) -> TypeGuard[QueueError | OSError]:
    """Tells that a piece is missing, a table is none, or a directory has the name of a piece."""
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
    """Opens a directory, which is made if it is missing. put_only: nothing is going to be taken, so the queue may be
    one of a server's journal. OSError; StorageError."""
    if layout == VSQS:
        return VsqsEnd(path, sync=sync, capacity=capacity, visibility=visibility, put_only=put_only)
    return DirqEnd(open_dirq(path, layout, body, sync=sync), path, body if layout == DIRQ else None)


def open_dirq(path: str, layout: str, body: Body, *, sync: bool = True) -> Any:
    """Opens a queue with one of our two classes, which have the same methods."""
    if layout == DIRQ:
        return Queue(path, schema=body.schema, sync=sync)
    return QueueSimple(path, sync=sync)
