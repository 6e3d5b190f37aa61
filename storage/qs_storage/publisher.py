"""Pushes to a queue in a directory: messages are written at once, and published together."""

from collections.abc import Sequence

from .engine import Draft, NoKeysError, Stats
from .message_store import MessageStore, Staged, Writer
from .policy import require_room

STAGED = 1000
"""Messages, maybe with open files, before they are published."""


class Publisher:
    """The part of a queue that takes pushes, each all or nothing."""

    def __init__(self, store: MessageStore, writer: Writer) -> None:
        self.path = store.path
        self.qid = store.qid
        self.options = store.options
        self.store = store
        self.counts = Stats(storage=self.options.storage)
        self._writer = writer
        self._index = store.index
        self._shared = store.shared
        self._activity = store.shared.activity
        self._requests: list[list[Staged]] = []
        self._failed: dict[int, OSError] = {}
        self._peers: dict[int, str] = {}
        """Clients of staged pushes, by first id."""

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Writes messages, all or none. Returns their ids. NoKeysError for a key; QueueFullError, OSError."""
        for draft in drafts:
            if draft.key is not None:
                raise NoKeysError(self.options.storage)
        if self.options.capacity is not None:
            self.require_room(len(drafts))
        request: list[Staged] = []
        try:
            for draft in drafts:
                request.append(self._writer.stage(draft))  # noqa: PERF401 - what was written before an error is discarded
        except BaseException:
            self._writer.discard(request)
            raise
        if request:
            self._add(request)
            if self._shared.lifecycle is not None:
                self._peers[request[0].mid] = self._shared.lifecycle.peer
        if self._activity.staged_messages >= STAGED:
            self.publish()
        return [staged.mid for staged in request]

    def publish_copy(self, staged: Staged) -> None:
        """Makes a copy visible. OSError: it is not there."""
        self._add([staged])
        self.publish()
        if (error := self._failed.pop(staged.mid, None)) is not None:
            raise error

    def require_room(self, count: int) -> None:
        """Raises QueueFullError unless so many messages fit."""
        require_room(self.qid, self.options.capacity, self._with_staged, count, self._shared.watch.refresh)

    def _with_staged(self) -> int:
        return len(self._index) + self._staged()

    def _staged(self) -> int:
        """Counts messages that are not visible yet."""
        return sum(map(len, self._requests))

    def _add(self, request: list[Staged]) -> None:
        self._requests.append(request)
        self._activity.staged[self.qid] = self.flush
        self._activity.staged_messages += len(request)

    def flush(self) -> dict[int, OSError]:
        """Publishes, and returns the requests that failed since the last call, by first id."""
        self.publish()
        failures, self._failed = self._failed, {}
        return failures

    def publish(self) -> None:
        """Makes pushed messages visible. Call it before looking at messages; `flush` returns failures."""
        if not self._requests:
            return
        requests = self._take_staged()
        failed = self._writer.sync(requests)
        for request in requests:
            first = request[0].mid
            if first not in failed:
                try:
                    self._make_visible(request)
                    continue
                except OSError as error:
                    failed[first] = error
            self._writer.discard(request)
        self._failed |= failed
        self._peers.clear()

    def _take_staged(self) -> list[list[Staged]]:
        self._activity.staged_messages -= self._staged()
        requests, self._requests = self._requests, []
        return requests

    def _make_visible(self, request: list[Staged]) -> None:
        shown: list[Staged] = []
        try:
            for staged in request:
                self._writer.show(staged)
                shown.append(staged)
            self._writer.finish(request)
        except OSError:
            for staged in shown:
                self._writer.take_back(staged)
            raise
        self.counts.pushed += len(request)
        lifecycle = self._shared.lifecycle
        if lifecycle is not None:
            peer = self._peers.get(request[0].mid)  # a copy has none: it is made visible by whoever stored it
            for staged in request:
                lifecycle.note("pushed", self.qid, staged.mid, staged.size, 0, peer=peer)

    def close(self) -> list[int]:
        """Takes back what is not visible, and stops watching. Returns the first ids of failed requests."""
        requests = self._take_staged()
        for request in requests:
            self._writer.discard(request)
        self._activity.forget(self.qid)
        self.store.close()
        return [*self._failed, *(request[0].mid for request in requests)]
