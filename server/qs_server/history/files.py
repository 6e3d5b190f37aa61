"""The files of the lifecycle record.

The name of an open file begins with a dot: Spark and Hadoop do not read such files. A finished file is synced and
renamed, and never changes again. A lock on an open file tells other servers in the folder that its writer lives.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
from datetime import UTC, datetime

from qs_storage.disk import Disk
from qs_storage.engine import SECOND

_logger = logging.getLogger(__name__)
_NAME = re.compile(r"history-[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{8}\.jsonl")
_OPEN = "."
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
_CHUNK = 1 << 16


class OpenFile:
    """An open file. Its first `size` bytes are whole lines, even after a failed write."""

    def __init__(self, name: str, fd: int, disk: Disk) -> None:
        """name: of the finished file."""
        self.name = name
        self.fd = fd
        self.size = 0
        self.torn = False
        """True if there may be bytes beyond the size."""
        self._disk = disk

    def append(self, data: bytes) -> None:
        """Writes whole lines, all or none. OSError."""
        self.truncate()
        try:
            self._disk.pwrite(self.fd, data, self.size)
        except OSError:
            self.torn = True
            with contextlib.suppress(OSError):  # the next write tries again
                self.truncate()
            raise
        self.size += len(data)

    def truncate(self) -> None:
        """Removes bytes beyond the size. OSError."""
        if self.torn:
            self._disk.ftruncate(self.fd, self.size)
            self.torn = False


class HistoryFolder:
    """The folder of the record, shared by several servers."""

    def __init__(self, path: str, disk: Disk, keep: int | None = None) -> None:
        """path: an existing directory; keep: the most bytes of finished files, None to keep all."""
        self.path = path
        self._disk = disk
        self._keep = keep

    def open(self, now: int) -> OpenFile:
        """Begins a new file. now: microseconds since the Epoch, for its name. OSError."""
        while True:
            name = _name_of(now)
            file = OpenFile(name, self._disk.open(self._open_path(name), _NEW_FILE, 0o666), self._disk)
            # A server that starts now may have taken it for a file of a killed server.
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
        """Syncs a file and gives it its name; removes an empty one. Failures are logged, and left to a start."""
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
            held = sum(sizes.values())
            for name in names[:-1]:
                if held <= self._keep:
                    break
                self._disk.unlink(f"{self.path}/{name}")
                held -= sizes[name]
        except FileNotFoundError:
            pass  # another server that shares the folder is removing them
        except OSError as error:
            _logger.error("old history files in %s could not be removed: %s", self.path, error)

    def recover(self) -> None:
        """Finishes the files of killed servers. Logs failures. OSError if the folder cannot be listed."""
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
            return
        file = OpenFile(name, fd, self._disk)
        try:
            if _lock(fd) is not True or not self._is_in_place(file):  # its writer lives, or may live (no locks)
                self._disk.close(fd)
                return
            held = self._disk.fstat(fd).st_size
            file.size = self._end_of_lines(fd, held)
        except OSError:
            self._disk.close(fd)
            raise
        if held > file.size:
            file.torn = True
            _logger.warning("the history file %s ended in a torn line: cut off %d bytes", path, held - file.size)
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
    """Takes the lock. Returns False if another process has it, None if the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _name_of(now: int) -> str:
    """Returns a name that sorts by time and has no colon, which Hadoop refuses."""
    seconds, micro = divmod(now, SECOND)
    return f"history-{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{micro:06d}Z-{secrets.token_hex(4)}.jsonl"
