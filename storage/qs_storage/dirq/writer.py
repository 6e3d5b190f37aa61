"""Writes pushed messages into a queue's directory in a layout of dirq, and gives them ids."""

import errno
import logging
import os
import secrets
from collections.abc import Collection

from ..engine import Draft, QueueFullError
from .element_names import FAR, MAX_MID, following, mid_at
from .element_state import Elements
from .layout import Staged
from .lease_metadata import Lease, stamp

_logger = logging.getLogger(__name__)


class ElementWriter:
    """See Writer in publisher.py. A crash may leave half of a list: dirq has no lists."""

    def __init__(self, elements: Elements) -> None:
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
