"""Writes pushed messages into a queue's directory in the vsqs layout, and gives them ids.

`MID.new` is created exclusively, written, synced, and renamed to `MID`, or `MID.EXPIRY` if it is delayed. A list is
all or nothing: a batch file names its messages before the first rename, and a start finishes what it says. Its
publisher holds a lock on it, so that nobody finishes it too early.
"""

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Collection
from itertools import chain

from ..disk import READ
from ..engine import Draft, Headers, NoSuchQueueError, QueueFullError
from ..message_store import Content, PendingMessage
from ..metadata import Attributes, StoredHeaders
from ..names import MAX_MID, message_name
from .listing import BATCH, END, TEMPORARY, WatchedDirectory

_logger = logging.getLogger(__name__)
_NEW_FILE = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
_STALE_COPY = 1
"""Seconds without a write after which a crash has left the copy of a message, which is written in one go."""


class FileWriter:
    """Writes messages in the vsqs layout. Their ids are in `WatchedDirectory.writing` until they are visible.

    Ensures:
    1. No two publishers give the same id: the file `MID.new` is created exclusively.
    2. A message is visible only when its file is complete, and synced where that was asked for: the file is renamed
       last.
    3. A list is there as a whole or not at all, also after a crash: its batch file says what is left to rename.

    Assumes that renames in a directory are atomic. Never overwrites a file of another program."""

    def __init__(self, directory: WatchedDirectory) -> None:
        self._directory = directory
        self._context = directory.context
        self._disk = directory.context.disk
        self._sync = directory.context.always
        self._batches: dict[int, int] = {}
        """Descriptors of the batch files, by first id."""

    # -- writing

    def write(self, draft: Draft) -> PendingMessage:
        directory = self._directory
        while True:
            now = self._context.clock()
            # The time, or more if the clock went back or several come in one unit of it.
            mid = max(directory.number(now), directory.last_mid + 1)
            if mid > MAX_MID:
                raise QueueFullError(
                    f"queue {directory.qid!r} has seen the message {directory.last_mid}: no greater id is left"
                )
            expiry = directory.number(now + draft.delay) if draft.delay else 0
            try:
                pending = self._write(mid, expiry, draft.payload)
            except FileExistsError:
                directory.last_mid = mid
                continue
            # Our `.new` keeps others from taking the id from here on. An earlier owner has been reported by now.
            self._context.watch.refresh()
            # Nobody had the id before: it is this message's.
            if directory.index.expiry(mid) is None:
                break
            self.discard([pending])
        directory.last_mid = max(mid, directory.last_mid)
        if expiry or draft.headers:
            self._write_attributes(pending, draft.headers)
        return pending

    def _write_attributes(self, pending: PendingMessage, headers: Headers) -> None:
        """Writes the end of the delay, and the headers, while nobody sees the message."""
        attributes = self._directory.attributes
        try:
            if pending.until:
                delay = Attributes(delayed=pending.until)
                attributes.write(pending.temporary, pending.mid, delay, or_fail=True)
            if headers:
                # Noted first: if writing them fails, a hidden file may be there.
                pending.headers = StoredHeaders(0, is_file=True)
                pending.headers = attributes.headers.write(pending.temporary, pending.mid, headers)
                pending.size += pending.headers.size
        except BaseException:
            self.discard([pending])
            raise

    def write_copy(self, mid: int, content: Content, file: str | None) -> PendingMessage:
        payload, headers = content
        if self._directory.arrivals and os.path.lexists(self._directory.name_path(mid, 0)):
            # Another program's message, which is being checked.
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._directory.name_path(mid, 0))
        try:
            if os.path.lexists(self._new_path(mid)):
                self._clear_half_copy(mid, payload)
            pending = self._write(mid, 0, payload, file)
            if headers:
                self._write_attributes(pending, headers)
            return pending
        except FileNotFoundError:
            if self._directory.in_place():
                raise
            self._context.vanished(self._directory.qid)
            raise NoSuchQueueError(f"there is no queue {self._directory.qid!r} any more") from None

    def _clear_half_copy(self, mid: int, payload: bytes) -> None:
        """Removes the incomplete file that a crash has left of the same copy, if it was not written to for a second.
        Otherwise the copy would have to wait for `_STALE`."""
        with contextlib.suppress(FileNotFoundError):
            if payload.startswith(self._disk.read_file(self._new_path(mid))):
                # The same content: this is what an interrupted copy looks like.
                self._directory.clear_left_behind(f"{mid}.new", _STALE_COPY)
            else:
                self._directory.clear_left_behind(f"{mid}.new")

    def _new_path(self, mid: int) -> str:
        return f"{self._directory.path}/{mid}.new"

    def _write(self, mid: int, expiry: int, payload: bytes, file: str | None = None) -> PendingMessage:
        """Writes a `.new` file. file: an existing file with the same payload, which the kernel can copy.
        FileExistsError for a used id; OSError."""
        path = self._new_path(mid)
        fd = self._disk.open(path, _NEW_FILE | os.O_EXCL, 0o666)
        pending = PendingMessage(mid, expiry, len(payload), path, fd)
        try:
            if file is None or not self._copy(file, fd):
                self._disk.write(fd, payload)
            if not self._sync:
                self._close(pending)
        except BaseException:
            self.discard([pending])
            raise
        self._directory.writing.add(mid)
        return pending

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

    # -- making visible

    def sync(self, requests: Collection[list[PendingMessage]]) -> dict[int, OSError]:
        if self._sync and sum(map(len, requests)) > 1:
            for pending in chain.from_iterable(requests):
                if pending.fd >= 0:
                    with contextlib.suppress(OSError):  # the sync will say so
                        self._disk.begin_writing(pending.fd)
        failures: dict[int, OSError] = {}
        for request in requests:
            try:
                self._sync_request(request)
            except OSError as error:
                failures[request[0].mid] = error
        return failures

    def _sync_request(self, request: list[PendingMessage]) -> None:
        if self._sync:
            for pending in request:
                if pending.fd >= 0:
                    self._disk.fsync(pending.fd)
                    self._close(pending)
        if len(request) > 1:
            self._note(request)

    def _note(self, request: list[PendingMessage]) -> None:
        path = self._batch_path(request)
        fd = self._disk.open_file(path + TEMPORARY, _NEW_FILE | os.O_TRUNC)
        self._batches[request[0].mid] = fd
        with contextlib.suppress(OSError):  # a file system without locks cannot be shared by publishers of lists
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Written before the first rename, so that a start can complete the list.
        lines = [f"{pending.mid}.new {message_name(pending.mid, pending.until)}" for pending in request]
        self._disk.write(fd, "\n".join([*lines, END]).encode())
        if self._sync:
            self._disk.fsync(fd)
        self._disk.rename(path + TEMPORARY, path)

    def _batch_path(self, request: list[PendingMessage]) -> str:
        return f"{self._directory.path}/{BATCH}{request[0].mid}"

    def show(self, pending: PendingMessage) -> None:
        self._disk.rename(pending.temporary, self._directory.name_path(pending.mid, pending.until))
        self._directory.writing.discard(pending.mid)
        self._directory.add(pending.mid, pending.until, pending.size, pending.headers)

    def finish(self, request: list[PendingMessage]) -> None:
        if request[0].mid in self._batches:
            # Now the list needs no completing any more.
            self._disk.unlink(self._batch_path(request))
            self._unlock(request)
        self._directory.touch()

    def _unlock(self, request: list[PendingMessage]) -> None:
        fd = self._batches.pop(request[0].mid, None)
        if fd is not None:
            self._disk.close(fd)

    # -- taking back

    def take_back(self, pending: PendingMessage) -> None:
        try:
            self._directory.unlink(pending.mid, pending.until)
        except OSError as error:
            _logger.error("message %s of a list that failed stays in %s: %s", pending.mid, self._directory.path, error)

    def discard(self, request: list[PendingMessage]) -> None:
        paths = [pending.temporary for pending in request]
        if request and request[0].mid in self._batches:
            # First: without it, a crash leaves nothing that a start would make visible.
            paths[:0] = [self._batch_path(request), self._batch_path(request) + TEMPORARY]
        for path in paths:
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                _logger.warning("%s stays behind: %s", path, error)
        for pending in request:
            self._directory.writing.discard(pending.mid)
            with contextlib.suppress(OSError):
                self._close(pending)
            if pending.until or pending.headers is not None:
                self._directory.forget_attributes(pending.mid, pending.headers)
        if request:
            self._unlock(request)

    def _close(self, pending: PendingMessage) -> None:
        if pending.fd >= 0:
            fd, pending.fd = pending.fd, -1
            self._disk.close(fd)
