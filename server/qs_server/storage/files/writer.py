"""Writes pushed messages into a queue's directory in the vsqs layout, and gives them their ids."""

import contextlib
import logging
import os
from collections.abc import Callable, Collection

from ..engine import Draft, NoSuchQueueError, QueueFullError
from ..names import MAX_MID
from ..shared import Shared
from .attributes import Attributes
from .directory import MessageDirectory
from .staging import Staged, Staging

_logger = logging.getLogger(__name__)
_HALF_COPY = 1
"""Seconds after which nobody is at work on a copy of a message whose file is not written to."""


class FileWriter:
    """See Writer in publisher.py."""

    def __init__(
        self,
        qid: str,
        directory: MessageDirectory,
        staging: Staging,
        shared: Shared,
        clear_left_behind: Callable[..., bool],
    ) -> None:
        """clear_left_behind: see FileListing."""
        self._qid = qid
        self._directory = directory
        self._staging = staging
        self._clear_left_behind = clear_left_behind
        self._vanished = shared.vanished
        self._clock = shared.clock
        self._refresh = shared.watch.refresh

    def stage(self, draft: Draft) -> Staged:
        directory = self._directory
        while True:
            now = self._clock()
            mid = max(directory.number(now), directory.last_mid + 1)
            if mid > MAX_MID:
                raise QueueFullError(
                    f"queue {self._qid!r} has seen the message {directory.last_mid}: no greater id is left"
                )
            expiry = directory.number(now + draft.delay) if draft.delay else 0
            try:
                staged = self._staging.write(mid, expiry, draft.payload)
            except FileExistsError:
                directory.last_mid = mid
                continue
            # Our `.new` keeps others from taking the id from here on. Whoever had it before has been reported by now.
            self._refresh()
            if directory.index.expiry(mid) is None:
                break
            self.discard([staged])
        directory.last_mid = max(mid, directory.last_mid)
        if expiry:
            self._write_delay(staged)
        return staged

    def _write_delay(self, staged: Staged) -> None:
        path = self._staging.new_path(staged.mid)
        try:
            self._directory.attributes.write(path, staged.mid, Attributes(delayed=staged.expiry), or_fail=True)
        except BaseException:
            self.discard([staged])
            raise

    def write_copy(self, mid: int, payload: bytes, file: str | None) -> Staged:
        try:
            if os.path.lexists(self._staging.new_path(mid)):
                self._clear_half_copy(mid, payload)
            return self._staging.write(mid, 0, payload, file)
        except FileNotFoundError:
            if self._directory.in_place():
                raise
            self._vanished(self._qid)
            raise NoSuchQueueError(f"there is no queue {self._qid!r} any more") from None

    def _clear_half_copy(self, mid: int, payload: bytes) -> None:
        """Removes what a crash in the middle of the same copy has left: the beginning of the payload, to which nobody
        has written for a second. Else copying would wait until it is old enough to be anybody's."""
        with contextlib.suppress(FileNotFoundError):
            same = payload.startswith(self._staging.read(mid))
            if same:
                self._clear_left_behind(f"{mid}.new", _HALF_COPY)
            else:
                self._clear_left_behind(f"{mid}.new")

    def sync(self, requests: Collection[list[Staged]]) -> dict[int, OSError]:
        return self._staging.sync(requests)

    def show(self, staged: Staged) -> None:
        self._staging.show(staged)
        self._directory.add(staged.mid, staged.expiry, staged.size)

    def finish(self, request: list[Staged]) -> None:
        self._staging.finish(request)
        self._directory.touch()

    def take_back(self, staged: Staged) -> None:
        try:
            self._directory.unlink(staged.mid, staged.expiry)
        except OSError as error:
            _logger.error("message %s of a list that failed stays in %s: %s", staged.mid, self._directory.path, error)

    def discard(self, request: list[Staged]) -> None:
        self._staging.discard(request)
        for staged in request:
            if staged.expiry:
                self._directory.forget_attributes(staged.mid)
