"""Writes messages to files that no consumer looks at, until they are made visible together.

The steps of one message: create `MID.new` exclusively, write, sync, rename to `MID` (`MID.EXPIRY` when it is delayed).
A list is all or nothing: before the first rename of several, a batch file notes them all, and a start that finds one
finishes what it says. Its publisher holds a lock on it for as long as it lives, so that nobody finishes it too early.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain

from ..disk import READ, Disk
from ..names import message_name, parse_message

_logger = logging.getLogger(__name__)
_BATCH = ".batch-"
_TEMPORARY = ".tmp"
_END = "end"
_NEW_FILE = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC


@dataclass(slots=True)
class Staged:
    """One message: its id, when it becomes visible (0: at once), its size, and the open descriptor of `MID.new`."""

    mid: int
    expiry: int
    size: int
    fd: int


class Staging:
    """Writes messages of one directory that are not visible yet."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._sync = sync
        self._staged: set[int] = set()
        self._batches: dict[int, int] = {}
        """Descriptors of the batch files, by first id."""

    def holds(self, name: str) -> bool:
        """Tells whether that file is being written here."""
        return name.endswith(".new") and int(name.removesuffix(".new")) in self._staged

    def new_path(self, mid: int) -> str:
        """Returns the path of a message while it is being written."""
        return f"{self._directory}/{mid}.new"

    def read(self, mid: int) -> bytes:
        """Reads what somebody has written of a message so far. FileNotFoundError, OSError."""
        fd = self._disk.open(self.new_path(mid), READ)
        try:
            return self._disk.read_all(fd, self._disk.fstat(fd).st_size)
        finally:
            self._disk.close(fd)

    def write(self, mid: int, expiry: int, payload: bytes, file: str | None = None) -> Staged:
        """Writes one message. file: one with that payload, for the kernel to copy if it is still there. FileExistsError
        when another publisher is writing one with that id; OSError."""
        fd = self._disk.open(self.new_path(mid), _NEW_FILE | os.O_EXCL, 0o666)
        staged = Staged(mid, expiry, len(payload), fd)
        try:
            if file is None or not self._copy(file, fd):
                self._disk.write(fd, payload)
            if not self._sync:
                self._close(staged)
        except BaseException:
            self.discard([staged])
            raise
        self._staged.add(mid)
        return staged

    def _copy(self, file: str, fd: int) -> bool:
        try:
            source = self._disk.open(file, READ)
        except FileNotFoundError:
            return False
        try:
            self._disk.copy(source, fd)
        finally:
            self._disk.close(source)
        return True

    def sync(self, requests: Collection[list[Staged]]) -> dict[int, OSError]:
        """Makes what is written durable, and notes the lists. Returns by first id the requests for which that failed,
        and why."""
        if self._sync and sum(map(len, requests)) > 1:
            for staged in chain.from_iterable(requests):
                if staged.fd >= 0:
                    with contextlib.suppress(OSError):  # the sync will say so
                        self._disk.begin_writing(staged.fd)
        failures: dict[int, OSError] = {}
        for request in requests:
            try:
                self._sync_request(request)
            except OSError as error:
                failures[request[0].mid] = error
        return failures

    def _sync_request(self, request: list[Staged]) -> None:
        if self._sync:
            for staged in request:
                if staged.fd >= 0:
                    self._disk.fsync(staged.fd)
                    self._close(staged)
        if len(request) > 1:
            self._note(request)

    def _note(self, request: list[Staged]) -> None:
        path = self._batch_path(request)
        fd = self._disk.open(path + _TEMPORARY, _NEW_FILE | os.O_TRUNC, 0o666)
        self._batches[request[0].mid] = fd
        with contextlib.suppress(OSError):  # a file system without locks cannot be shared by publishers of lists
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lines = [f"{staged.mid}.new {message_name(staged.mid, staged.expiry)}" for staged in request]
        self._disk.write(fd, "\n".join([*lines, _END]).encode())
        if self._sync:
            self._disk.fsync(fd)
        self._disk.rename(path + _TEMPORARY, path)

    def _batch_path(self, request: list[Staged]) -> str:
        return f"{self._directory}/{_BATCH}{request[0].mid}"

    def show(self, staged: Staged) -> None:
        """Gives a message its name. OSError."""
        name = message_name(staged.mid, staged.expiry)
        self._disk.rename(self.new_path(staged.mid), f"{self._directory}/{name}")
        self._staged.discard(staged.mid)

    def finish(self, request: list[Staged]) -> None:
        """Removes the batch file, when all messages of a request have their names. OSError."""
        if request[0].mid in self._batches:
            self._disk.unlink(self._batch_path(request))
            self._unlock(request[0].mid)

    def _unlock(self, first: int) -> None:
        fd = self._batches.pop(first, None)
        if fd is not None:
            self._disk.close(fd)

    def discard(self, request: list[Staged]) -> None:
        """Removes messages that are not visible. Raises nothing."""
        paths = [self.new_path(staged.mid) for staged in request]
        if request and request[0].mid in self._batches:
            # First: without it, a crash leaves nothing that a start would make visible.
            paths[:0] = [self._batch_path(request), self._batch_path(request) + _TEMPORARY]
        for path in paths:
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                _logger.warning("%s stays behind: %s", path, error)
        for staged in request:
            self._staged.discard(staged.mid)
            with contextlib.suppress(OSError):
                self._close(staged)
        if request:
            self._unlock(request[0].mid)

    def _close(self, staged: Staged) -> None:
        if staged.fd >= 0:
            fd, staged.fd = staged.fd, -1
            self._disk.close(fd)


def finish_batches(directory: str, names: list[str], disk: Disk) -> bool:
    """Completes the lists that a crash interrupted. names: of the files in the directory. Returns whether there were
    any. OSError."""
    batches = [name for name in names if name.startswith(_BATCH) and not name.endswith(_TEMPORARY)]
    return sum(_finish_batch(directory, name, disk) for name in batches) > 0


def _finish_batch(directory: str, name: str, disk: Disk) -> bool:
    try:
        fd = disk.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False  # its publisher is at it
        _do_what_it_says(directory, disk.read(fd, disk.fstat(fd).st_size), disk)
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}")
    finally:
        disk.close(fd)
    return True


def _do_what_it_says(directory: str, note: bytes, disk: Disk) -> None:
    lines = note.split(b"\n")
    if lines[-1] != _END.encode():
        return
    for line in lines[:-1]:
        old, _, new = line.partition(b" ")
        if parse_message(old) and parse_message(new):
            with contextlib.suppress(FileNotFoundError):
                disk.rename(f"{directory}/{old.decode()}", f"{directory}/{new.decode()}")
