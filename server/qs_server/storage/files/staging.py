"""Messages that are being written: on disk under names that no consumer looks at, until they are made visible together.

The steps of one message: create `MID.new` exclusively, write, sync, rename to `MID` (`MID.EXPIRY` when it is delayed).
A list is all or nothing: before the first rename of several, a batch file notes them all, and a start that finds one
finishes what it says. Its publisher holds a lock on it for as long as it lives, so that nobody finishes it too early.
"""

import contextlib
import fcntl
import logging
import os
from dataclasses import dataclass

from ..disk import Disk
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
    """The pushes to one directory that are not visible yet, request by request."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._sync = sync
        self.requests: list[list[Staged]] = []
        """Those that have been written completely."""
        self._batches: dict[int, int] = {}
        """Descriptors of the batch files, by first id."""

    def __len__(self) -> int:
        return sum(map(len, self.requests))

    def holds(self, name: str) -> bool:
        """Whether that file is being written here."""
        return any(name == f"{staged.mid}.new" for request in self.requests for staged in request)

    def add(self, request: list[Staged]) -> None:
        """A request has been written completely."""
        self.requests.append(request)

    def take(self) -> list[list[Staged]]:
        """Every request, for the caller to publish or discard."""
        requests, self.requests = self.requests, []
        return requests

    def new_path(self, mid: int) -> str:
        """Where a message is while it is being written."""
        return f"{self._directory}/{mid}.new"

    def write(self, mid: int, expiry: int, payload: bytes | int) -> Staged:
        """Writes one message. payload: bytes, or the descriptor of an open file whose content it is. FileExistsError
        when another publisher is writing one with that id."""
        fd = self._disk.open(self.new_path(mid), _NEW_FILE | os.O_EXCL, 0o666)
        staged = Staged(mid, expiry, 0, fd)
        try:
            staged.size = self._fill(fd, payload)
            if not self._sync:
                self._close(staged)
        except BaseException:
            self.discard([staged])
            raise
        return staged

    def _fill(self, fd: int, payload: bytes | int) -> int:
        """Writes a payload into a new file; its bytes."""
        if isinstance(payload, int):
            return self._disk.copy(payload, fd)
        self._disk.write(fd, payload)
        return len(payload)

    def sync(self) -> dict[int, OSError]:
        """Makes the contents of everything written durable, and notes the lists. Requests for which that fails are
        discarded: by first id, and why."""
        if self._sync and len(self) > 1:
            for request in self.requests:
                for staged in request:
                    if staged.fd >= 0:
                        with contextlib.suppress(OSError):  # the sync will say so
                            self._disk.begin_writing(staged.fd)
        failures: dict[int, OSError] = {}
        for request in self.requests:
            try:
                self._sync_request(request)
            except OSError as error:
                self.discard(request)
                failures[request[0].mid] = error
        if failures:
            self.requests = [request for request in self.requests if request[0].mid not in failures]
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

    def finish(self, request: list[Staged]) -> None:
        """After every rename of a request."""
        if request and request[0].mid in self._batches:
            self._disk.unlink(self._batch_path(request))
            self._unlock(request)

    def _unlock(self, request: list[Staged]) -> None:
        fd = self._batches.pop(request[0].mid, None)
        if fd is not None:
            self._disk.close(fd)

    def discard(self, request: list[Staged]) -> None:
        """Takes back messages that are not visible."""
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
            with contextlib.suppress(OSError):
                self._close(staged)
        if request:
            self._unlock(request)

    def _close(self, staged: Staged) -> None:
        if staged.fd >= 0:
            fd, staged.fd = staged.fd, -1
            self._disk.close(fd)


def finish_batches(directory: str, names: list[str], disk: Disk) -> bool:
    """At a start: completes the lists that a crash interrupted. names: of the directory. True if there were any."""
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
