"""The publisher's side of a queue's directory: messages are written, then made visible together."""

import logging
from collections.abc import Sequence

from ..capacity import require_room
from ..engine import Draft, Durability, Options, QueueFullError, Stats, UnsupportedError
from ..names import MAX_MID, message_name
from ..recording import RecordingDirectory
from .attributes import Attributes
from .directory import Shared
from .staging import Staged, Staging

_logger = logging.getLogger(__name__)
STAGED = 1000
"""Messages that are being written, each with an open file, before they are made visible."""


class PublishingDirectory(RecordingDirectory):
    """Takes pushes, request by request, each all or nothing."""

    def __init__(self, path: str, qid: str, options: Options, shared: Shared) -> None:
        """As MessageDirectory; it is listed at once. OSError when it cannot be read."""
        super().__init__(path, qid, options, shared)
        self._staging = Staging(path, shared.disk, sync=shared.durability is Durability.ALWAYS)
        self.counts = Stats()
        self._failed: dict[int, OSError] = {}
        self._pushers: dict[int, str] = {}  # whose pushes are staged, by first id, if there is a record
        try:
            self.rescan()
        except BaseException:
            self.unwatch()
            raise

    def is_staged(self, name: str) -> bool:
        return self._staging.holds(name)

    def close(self) -> list[int]:
        """Takes back what is not visible, and stops watching. The first ids of the requests that came to nothing."""
        self._activity.staged_messages -= len(self._staging)
        requests = self._staging.take()
        for request in requests:
            self._discard(request)
        self.unwatch()
        self._activity.forget(self.qid)
        return [*self._failed, *(request[0].mid for request in requests if request)]

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Writes messages, all or none, which are visible after `flush`. Returns their ids. UnsupportedError for one
        with a key."""
        if any(draft.key is not None for draft in drafts):
            raise UnsupportedError("the storage 'files' keeps no keys: 'key' is for queues of the storage 'journal'")
        self._must_have_room(len(drafts))
        request: list[Staged] = []
        try:
            for draft in drafts:
                request.append(self._stage(draft))  # noqa: PERF401 - what was written before an error is discarded
        except BaseException:
            self._discard(request)
            raise
        self._stage_request(request)
        if self._shared.lifecycle is not None and request:
            self._pushers[request[0].mid] = self._shared.lifecycle.peer
        if self._activity.staged_messages >= STAGED:
            self.publish_staged()
        return [staged.mid for staged in request]

    def _stage_request(self, request: list[Staged]) -> None:
        self._staging.add(request)
        self._activity.staged[self.qid] = self.flush
        self._activity.staged_messages += len(request)

    def _must_have_room(self, count: int) -> None:
        """QueueFullError when so many more messages are too many."""
        require_room(
            self.qid, self.options.capacity, lambda: len(self) + len(self._staging), count, self._watch.refresh
        )

    def _stage(self, draft: Draft) -> Staged:
        while True:
            now = self._clock()
            mid = max(self.number(now), self.last_mid + 1)
            if mid > MAX_MID:
                raise QueueFullError(f"queue {self.qid!r} has seen the message {self.last_mid}: no greater id is left")
            expiry = self.number(now + draft.delay) if draft.delay else 0
            try:
                staged = self._staging.write(mid, expiry, draft.payload)
            except FileExistsError:
                self.last_mid = mid
                continue
            # Our `.new` keeps others from taking the id from here on. Whoever had it before has been reported by now.
            self._watch.refresh()
            if self._index.expiry(mid) is None:
                break
            self._discard([staged])
        self.last_mid = max(mid, self.last_mid)
        if expiry:
            self._note_delay(staged)
        return staged

    def _note_delay(self, staged: Staged) -> None:
        path = self._staging.new_path(staged.mid)
        try:
            self._attributes.write(path, staged.mid, Attributes(delayed=staged.expiry), or_fail=True)
        except BaseException:
            self._discard([staged])
            raise

    def _discard(self, request: list[Staged]) -> None:
        self._staging.discard(request)
        for staged in request:
            if staged.expiry:
                self.forget_attributes(staged.mid)

    def flush(self) -> dict[int, OSError]:
        """Makes every pushed message visible, request by request. Returns those that came to nothing since the last
        call, by first id, and why."""
        self.publish_staged()
        failures, self._failed = self._failed, {}
        return failures

    def publish_staged(self) -> None:
        """Makes every pushed message visible; `flush` tells what came to nothing. To be called before messages are
        looked at."""
        if not self._staging.requests:
            return
        self._activity.staged_messages -= len(self._staging)
        self._failed |= self._staging.sync()
        for request in self._staging.take():
            try:
                self._publish(request)
            except OSError as error:
                self._discard(request)
                self._failed[request[0].mid] = error
        self._pushers.clear()

    def _publish(self, request: list[Staged]) -> None:
        done: list[Staged] = []
        try:
            for staged in request:
                self._show(staged)
                done.append(staged)
            self._staging.finish(request)
        except OSError:
            for staged in done:
                self._take_back(staged)
            raise
        self.counts.pushed += len(request)
        self.touch()
        self._note_pushed(request)

    def _note_pushed(self, request: list[Staged]) -> None:
        lifecycle = self._shared.lifecycle
        if lifecycle is not None and request:
            peer = self._pushers.get(request[0].mid)  # else it is made visible by whoever stored it
            for staged in request:
                lifecycle.note("pushed", self.qid, staged.mid, staged.size, 0, peer=peer)

    def _take_back(self, staged: Staged) -> None:
        try:
            self.unlink(staged.mid, staged.expiry)
        except OSError as error:
            _logger.error("message %s of a list that failed stays in %s: %s", staged.mid, self.path, error)

    def _show(self, staged: Staged) -> None:
        mid, expiry = staged.mid, staged.expiry
        self._disk.rename(self._staging.new_path(mid), self.name_path(mid, expiry))
        self._watch.expect_arrival(self._watched, message_name(mid, expiry))
        self._index.add(mid, expiry, staged.size)
        if expiry:
            self.hidden(expiry)
        else:
            self.arrived()
