"""The end of a directory in one of the layouts of dirq."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from typing import Any, TypeGuard

from qs_storage.dirq import Queue, QueueError, QueueSimple
from qs_storage.dirq.schema import is_piece
from qs_storage.engine import StorageError

from .arrivals import Arrivals
from .bodies import Body
from .flow import Taken
from .layouts import DIRQ, names_in
from .output import described

_LOOK_AGAIN = 2.0
"""Seconds between two lists without reports: inotify does not report a removed lock within an element of `dirq`."""


class DirqEnd:
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
        self._queue.add(payload if self._body is None else self._body.data(payload))
        return True

    def take(self, seconds: float) -> Taken | None:
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
                raise StorageError(f"{described(error, path)} ({_advice(path)})") from None
            raise
        return Taken(name, name, data if self._body is None else self._body.payload(data))

    def remove(self, taken: Taken) -> None:
        try:
            self._queue.remove(taken.name)
        except FileNotFoundError:
            pass  # somebody has found the lock too old, and taken it away
        except QueueError:
            if self._queue.unlock(taken.name, permissive=True):  # else the same
                raise

    def give_back(self, taken: Taken) -> None:
        with contextlib.suppress(OSError):
            self._queue.unlock(taken.name)

    def close(self) -> None:
        self._arrivals.close()


def _is_other_than_the_schema(error: BaseException) -> TypeGuard[QueueError | OSError]:
    """Selects errors of a missing piece, a table that is none, and a directory with the name of a piece."""
    return isinstance(error, QueueError) or (isinstance(error, OSError) and error.errno in (errno.EILSEQ, errno.EISDIR))


def _advice(path: str) -> str:
    pieces = sorted(name for name, is_dir in names_in(path) if not is_dir and is_piece(name))
    if not pieces:
        return "it holds no piece of data: remove it if it is not needed"
    held = ", ".join(pieces)
    return f"it holds {held}: say with --schema which of that is to be read, as in --schema {pieces[0]}=binary"


def open_dirq(path: str, layout: str, body: Body, *, sync: bool = True) -> Any:
    if layout == DIRQ:
        return Queue(path, schema=body.schema, sync=sync)
    return QueueSimple(path, sync=sync)
