"""Writes the history: a line for each event of a message, in files that other programs read later.

The pages call these files the lifecycle record. In the code, a record is always a record of the log.

How it works. The engine notes events while a batch runs. The committer has the events written after the commit, or
dropped if the commit failed. `History` keeps the lines of a batch and writes them to the open file. `HistoryFolder`
opens that file, and later finishes it: syncs and renames it. A finished file never changes again. A lock on an open
file tells other servers in the folder that its writer lives. docs/history.md has the format and the promises.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from qs_serving.errors import StartError
from qs_storage.disk import Disk, reason_of
from qs_storage.engine import SECOND, Clock
from qs_storage.shared import Event

_logger = logging.getLogger(__name__)
_MOST = 20_000
"""The most lines in memory, some 4 MiB. More, when a huge queue is removed, are written before the commit."""
_TRY_AGAIN = 1.0
"""Seconds without a write after a failed one, so that a full disk is not tried, and logged, for each batch."""
_INSIDE = ".history"
"""The only directory in a root that can have the history: no queue can have the name."""
_NAME = re.compile(r"history-[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{8}\.jsonl")
_OPEN = "."
"""Begins the name of an open file. Spark and Hadoop read no file whose name begins with a dot."""
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
"""Flags for a new file: it must be this server's alone, and no link that somebody has planted."""
_CHUNK = 1 << 16
"""Bytes read at once in the search for the last whole line. A line has some 200, so one read is nearly always
enough."""
quoted = lru_cache(10_000)(json.dumps)
"""Returns the name of a queue or a peer as JSON. The same few names are in most lines."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Holds the options of the history. size, age: a file ends at so many bytes, or so many seconds after its first
    line; keep: the most bytes of finished files that stay, None for all."""

    folder: str
    size: int = 64 * 1024 * 1024
    age: float = 60.0
    keep: int | None = None


class OpenFile:
    """Writes lines to a file of the history.

    Ensures that its first `size` bytes are whole lines, also after a failed write: readers of the finished file never
    see half a line. Two servers must never write the same file: `HistoryFolder` holds a lock on it."""

    def __init__(self, name: str, fd: int, disk: Disk) -> None:
        """name: the name that the finished file will have."""
        self.name = name
        self.fd = fd
        self.size = 0
        self.torn = False
        """True if there may be bytes beyond `size`."""
        self._disk = disk

    def append(self, data: bytes) -> None:
        """Writes whole lines, either all or none. Raises OSError."""
        self.truncate()  # bytes of a failed write would tear the first of these lines
        try:
            self._disk.pwrite(self.fd, data, self.size)
        except OSError:
            self.torn = True
            with contextlib.suppress(OSError):  # the next write tries again
                self.truncate()
            raise
        self.size += len(data)

    def truncate(self) -> None:
        """Removes bytes beyond `size`. Raises OSError."""
        if self.torn:
            self._disk.ftruncate(self.fd, self.size)
            self.torn = False


class HistoryFolder:
    """Makes, finishes and removes files in the history's folder, which several servers may share.

    Ensures:
    1. A finished file is on disk before it has its name, and never changes again.
    2. A file whose writer is alive is never finished, renamed or removed by another server. If the file system has no
       locks, nobody can tell whether a writer is alive, so the files of killed servers keep their hidden names.
    3. The last finished file stays, whatever the limit of bytes.

    Assumes that other programs read finished files only. This class must never touch files with other names."""

    def __init__(self, path: str, disk: Disk, keep: int | None = None) -> None:
        """path: an existing directory; keep: the most bytes of finished files, None to keep all."""
        self.path = path
        self._disk = disk
        self._keep = keep

    def open(self, now: int) -> OpenFile:
        """Begins a new file. now: microseconds since the Epoch, for its name. Raises OSError."""
        while True:
            name = _name_of(now)
            file = OpenFile(name, self._disk.open(self._open_path(name), _NEW_FILE, 0o666), self._disk)
            # Another server that starts just now may have locked the file first, as if it belonged to a killed server,
            # and have finished or removed it: then the next name is tried.
            if _lock(file.fd) is not False and self._is_in_place(file):
                return file
            self._disk.close(file.fd)

    def _open_path(self, name: str) -> str:
        return f"{self.path}/{_OPEN}{name}"

    def _is_in_place(self, file: OpenFile) -> bool:
        try:
            return os.path.samestat(self._disk.lstat(self._open_path(file.name)), self._disk.fstat(file.fd))
        except FileNotFoundError:
            return False

    def finish(self, file: OpenFile) -> None:
        """Syncs a file and renames it to its final name, or removes an empty file. Logs failures; the next start tries
        again."""
        path = self._open_path(file.name)
        try:
            file.truncate()
            if file.size:
                self._disk.fsync(file.fd)
                self._disk.rename(path, f"{self.path}/{file.name}")
                self._disk.sync_directory(self.path)
            else:
                self._disk.unlink(path)
        except OSError as error:
            _logger.error("the history file %s could not be finished: %s", path, error)
        finally:
            self._disk.close(file.fd)
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        """Removes the oldest finished files over the limit, but never the last one."""
        if self._keep is None:
            return
        try:
            names = sorted(filter(_NAME.fullmatch, self._disk.files_in(self.path)))
            sizes = {name: self._disk.lstat(f"{self.path}/{name}").st_size for name in names}
            total = sum(sizes.values())
            for name in names[:-1]:
                if total <= self._keep:
                    break
                self._disk.unlink(f"{self.path}/{name}")
                total -= sizes[name]
        except FileNotFoundError:
            pass  # another server that shares the folder is removing them
        except OSError as error:
            _logger.error("old history files in %s could not be removed: %s", self.path, error)

    def recover(self) -> None:
        """Finishes the files of killed servers. Logs failures. Raises OSError if the folder cannot be listed."""
        for name in sorted(self._disk.files_in(self.path)):
            if name.startswith(_OPEN) and _NAME.fullmatch(name[1:]):
                try:
                    self._recover(name[1:])
                except OSError as error:
                    _logger.error("the history file %s/%s could not be finished: %s", self.path, name, error)
        self._remove_oldest()

    def _recover(self, name: str) -> None:
        path = self._open_path(name)
        try:
            fd = self._disk.open_file(path, os.O_RDWR)
        except FileNotFoundError:
            return  # another server has finished it since the folder was listed
        file = OpenFile(name, fd, self._disk)
        try:
            if _lock(fd) is not True or not self._is_in_place(file):  # its writer lives, or may live (no locks)
                self._disk.close(fd)
                return
            found = self._disk.fstat(fd).st_size
            file.size = self._end_of_lines(fd, found)
        except OSError:
            self._disk.close(fd)
            raise
        if found > file.size:
            file.torn = True
            _logger.warning("the history file %s ended in a torn line: cut off %d bytes", path, found - file.size)
        self.finish(file)

    def _end_of_lines(self, fd: int, size: int) -> int:
        """Returns the end of the last whole line."""
        while size:
            start = max(size - _CHUNK, 0)
            found = self._disk.pread(fd, size - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            size = start
        return 0


def _lock(fd: int) -> bool | None:
    """Takes the lock. Returns False if another process has the lock, None if the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _name_of(now: int) -> str:
    """Returns a name that sorts by time and has no colon, which Hadoop refuses."""
    seconds, micro = divmod(now, SECOND)
    return f"history-{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{micro:06d}Z-{secrets.token_hex(4)}.jsonl"


class History:
    """Writes the events of messages.

    Ensures:
    1. The events of a batch are written after its commit and before its answers. So the events of all answered requests
       are in a file, also if the server is killed.
    2. The events of a batch whose commit failed are dropped. Only if a batch has more than `_MOST` events, some of them
       may be in a file already.
    3. The lines of a batch go into one file with one write, and have one time.
    4. An error loses events and nothing else. The log says so once, and gives the number of lost events when writing
       works again.

    Assumes that only the thread of the batch calls `begin`, `note`, `commit` and `discard`. Another thread finishes
    files, because the sync of a whole file would hold up a batch.

    The history must never raise anything into a batch, and never wait for a sync in a batch."""

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
        """The address of the current request's client, HOST:PORT; empty for the server itself."""
        self._folder = folder
        self._size = size
        self._age = age
        self._clock = clock
        self._timer = timer
        self._lines: list[str] = []  # the lines of the present batch, without their beginning, which has the time
        self._lost = 0  # events since the first failed write, 0 while writing works
        self._try_again = 0.0
        self._changed = threading.Condition()  # its lock guards all attributes below
        self._file: OpenFile | None = None
        self._opened = 0.0
        self._full: list[OpenFile] = []
        self._closing = False
        self._thread: threading.Thread | None = None

    def begin(self, peer: str) -> None:
        """Sets the client of the following events. peer: the client's address, empty for the server itself."""
        self.peer = peer

    def note(
        self,
        event: Event,
        qid: str,
        mid: int,
        size: int | None,
        receives: int | None,
        *,
        peer: str | None = None,
        trace: str | None = None,
    ) -> None:
        """Implements `qs_storage.shared.Lifecycle.note`: notes an event of the present batch."""
        # Formatted by hand, several times as fast as json.dumps: a batch may have thousands of lines.
        self._lines.append(
            f'{event}","queue":{quoted(qid)},"mid":{mid},"size":{"null" if size is None else size}'
            f',"receives":{"null" if receives is None else receives}'
            f',"peer":{quoted(self.peer if peer is None else peer)}'
            # Each message has another trace: `quoted` would remember them all.
            + ("}\n" if trace is None else f',"traceparent":{json.dumps(trace)}}}\n')
        )
        if len(self._lines) >= _MOST:
            self.commit()  # before the engine's commit, so that memory is bounded, whatever a request removes

    def note_all(
        self, event: Event, qid: str, mids: Sequence[int], sizes: Sequence[int], receives: Iterable[int]
    ) -> None:
        """Implements `qs_storage.shared.Lifecycle.note_all`: notes the same event of many messages."""
        head, tail = f'{event}","queue":{quoted(qid)},"mid":', f',"peer":{quoted(self.peer)}}}\n'
        self._lines += [
            f'{head}{mid},"size":{size},"receives":{times}{tail}'
            for mid, size, times in zip(mids, sizes, receives, strict=True)
        ]
        if len(self._lines) >= _MOST:
            self.commit()

    def commit(self) -> None:
        """Writes all noted events, with the same time. Raises nothing."""
        if self._lines:
            lines, self._lines = self._lines, []
            now = self._clock()
            head = f'{{"time":{now},"event":"'  # one for all lines, so that `join` puts it between them
            self._write(f"{head}{head.join(lines)}".encode("ascii"), len(lines), now)

    def discard(self) -> None:
        """Drops the events of a batch whose commit failed."""
        self._lines.clear()

    def _write(self, data: bytes, count: int, now: int) -> None:
        if self._lost and self._timer() < self._try_again:
            self._lost += count  # not every batch tries a full disk again
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
        """Gives the open file to the other thread, which finishes it. The next write makes a new file."""
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
        """Finishes full and old files. Returns False if there were none. wait: True to wait for such a file, until
        `close`."""
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
                # `--history-age` may be more seconds than a wait can have.
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
        self.finish_due()  # the thread may never have run, or have left files
        if self._lost:
            _logger.error("%d events are not in the history", self._lost)


@contextmanager
def running_history(options: HistoryOptions | None, root: str, clock: Clock) -> Iterator[History | None]:
    """Opens a history for a with block and finishes its files afterwards. Yields None without options. Raises
    StartError as `open_history` does."""
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
    """Opens a history: makes its folder if missing, and finishes the files of killed servers. root: the directory of
    the queues. Raises StartError if the folder cannot be used, or lies among the directories of queues."""
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
    # Any directory in the root is taken for a queue, and its files for messages.
    path, root = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([path, root]) != root:
        return False
    return os.path.relpath(path, root).split(os.sep)[0] != _INSIDE
