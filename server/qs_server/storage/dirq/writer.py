"""The publisher's side of a dirq queue: messages are written, then made visible together."""

import errno
import logging
import os
import secrets
from collections.abc import Sequence

from ..capacity import require_room
from ..engine import SECOND, Draft, OtherMessageError, QueueFullError, Stats, UnsupportedError
from ..files.publishing import STAGED
from ..queues import EngineQueue
from .element_state import Sight
from .layout import Staged
from .lease_metadata import Marks, stamp
from .listing import Listing
from .mids import FAR, MAX_MID, following, mid_at

_logger = logging.getLogger(__name__)


class PublishingElements(Listing):
    """Takes pushes, each all or nothing but for a crash while its elements get their names: dirq knows no lists."""

    def _begin(self) -> None:
        self.counts = Stats()
        self._digit = secrets.randbelow(16)
        self._requests: list[list[Staged]] = []
        self._failed: dict[int, OSError] = {}
        self._staged: set[int] = set()
        self._pushers: dict[int, str] = {}  # whose pushes are staged, by first id, if there is a record

    def close(self) -> list[int]:
        """See EngineQueue."""
        requests, self._requests = self._requests, []
        self._activity.staged_messages -= sum(map(len, requests))
        for request in requests:
            self._discard(request)
        self._layout.bury()
        self.unwatch()
        self._activity.forget(self.qid)
        return [*self._failed, *(request[0].mid for request in requests)]

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Writes messages, all or none, which are visible after `flush`. Returns their ids. UnsupportedError for one
        with a key."""
        if any(draft.key is not None for draft in drafts):
            raise UnsupportedError(
                f"the storage {self.options.storage!r} keeps no keys: 'key' is for queues of the storage 'journal'"
            )
        self._must_have_room(len(drafts))
        request: list[Staged] = []
        try:
            for draft in drafts:
                request.append(self._stage(draft))  # noqa: PERF401 - what was written before an error is discarded
        except BaseException:
            self._discard(request)
            raise
        if request:
            self._stage_request(request)
            if self._shared.lifecycle is not None:
                self._pushers[request[0].mid] = self._shared.lifecycle.peer
        if self._activity.staged_messages >= STAGED:
            self.publish_staged()
        return [staged.mid for staged in request]

    def _stage_request(self, request: list[Staged]) -> None:
        self._requests.append(request)
        self._activity.staged[self.qid] = self.flush
        self._activity.staged_messages += len(request)

    def _must_have_room(self, count: int) -> None:
        require_room(self.qid, self.options.capacity, lambda: len(self) + len(self._staged), count, self._watch.refresh)

    def _stage(self, draft: Draft) -> Staged:
        while True:
            mid = max(mid_at(self._clock(), self._digit), following(self.last_mid))
            if mid >= min(FAR, MAX_MID):
                raise QueueFullError(f"queue {self.qid!r} has seen the message {self.last_mid}: no greater id is left")
            self.last_mid = mid
            if self._places.get(mid) is not None:
                continue  # somebody whose clock is ahead has added it
            try:
                return self._write(mid, draft.payload, self._clock() + draft.delay if draft.delay else 0)
            except FileExistsError:
                continue  # another publisher is writing one of that name

    def _write(self, mid: int, payload: bytes, until: int) -> Staged:
        staged = self._layout.write(mid, payload, until)
        self._staged.add(mid)
        if until:
            try:
                self._layout.lock_staged(staged)
                self._marks.write(staged.temporary, mid, Marks(0, until, delayed=True), or_fail=True)
                stamp(staged.temporary, until)
            except BaseException:
                self._discard([staged])
                raise
        return staged

    def _discard(self, request: list[Staged]) -> None:
        for staged in request:
            self._staged.discard(staged.mid)
            self._layout.discard(staged)
            if staged.until:
                self._forget_marks(staged.mid)

    # -- copies of messages of other queues

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """See EngineQueue."""
        self.publish_staged()
        payload = source.payload_of(mid)
        if (own := self._payload_of(mid)) is not None:
            if own != payload:
                raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
            return False
        self._must_have_room(1)
        self._stage_request([self._write(mid, payload, 0)])
        self._saw(mid)
        self.publish_staged()
        if (error := self._failed.pop(mid, None)) is not None:
            raise error
        return True

    def _payload_of(self, mid: int) -> bytes | None:
        """The payload of a message in whatever state; None when it is not here."""
        while self.look(mid) is not None:
            if (payload := self._content(mid)) is not None:
                return payload
        return None

    # -- making visible

    def flush(self) -> dict[int, OSError]:
        """Makes every pushed message visible, request by request. Returns those that came to nothing since the last
        call, by first id, and why."""
        self.publish_staged()
        failures, self._failed = self._failed, {}
        return failures

    def publish_staged(self) -> None:
        """Makes every pushed message visible; `flush` tells what came to nothing. To be called before messages are
        looked at."""
        if not self._requests:
            return
        failures = self._failed
        requests, self._requests = self._requests, []
        self._activity.staged_messages -= sum(map(len, requests))
        for request in requests:
            try:
                if self._always:
                    for staged in request:
                        self._layout.sync_staged(staged)
            except OSError as error:
                failures[request[0].mid] = error
        for request in requests:
            if request[0].mid not in failures:
                try:
                    self._publish(request)
                    continue
                except OSError as error:
                    failures[request[0].mid] = error
            self._discard(request)
        self._pushers.clear()

    def _publish(self, request: list[Staged]) -> None:
        done: list[Staged] = []
        try:
            for staged in request:
                self._show(staged)
                done.append(staged)
        except OSError:
            for staged in done:
                self._take_back(staged.mid)
            raise
        self.counts.pushed += len(request)
        lifecycle = self._shared.lifecycle
        if lifecycle is not None:
            peer = self._pushers.get(request[0].mid)  # else it is made visible by whoever stored it
            for staged in request:
                lifecycle.note("pushed", self.qid, staged.mid, staged.size, 0, peer=peer)

    def _show(self, staged: Staged) -> None:
        mid = staged.mid
        if self._places.get(mid) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._path(mid))
        folder = self._layout.publish(staged)
        self._staged.discard(mid)
        if folder in self._folders:
            self._folders[folder].elements += 1
        self._put(mid, folder)
        self._index.add(mid, staged.until, staged.size)
        self._touch(folder=folder)
        if staged.until:
            self._hidden(mid, staged.until)
        else:
            self.arrived()

    def _take_back(self, mid: int) -> None:
        try:
            with self.alone(mid) as sight:
                if sight is not None and (sight.hidden or self._lock(mid, sight, Marks(until=self._clock() + SECOND))):
                    self._erase(mid)
        except OSError as error:
            _logger.error("message %s of a list that failed stays in %s: %s", mid, self.path, error)

    def _lock(self, mid: int, sight: Sight, marks: Marks) -> bool:
        """Locks an element that was ready, with these marks. False when another program was faster. Alone."""
        path = self._path(mid)
        # First: a kill right after the lock leaves one whose end is known.
        self._marks.write(path, mid, marks)
        locked = denied = False
        try:
            locked = self._layout.lock(self._place(mid))
        except PermissionError:
            denied = True
        finally:
            if not locked:
                self._marks.write(path, mid, sight.marks)
        if locked:
            stamp(path, marks.until)
        elif denied:
            self.disown(mid)
        else:
            self.look(mid)
        return locked
