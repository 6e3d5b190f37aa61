"""Pushes to a queue in a directory: messages are written at once, and published together."""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, Protocol, TypeVar

from .engine import Draft, NoKeysError, Options, Stats
from .policy import require_room
from .shared import Shared

STAGED = 1000
"""Messages, maybe with open files, before they are published."""


class StagedMessage(Protocol):
    """A written message that is not visible."""

    mid: int
    size: int


Staged = TypeVar("Staged", bound=StagedMessage)


class Writer(Protocol[Staged]):
    """Writes the messages of one queue. OSError."""

    def stage(self, draft: Draft) -> Staged:
        """Writes a message that no consumer sees. QueueFullError if no id is left."""

    def write_copy(self, mid: int, payload: bytes, file: str | None) -> Staged:
        """Writes a copy under its id. file: the original's path a moment ago, or None. FileExistsError for an id
        that somebody is writing; NoSuchQueueError."""

    def sync(self, requests: Collection[list[Staged]]) -> dict[int, OSError]:
        """Makes messages durable, a list as a whole if the layout can. Returns the failed requests by first id."""

    def show(self, staged: Staged) -> None:
        """Makes a message visible."""

    def finish(self, request: list[Staged]) -> None:
        """Ends a request after all its messages are visible."""

    def take_back(self, staged: Staged) -> None:
        """Removes a visible message of a request that failed. Raises nothing."""

    def discard(self, request: list[Staged]) -> None:
        """Removes messages that are not visible. Raises nothing."""


class Publisher(Generic[Staged]):
    """Takes pushes, each all or nothing."""

    def __init__(
        self, qid: str, options: Options, writer: Writer[Staged], shared: Shared, held: Callable[[], int]
    ) -> None:
        """held: counts the queue's messages."""
        self.counts = Stats(storage=options.storage)
        self._qid = qid
        self.options = options
        self._writer = writer
        self._shared = shared
        self._activity = shared.activity
        self._held = held
        self._requests: list[list[Staged]] = []
        self._failed: dict[int, OSError] = {}
        self._peers: dict[int, str] = {}
        """Clients of staged pushes, by first id."""

    def __len__(self) -> int:
        """Counts staged messages."""
        return sum(map(len, self._requests))

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Writes messages, all or none. Returns their ids. NoKeysError for a key; QueueFullError, OSError."""
        if any(draft.key is not None for draft in drafts):
            raise NoKeysError(self.options.storage)
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
        require_room(
            self._qid, self.options.capacity, lambda: self._held() + len(self), count, self._shared.watch.refresh
        )

    def _add(self, request: list[Staged]) -> None:
        self._requests.append(request)
        self._activity.staged[self._qid] = self.flush
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
        requests = self._take()
        failed = self._writer.sync(requests)
        for request in requests:
            first = request[0].mid
            if first not in failed:
                try:
                    self._show(request)
                    continue
                except OSError as error:
                    failed[first] = error
            self._writer.discard(request)
        self._failed |= failed
        self._peers.clear()

    def _take(self) -> list[list[Staged]]:
        self._activity.staged_messages -= len(self)
        requests, self._requests = self._requests, []
        return requests

    def _show(self, request: list[Staged]) -> None:
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
                lifecycle.note("pushed", self._qid, staged.mid, staged.size, 0, peer=peer)

    def close(self) -> list[int]:
        """Takes back what is not visible. Returns the first ids of failed requests."""
        requests = self._take()
        for request in requests:
            self._writer.discard(request)
        self._activity.forget(self._qid)
        return [*self._failed, *(request[0].mid for request in requests)]
