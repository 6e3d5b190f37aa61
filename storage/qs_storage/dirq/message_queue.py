"""A queue of the server in a dirq directory, and how it writes messages and gives them ids.

An element is ready unless it is locked, as dirq's consumers lock it: in flight or delayed. Any number of processes
may share the directory, as a lock succeeds for one of them.
"""

import errno
import logging
import os
import secrets
from collections.abc import Collection

from ..directory_queue import DirectoryQueue
from ..engine import Draft, Options, QueueFullError
from ..message_store import Staged
from ..shared import Shared
from .elements import FAR, MAX_MID, following, mid_at
from .layouts import Layout, QueueLayout, SimpleLayout
from .listing import WatchedElements
from .places import Places
from .schema import body_of
from .store import Lease, stamp

_logger = logging.getLogger(__name__)


class ElementWriter:
    """See Writer. A crash may leave half of a list: dirq has no lists."""

    def __init__(self, elements: WatchedElements) -> None:
        self._elements = elements
        self._layout = elements.layout
        self._places = elements.places
        self._clock = elements.shared.clock
        self._digit = secrets.randbelow(16)

    def stage(self, draft: Draft) -> Staged:
        while True:
            last = self._elements.last_mid
            mid = max(mid_at(self._clock(), self._digit), following(last))
            if mid >= min(FAR, MAX_MID):
                raise QueueFullError(f"queue {self._elements.qid!r} has seen the message {last}: no greater id is left")
            self._elements.last_mid = mid
            if mid in self._places:
                continue  # somebody whose clock is ahead has added it
            try:
                return self._write(mid, draft.payload, self._clock() + draft.delay if draft.delay else 0)
            except FileExistsError:
                continue  # another publisher is writing one of that name

    def write_copy(self, mid: int, payload: bytes, file: str | None) -> Staged:
        return self._write(mid, payload, 0)

    def _write(self, mid: int, payload: bytes, until: int) -> Staged:
        staged = self._layout.write(mid, payload, until)
        if staged.folder and staged.folder not in self._places.folders:
            self._elements.folder_made(staged.folder)  # by us, or by somebody of whom we have not heard yet
        if until:
            try:
                self._layout.lock_staged(staged)
                self._elements.leases.write(staged.temporary, mid, Lease(0, until, delayed=True), or_fail=True)
                stamp(staged.temporary, until)
            except BaseException:
                self.discard([staged])
                raise
        return staged

    def sync(self, requests: Collection[list[Staged]]) -> dict[int, OSError]:
        failures: dict[int, OSError] = {}
        for request in requests if self._elements.shared.always else ():
            try:
                for staged in request:
                    self._layout.sync_staged(staged)
            except OSError as error:
                failures[request[0].mid] = error
        return failures

    def show(self, staged: Staged) -> None:
        mid, elements = staged.mid, self._elements
        if mid in self._places:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), elements.path_of(mid))
        folder = self._layout.publish(staged)
        self._places.add(mid, folder)
        elements.index.add(mid, staged.until, staged.size)
        if folder not in self._places.folders:
            elements.folder_made(folder)
        elements.touch(folder=folder)
        if staged.until:
            elements.announce(mid, staged.until)
        else:
            elements.arrived()

    def finish(self, request: list[Staged]) -> None:
        """Does nothing: each message is complete."""

    def take_back(self, staged: Staged) -> None:
        try:
            with self._elements.exclusive(staged.mid) as state:
                if state is not None:
                    self._elements.remove(staged.mid, state)
        except OSError as error:
            _logger.error("message %s of a list that failed stays in %s: %s", staged.mid, self._elements.path, error)

    def discard(self, request: list[Staged]) -> None:
        for staged in request:
            self._layout.discard(staged)
            if staged.until:
                self._elements.forget_lease(staged.mid)


def open_dirq_queue(path: str, qid: str, options: Options, shared: Shared) -> DirectoryQueue:
    """Opens the queue in a directory. OSError; StorageError if elements of its schema cannot be messages."""
    places = Places(shared.watch)
    layout: Layout
    if options.storage == "dirq":
        layout = QueueLayout(path, shared.disk, body_of(options), places, sync=shared.always)
    else:
        layout = SimpleLayout(path, shared.disk, places, sync=shared.always)
    elements = WatchedElements(path, qid, options, shared, layout, places)
    return DirectoryQueue(elements, ElementWriter(elements))
