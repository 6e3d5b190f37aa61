"""Messages that are being written: on disk under names that no consumer looks at, until they are made visible together.

The steps of one message: create `MID.new` exclusively, write, sync, rename to `MID` (`MID.EXPIRY` when it is delayed).
A list is all or nothing: before the first rename of several, a batch file notes them all, and a start that finds one
finishes what it says.
"""

import contextlib
import logging
import os
from dataclasses import dataclass

from .disk import Disk
from .names import message_name, parse_message

_logger = logging.getLogger(__name__)
_BATCH = ".batch-"
_END = "end"


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
        self._requests: list[list[Staged]] = []

    def __len__(self) -> int:
        return sum(map(len, self._requests))

    def holds(self, mid: int) -> bool:
        """Whether that message is being written here."""
        return any(staged.mid == mid for request in self._requests for staged in request)

    def add(self, request: list[Staged]) -> None:
        """A request has been written completely."""
        self._requests.append(request)

    def take(self) -> list[list[Staged]]:
        """Every request, for the caller to publish or discard."""
        requests, self._requests = self._requests, []
        return requests

    def new_path(self, mid: int) -> str:
        """Where a message is while it is being written."""
        return f"{self._directory}/{mid}.new"

    def write(self, mid: int, expiry: int, payload: bytes) -> Staged:
        """Writes one message. FileExistsError when another publisher is writing one with that id."""
        path = self.new_path(mid)
        fd = self._disk.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        staged = Staged(mid, expiry, len(payload), fd)
        try:
            self._disk.write(fd, payload)
            if not self._sync:
                self._close(staged)
        except BaseException:
            self.discard([staged])
            raise
        return staged

    def sync(self) -> dict[int, OSError]:
        """Makes the contents of everything written durable, and notes the lists. Requests for which that fails are
        discarded: by first id, and why."""
        if self._sync and len(self) > 1:
            for request in self._requests:
                for staged in request:
                    self._disk.begin_writing(staged.fd)
        failures: dict[int, OSError] = {}
        for request in self._requests:
            try:
                self._sync_request(request)
            except OSError as error:
                self.discard(request)
                failures[request[0].mid] = error
        if failures:
            self._requests = [request for request in self._requests if request[0].mid not in failures]
        return failures

    def _sync_request(self, request: list[Staged]) -> None:
        if self._sync:
            for staged in request:
                self._disk.fsync(staged.fd)
                self._close(staged)
        if len(request) > 1:
            self._note(request)

    def _note(self, request: list[Staged]) -> None:
        lines = [f"{staged.mid}.new {message_name(staged.mid, staged.expiry)}" for staged in request]
        self._disk.write_file(self._batch_path(request), "\n".join([*lines, _END]).encode(), sync=self._sync)

    def _batch_path(self, request: list[Staged]) -> str:
        return f"{self._directory}/{_BATCH}{request[0].mid}"

    def finish(self, request: list[Staged]) -> None:
        """After every rename of a request."""
        if len(request) > 1:
            self._disk.unlink(self._batch_path(request))

    def discard(self, request: list[Staged]) -> None:
        """Takes back messages that are not visible."""
        for path in [self.new_path(staged.mid) for staged in request] + [self._batch_path(request)] * (
            len(request) > 1
        ):
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                _logger.warning("%s stays behind: %s", path, error)
        for staged in request:
            self._close(staged)

    def _close(self, staged: Staged) -> None:
        if staged.fd >= 0:
            fd, staged.fd = staged.fd, -1
            self._disk.close(fd)


def finish_batches(directory: str, names: list[str], disk: Disk) -> bool:
    """At a start: completes the lists that a crash interrupted. names: of the directory. True if there were any."""
    batches = [name for name in names if name.startswith(_BATCH)]
    for name in batches:
        path = f"{directory}/{name}"
        if not name.endswith(".tmp"):
            with open(path, encoding="ascii") as file:
                lines = file.read().splitlines()
            if lines and lines[-1] == _END:
                for old, new in (line.split(" ", 1) for line in lines[:-1]):
                    if parse_message(old.encode()) and parse_message(new.encode()):
                        _rename_if_there(f"{directory}/{old}", f"{directory}/{new}", disk)
        disk.unlink(path)
    return bool(batches)


def _rename_if_there(old: str, new: str, disk: Disk) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.rename(old, new)
