"""The lifecycle record: writes a line for each event of a message to files, which other programs read later.

The lines of a batch are written together after its commit, and dropped if the commit fails. Errors of the record do not
reach clients.
"""

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from qs_serving.errors import StartError
from qs_storage.disk import Disk, reason_of
from qs_storage.engine import Clock
from qs_storage.shared import Event

from .files import HistoryFolder, OpenFile

_logger = logging.getLogger(__name__)
_MOST = 20_000
"""The most lines in memory, some 4 MiB. More, when a huge queue is removed, are written before the commit."""
_TRY_AGAIN = 1.0
"""Seconds without a write after a failed one, so that a full disk is not tried, and logged, for each batch."""
_quoted = lru_cache(10_000)(json.dumps)
"""Returns the name of a queue or a peer as JSON."""
_INSIDE = ".history"
"""The only directory in a root that can have the record: no queue can have the name."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """A file ends at `size` bytes, or `age` seconds after its first line. keep: bytes that stay, None: all."""

    folder: str
    size: int = 64 * 1024 * 1024
    age: float = 60.0
    keep: int | None = None


class History:
    """The thread of a batch calls `begin`, `note`, `commit` and `discard`; another one finishes files, see `start`."""

    def __init__(
        self,
        folder: HistoryFolder,
        *,
        size: int,
        age: float,
        clock: Clock,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """size, age: see HistoryOptions; timer: returns monotonic seconds."""
        self.peer = ""
        self._folder = folder
        self._size = size
        self._age = age
        self._clock = clock
        self._timer = timer
        self._lines: list[str] = []
        self._lost = 0
        self._try_again = 0.0
        self._changed = threading.Condition()  # its lock guards all attributes below
        self._file: OpenFile | None = None
        self._opened = 0.0
        self._full: list[OpenFile] = []
        self._closing = False
        self._thread: threading.Thread | None = None

    def begin(self, peer: str) -> None:
        """Sets the client of the following events. peer: its address, empty for the server itself."""
        self.peer = peer

    def note(
        self, event: Event, qid: str, mid: int, size: int | None, receives: int | None, *, peer: str | None = None
    ) -> None:
        """See Lifecycle."""
        self._lines.append(
            f'{event}","queue":{_quoted(qid)},"mid":{mid},"size":{"null" if size is None else size}'
            f',"receives":{"null" if receives is None else receives}'
            f',"peer":{_quoted(self.peer if peer is None else peer)}}}\n'
        )
        if len(self._lines) >= _MOST:
            self.commit()

    def commit(self) -> None:
        """Writes all noted events, with the same time. Raises nothing."""
        if self._lines:
            lines, self._lines = self._lines, []
            now = self._clock()
            head = f'{{"time":{now},"event":"'
            self._write(f"{head}{head.join(lines)}".encode("ascii"), len(lines), now)

    def discard(self) -> None:
        """Drops all noted events."""
        self._lines.clear()

    def _write(self, data: bytes, count: int, now: int) -> None:
        if self._lost and self._timer() < self._try_again:
            self._lost += count
            return
        with self._changed:
            try:
                file = self._file or self._open(now)
                file.append(data)
            except OSError as error:
                self._lose(count, error)
                return
            if self._lost:
                _logger.warning("the history can be written again; %d events are not in it", self._lost)
                self._lost = 0
            if file.size >= self._size:
                self._begin_next()

    def _open(self, now: int) -> OpenFile:
        file = self._file = self._folder.open(now)
        self._opened = self._timer()
        self._changed.notify()
        return file

    def _lose(self, count: int, error: OSError) -> None:
        if not self._lost:
            reason = error.strerror or str(error)
            _logger.error("the history cannot be written in %s, and events are lost: %s", self._folder.path, reason)
        self._lost += count
        self._try_again = self._timer() + _TRY_AGAIN

    def _begin_next(self) -> None:
        """Hands the open file to the other thread, to be finished."""
        if self._file is not None:
            self._full.append(self._file)
            self._file = None
            self._changed.notify()

    def start(self) -> None:
        """Starts the thread that finishes files, until `close`."""
        self._thread = threading.Thread(target=self._serve, name="history", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self.finish_due(wait=True):
            pass

    def finish_due(self, *, wait: bool = False) -> bool:
        """Finishes full and old files. Returns False if there were none. wait: True to wait for one, until `close`."""
        full = self._take_full(wait=wait)
        for file in full:
            self._folder.finish(file)
        return bool(full)

    def _take_full(self, *, wait: bool) -> list[OpenFile]:
        with self._changed:
            while True:
                left = None if self._file is None else self._opened + self._age - self._timer()
                if left is not None and left <= 0:
                    self._begin_next()
                if self._full or self._closing or not wait:
                    full, self._full = self._full, []
                    return full
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Writes all noted events, and finishes all files."""
        self.commit()
        with self._changed:
            self._closing = True
            self._begin_next()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.finish_due()
        if self._lost:
            _logger.error("%d events are not in the history", self._lost)


@contextmanager
def recording(options: HistoryOptions | None, root: str, clock: Clock) -> Iterator[History | None]:
    """Opens a record for a with block, None without options. See `open_history`."""
    if options is None:
        yield None
        return
    history = open_history(options, root, clock)
    history.start()
    try:
        yield history
    finally:
        history.close()


def open_history(options: HistoryOptions, root: str, clock: Clock) -> History:
    """Opens a record. Makes its folder, and finishes the files of killed servers. root: of the queues. StartError."""
    disk = Disk()
    path = os.path.abspath(options.folder)
    if _is_among_queues(path, root):
        raise StartError(
            f"cannot keep the history in {path}: it is among the queues of the root; name another directory with "
            f"--history, or {os.path.join(root, _INSIDE)}"
        )
    folder = HistoryFolder(path, disk, options.keep)
    try:
        disk.make_directories(path, sync=True)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        folder.recover()
    except OSError as error:
        why = f"{reason_of(error)}; name another directory with --history"
        raise StartError(f"cannot keep the history in {path}: {why}") from None
    return History(folder, size=options.size, age=options.age, clock=clock)


def _is_among_queues(path: str, root: str) -> bool:
    path, root = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([path, root]) != root:
        return False
    return os.path.relpath(path, root).split(os.sep)[0] != _INSIDE
