"""Takes messages of other queues into a queue's directory in the vsqs layout, under their ids."""

import contextlib
import os
from collections.abc import Callable

from ..disk import READ, Disk
from ..engine import NoSuchQueueError, OtherMessageError
from ..publisher import Publisher
from .directory import STALE_AFTER, MessageDirectory
from .staging import Staged, Staging
from .writer import FileWriter

_HALF_COPY = 1
"""Seconds after which nobody is at work on a copy of a message whose file is not written to."""


class Copier:
    """Stores copies in one directory."""

    def __init__(  # noqa: PLR0917
        self,
        qid: str,
        directory: MessageDirectory,
        staging: Staging,
        writer: FileWriter,
        publisher: Publisher[Staged],
        disk: Disk,
        refresh: Callable[[], None],
    ) -> None:
        """refresh: takes notice of what others have done."""
        self._qid = qid
        self._directory = directory
        self._staging = staging
        self._writer = writer
        self._publisher = publisher
        self._disk = disk
        self._refresh = refresh

    def copy(self, mid: int, payload: bytes | int, read: Callable[[], bytes]) -> bool:
        """Stores a message, visible at once. payload: bytes, or the descriptor of a file whose content it is; read:
        gives it as bytes. False when the message is here already. OtherMessageError, QueueFullError, OSError;
        NoSuchQueueError when the directory is gone; FileExistsError when somebody is writing a message of that id."""
        if self._holds(mid, read):
            return False
        self._publisher.require_room(1)
        staged = self._write(mid, payload, read)
        self._directory.saw(mid)
        self._refresh()  # as for a push: whoever was faster has been reported by now
        taken = False
        try:
            taken = not self._holds(mid, read)
        finally:
            if not taken:
                self._writer.discard([staged])
        if taken:
            self._publisher.publish_copy(staged)
        return taken

    def _holds(self, mid: int, read: Callable[[], bytes]) -> bool:
        """Tells whether the message is here already. OtherMessageError when another one of that id is."""
        while (expiry := self._directory.index.expiry(mid)) is not None:
            own = self._directory.read(mid, expiry)
            if own is not None:
                if own != read():
                    raise OtherMessageError(f"queue {self._qid!r} holds another message of the id {mid}")
                return True
        return False

    def _write(self, mid: int, payload: bytes | int, read: Callable[[], bytes]) -> Staged:
        try:
            if os.path.lexists(self._staging.new_path(mid)):
                self._clear_half_copy(mid, read)
            return self._staging.write(mid, 0, payload)
        except FileNotFoundError:
            if self._directory.in_place():
                raise
            self._directory.vanished()
            raise NoSuchQueueError(f"there is no queue {self._qid!r} any more") from None

    def _clear_half_copy(self, mid: int, read: Callable[[], bytes]) -> None:
        """Removes what a crash in the middle of the same copy has left: the beginning of the payload, to which nobody
        has written for a second. Else copying would wait until it is old enough to be anybody's."""
        with contextlib.suppress(FileNotFoundError):
            fd = self._disk.open(self._staging.new_path(mid), READ)
            try:
                begun = self._disk.read_all(fd, self._disk.fstat(fd).st_size)
            finally:
                self._disk.close(fd)
            same = read().startswith(begun)
            self._directory.clear_left_behind(f"{mid}.new", _HALF_COPY if same else STALE_AFTER)
