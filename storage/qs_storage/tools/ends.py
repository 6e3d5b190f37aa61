"""The end of a queue's directory, in each layout: puts messages in, and takes them out one by one.

Two classes have the same methods: `put`, `take`, `remove`, `give_back` and `close`. All of them may raise OSError and
StorageError. Waits are short, so that a command sees Ctrl-C in between.
"""

import contextlib
import errno
import select
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .. import vsqs
from ..dirq import Queue, QueueError, QueueSimple
from ..dirq.elements import LOCKED_SUFFIX, TEMPORARY_SUFFIX
from ..dirq.schema import Schema, is_piece, parse_schema
from ..engine import StorageError
from ..settings import read_options
from ..vsqs import check_no_server
from ..watch import CREATE, DELETE, IGNORED, MOVED_TO, OVERFLOW, Inotify
from .elements import DIRQ, VSQS, intermediates, names_in

TICK = 0.2
"""Seconds of one wait, after which a command looks for Ctrl-C."""
_FULL = 0.01
"""Seconds until another try to put, if another process has used up the capacity."""
_CATCH_UP = 0.1
"""Seconds of delay that following messages make up for, where there is a rate."""
_LOOK_AGAIN = 2.0
"""Seconds between two lists without reports: inotify does not report a removed lock within an element of `dirq`."""
_APPEARED = CREATE | MOVED_TO
_LOCK, _WRITTEN = LOCKED_SUFFIX.encode(), TEMPORARY_SUFFIX.encode()


class Taken(NamedTuple):
    """A message that no other consumer can take. order: sorts by age."""

    name: str
    order: str
    payload: bytes


class Body:
    """Finds the piece of an element of the layout `dirq` that holds the payload: `body`, or else the first that is not
    a table.

    Strings are read and written as bytes, so that another program's string that is not UTF-8 can be taken out.
    """

    DEFAULT = "body=string"

    def __init__(self, text: str) -> None:
        """text: a schema, as in `body=string,header=table?`. StorageError for a bad schema, or one without a piece for
        a payload."""
        given = parse_schema(text)
        checked = Schema(given)
        plain = [name for name, kind in checked.types.items() if kind != "table"]
        if not plain:
            raise StorageError(f"schema {text!r}: nothing in it is a string or binary, to hold the payload")
        self._name = "body" if "body" in plain else plain[0]
        self._is_text = checked.types[self._name] == "string"
        self.schema = {name: kind.replace("string", "binary") for name, kind in given.items()}
        """For opening a queue: strings are bytes."""
        self.others = sorted(checked.mandatory - {self._name})
        """Mandatory pieces that a payload does not fill."""

    def data(self, payload: bytes) -> dict[str, Any]:
        """Returns the pieces of data of an element with a payload. StorageError for a string that is not UTF-8."""
        if self._is_text:
            try:
                payload.decode()
            except UnicodeDecodeError:
                raise StorageError(
                    f"a payload is not UTF-8, as a string has to be (--schema {self._name}=binary keeps any bytes)"
                ) from None
        return {self._name: payload}

    def payload(self, data: Mapping[str, Any]) -> bytes:
        """Returns the payload of an element, empty if its optional piece is missing."""
        found: bytes = data.get(self._name, b"")
        return found


class VsqsEnd:
    """Puts messages into a directory in the vsqs layout, and takes them out."""

    def __init__(self, path: str, *, sync: bool, capacity: int | None, visibility: float, put_only: bool) -> None:
        """Opens the directory: see `open_end`."""
        if not put_only:
            check_no_server(path)
        self._visibility = visibility
        # The library waits for room under the bound that it is given; over that of the directory it is an error.
        bounds = [bound for bound in (capacity, read_options(path, "files").capacity) if bound is not None]
        self._queue = vsqs.Queue(path, min(bounds, default=None), create=True, publish_only=put_only, sync=sync)

    def put(self, payload: bytes, seconds: float) -> bool:
        """Stores a message. Returns False if the queue was full for so many seconds."""
        try:
            self._queue.publish(payload, timeout=seconds)
        except vsqs.QueueFullException:
            return False
        return True

    def take(self, seconds: float) -> Taken | None:
        """Takes the oldest free message; returns None if there was none for so many seconds."""
        mid, payload = self._queue.receive(self._visibility, timeout=seconds)
        return None if mid is None or payload is None else Taken(mid, mid.zfill(18), payload)

    def remove(self, taken: Taken) -> None:
        """Removes a message, which may be gone already."""
        self._queue.delete(taken.name)

    def give_back(self, taken: Taken) -> None:
        """Makes a message free again, if the layout can. In this layout, the message comes back when its window
        ends."""

    def close(self) -> None:
        self._queue.close()


class DirqEnd:
    """Puts messages into a directory in one of the layouts of dirq, and takes them out. See VsqsEnd for the methods."""

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
        # A new list only if something may have come: a directory may have many elements that are locked.
        if taken is None and (self._changed or time.monotonic() - self._looked_at > _LOOK_AGAIN):
            self._arrivals.refresh()  # before the list is made: what comes in between is looked at twice, not never
            self._changed = False
            self._names = (name for name in self._queue.names())  # the queue itself would begin again at each loop
            taken = self._lock_one()
            self._looked_at = time.monotonic()
        return taken

    def _lock_one(self) -> Taken | None:
        for name in self._names:
            if self._queue.lock(name):
                return self._got(name)
        return None

    def _got(self, name: str) -> Taken:
        try:
            data = self._queue.get(name)
        except BaseException as error:
            was_locked = False
            with contextlib.suppress(Exception):
                # The next consumer may be able to read it, with another schema.
                was_locked = self._queue.unlock(name, permissive=True)
            if was_locked and self._body is not None and (text := _mismatch(error, f"{self._path}/{name}")):
                raise StorageError(text) from None
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


def _mismatch(error: BaseException, path: str) -> str | None:
    """Says what to do about an element that does not fit the schema: a piece is missing, a table cannot be read, or a
    directory has the name of a piece. Returns None for other errors. path: the element's."""
    if isinstance(error, OSError) and error.errno in (errno.EILSEQ, errno.EISDIR):
        text = f"{error.filename or path}: {error.strerror}"
    elif isinstance(error, QueueError):
        text = str(error)
    else:
        return None
    pieces = sorted(name for name, is_dir in names_in(path) if not is_dir and is_piece(name))
    if not pieces:
        return f"{text} (it holds no piece of data: remove it if it is not needed)"
    held = ", ".join(pieces)
    return f"{text} (it holds {held}: say with --schema which of that is to be read, as in --schema {pieces[0]}=binary)"


# -- opening, putting and taking --------------------------------------------------------------------------------------

End = VsqsEnd | DirqEnd


def open_end(
    path: str,
    layout: str,
    body: Body,
    *,
    sync: bool,
    capacity: int | None = None,
    visibility: float = 10,
    put_only: bool = False,
) -> End:
    """Opens a directory, which is made if it is missing.

    body: for the layout dirq. sync: True if changes have to survive a power loss once a call has returned. For vsqs
    only: capacity: the number of messages at which `put` waits, None for the directory's own; visibility: seconds after
    which a message that was taken and not removed comes back; put_only: True to put only, so that a server may have the
    queue in its journal. OSError; StorageError.
    """
    if layout == VSQS:
        return VsqsEnd(path, sync=sync, capacity=capacity, visibility=visibility, put_only=put_only)
    return DirqEnd(open_dirq(path, layout, body, sync=sync), path, body if layout == DIRQ else None)


def open_dirq(path: str, layout: str, body: Body, *, sync: bool = True) -> Any:
    """Opens the library's queue for a directory in one of the layouts of dirq. OSError."""
    if layout == DIRQ:
        return Queue(path, schema=body.schema, sync=sync)
    return QueueSimple(path, sync=sync)


def put_all(end: End, payloads: Iterable[bytes | None], rate: float | None) -> Iterator[int | None]:
    """Puts payloads, at most so many a second. Yields the size of each payload that was put, and None after each TICK
    of waiting: for the next payload's time, for capacity, or for the next payload, while `payloads` yields None."""
    due = time.monotonic()
    for payload in payloads:
        if payload is None:
            yield None
            continue
        # In ticks, so that Ctrl-C is seen.
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, TICK))
            yield None
        while not end.put(payload, TICK):
            yield None
            time.sleep(_FULL)
        if rate:
            # From the time that was due, and not from now, so that a slow put does not lower the rate; but not for
            # ever.
            due = max(due + 1 / rate, time.monotonic() - _CATCH_UP)
        yield len(payload)


def take_all(end: End, wait: float | None) -> Iterator[Taken | None]:
    """Yields free messages as they come, for the caller to remove, and None after each TICK without one. Ends when none
    came for `wait` seconds; with None, never ends."""
    since = time.monotonic()
    while True:
        left = TICK if wait is None else since + wait - time.monotonic()
        taken = end.take(max(min(left, TICK), 0.0))
        if taken is None and left <= 0:
            return
        yield taken
        if taken is not None:
            since = time.monotonic()


# -- waiting for elements of dirq ------------------------------------------------------------------------------------


class Arrivals:
    """Waits with inotify for elements that are added to a directory and its intermediate ones, also those made later.
    Without inotify, every wait ends soon, and the caller has to look."""

    def __init__(self, path: str) -> None:
        """path: an existing directory."""
        self._path = path
        self._watched: set[str] = set()
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
            self._inotify.add(path, _APPEARED)
        except (OSError, AttributeError):  # the latter where the C library has no such calls
            self.close()

    def refresh(self) -> bool:
        """Reads the reports, and watches new directories. Returns True if there may be a new element."""
        if self._inotify is None:
            return True
        events = self._inotify.events()
        if any(mask & (IGNORED | OVERFLOW) for _, mask, _ in events):
            self._watched.clear()  # one is gone, and maybe made again: to add a watch that there is does nothing
        arrived = any(_is_arrival(mask, name) for _, mask, name in events)
        if events or not self._watched:
            arrived = self._watch_new(self._inotify) or arrived
        return arrived

    def _watch_new(self, reports: Inotify) -> bool:
        before = len(self._watched)
        for name in intermediates(self._path):
            if name not in self._watched:
                try:
                    reports.add(f"{self._path}/{name}", _APPEARED | DELETE)
                    self._watched.add(name)
                except FileNotFoundError:
                    continue
                except OSError:
                    self.close()
                    return True
        return len(self._watched) > before

    def wait(self, seconds: float) -> bool:
        """Waits for a new element. Returns False after so many seconds without one."""
        if self._inotify is None:
            time.sleep(min(seconds, TICK))
            return True
        select.select([self._inotify.fd], [], [], seconds)
        return self.refresh()

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _is_arrival(mask: int, name: bytes) -> bool:
    """Tells whether an event is a new element or a removed lock, and not a file being written or a new lock."""
    if mask & DELETE:
        return name.endswith(_LOCK)
    return bool(mask & (_APPEARED | OVERFLOW)) and not name.endswith((_LOCK, _WRITTEN))
