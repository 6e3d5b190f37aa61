"""The lifecycle record: a line for whatever happens to a message, in files that others read later.

Lines gather while a batch runs. They are written when its commit has succeeded, with one write, and dropped when it has
failed: the record has no part in what an answer means. Nothing that goes wrong with it reaches a client.
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

from qs_serving.listening import StartError

from ..storage.disk import reason_of
from ..storage.engine import Clock
from ..storage.lifecycle import Event
from .files import HistoryDisk, HistoryFolder, OpenFile

_logger = logging.getLogger(__name__)
_MOST = 20_000
"""Lines that are kept in memory, some 4 MiB. Those of a queue that is removed with a million of messages are written
before its batch is over."""
_QUOTED = 10_000
"""Names of queues and peers that are kept as JSON has them."""
_TRY_AGAIN = 1.0
"""Seconds for which nothing is tried after a write has failed: a full disk is not asked, and logged, for each batch."""
_INSIDE = ".history"
"""Where in the root a record may be: no queue can have the name."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Says where the record is kept, and when one of its files is finished: at so many bytes, or so many seconds after
    its first line. keep: bytes of finished files that stay, None: all."""

    folder: str
    size: int = 64 * 1024 * 1024
    age: float = 60.0
    keep: int | None = None


class _Quoted(dict[str, str]):
    """Texts as JSON strings."""

    def __missing__(self, text: str) -> str:
        if len(self) >= _QUOTED:
            self.clear()
        quoted = self[text] = json.dumps(text)
        return quoted


class History:
    """Records what the engine tells it: `begin`, `note`, `commit` and `discard` belong to the thread that runs a batch.

    Finished files are synced in a thread of its own, which sleeps while nothing is open: see `start`.
    """

    def __init__(
        self,
        folder: HistoryFolder,
        *,
        size: int,
        age: float,
        clock: Clock,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """size: bytes from which on a file is finished; age: seconds after its first line from which on it is; clock:
        what lines have as their time; timer: seconds on a clock that nobody sets."""
        self.peer = ""
        self._folder = folder
        self._size = size
        self._age = age
        self._clock = clock
        self._timer = timer
        self._lines: list[str] = []
        self._quoted = _Quoted()
        self._lost = 0
        self._try_again = 0.0
        self._changed = threading.Condition()  # and the lock for what follows
        self._file: OpenFile | None = None
        self._opened = 0.0
        self._full: list[OpenFile] = []
        self._closing = False
        self._thread: threading.Thread | None = None

    # -- what happens, in the thread of the batch

    def begin(self, peer: str) -> None:
        """What is noted from here on is for that client; empty: for nobody."""
        self.peer = peer

    def note(
        self, event: Event, qid: str, mid: int, size: int | None, receives: int | None, *, peer: str | None = None
    ) -> None:
        """As Lifecycle says."""
        lines, quoted = self._lines, self._quoted
        lines.append(
            f'{event}","queue":{quoted[qid]},"mid":{mid},"size":{"null" if size is None else size}'
            f',"receives":{"null" if receives is None else receives}'
            f',"peer":{quoted[self.peer if peer is None else peer]}}}\n'
        )
        if len(lines) >= _MOST:
            self.commit()

    def commit(self) -> None:
        """What was noted has happened: it is written, all at one time. Raises nothing."""
        if self._lines:
            lines, self._lines = self._lines, []
            now = self._clock()
            head = f'{{"time":{now},"event":"'
            self._write(f"{head}{head.join(lines)}".encode("ascii"), len(lines), now)

    def discard(self) -> None:
        """What was noted is not said to have happened."""
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
                _logger.warning("the history goes on; %d events are not in it", self._lost)
                self._lost = 0
            if file.size >= self._size:
                self._turn()

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

    def _turn(self) -> None:
        """What is open gets no more lines; the next one begins another file."""
        if self._file is not None:
            self._full.append(self._file)
            self._file = None
            self._changed.notify()

    # -- finishing files, in a thread of its own

    def start(self) -> None:
        """Files are finished when they are due, from now on until `close`."""
        self._thread = threading.Thread(target=self._serve, name="history", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while full := self._take_full(wait=True):
            for file in full:
                self._folder.finish(file)

    def finish_due(self) -> None:
        """Finishes the files that are full, or old: what the thread does when their time has come."""
        for file in self._take_full(wait=False):
            self._folder.finish(file)

    def _take_full(self, *, wait: bool) -> list[OpenFile]:
        """What is due. wait: until there is something, or nothing to wait for."""
        with self._changed:
            while True:
                left = None if self._file is None else self._opened + self._age - self._timer()
                if left is not None and left <= 0:
                    self._turn()
                if self._full or self._closing or not wait:
                    full, self._full = self._full, []
                    return full
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Writes and finishes what there is."""
        self.commit()
        with self._changed:
            self._closing = True
            self._turn()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.finish_due()
        if self._lost:
            _logger.error("%d events are not in the history", self._lost)


@contextmanager
def recording(options: HistoryOptions | None, root: str, clock: Clock) -> Iterator[History | None]:
    """A record for the length of a with block, if one is asked for. Otherwise as `open_history`."""
    if options is None:
        yield None
        return
    history = open_history(options, root, clock)
    history.start()
    try:
        yield history
    finally:
        history.close()


def open_history(options: HistoryOptions, root: str, clock: Clock, disk: HistoryDisk | None = None) -> History:
    """A record in the folder that the options name, which is made if it is missing; what a killed server left there is
    finished. root: of the queues. StartError when it cannot be used."""
    disk = disk or HistoryDisk()
    path = os.path.abspath(options.folder)
    if _is_among_queues(path, root):
        raise StartError(
            f"cannot keep the history in {path}: that is among the queues of the root; name another with --history, or "
            f"{os.path.join(root, _INSIDE)}"
        )
    folder = HistoryFolder(path, disk, options.keep)
    try:
        disk.make_directories(path, sync=True)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        folder.recover()
    except OSError as error:
        reason = reason_of(error)
        raise StartError(f"cannot keep the history in {path}: {reason}; name another with --history") from None
    return History(folder, size=options.size, age=options.age, clock=clock)


def _is_among_queues(path: str, root: str) -> bool:
    path, root = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([path, root]) != root:
        return False
    return os.path.relpath(path, root).split(os.sep)[0] != _INSIDE
