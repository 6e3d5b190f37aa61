"""What a queue with an index answers from that, whatever its messages are on disk: which there are, and how many."""

from abc import ABC, abstractmethod

from ..engine import Clock, Options, State, Stats
from .message_index import Index


class IndexedQueue(ABC):
    """To be the last base of a queue, whose other ones have what is named here."""

    options: Options
    counts: Stats
    _index: Index
    _clock: Clock
    _load_after = -1
    _slice = 2000
    """Messages that one slice of lazy loading looks at: some 30 ms at most."""

    @abstractmethod
    def expire(self, count: int | None = None) -> int:
        """Makes visible what is due."""

    @abstractmethod
    def load(self, mid: int) -> bool:
        """Notes what only the disk says of a message. False when it is gone."""

    @abstractmethod
    def time(self, number: int) -> int:
        """Of an id, when its message was pushed."""

    @abstractmethod
    def publish_staged(self) -> None:
        """Makes visible what was pushed."""

    def first_ready(self) -> int | None:
        """The oldest visible message."""
        self.publish_staged()
        return self._index.ready.first()

    @property
    def ready(self) -> int:
        """How many messages are visible."""
        return len(self._index.ready)

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        """Ids greater than after, oldest first."""
        self.publish_staged()
        self.expire()
        index = self._index
        if state is State.READY:
            return index.ready.after(after, count)
        if state is State.ALL:
            return index.messages.after(after, count)
        source = index.new if state is State.NEW else index.hidden
        found: list[int] = []
        while len(found) < count and (mids := source.after(after, count)):
            after = mids[-1]
            found += [mid for mid in mids if self.load(mid) and self._is(mid, state)]
        return found[:count]

    def _is(self, mid: int, state: State) -> bool:
        if state is State.NEW:
            return mid in self._index.new
        return self._index.is_delayed(mid) is (state is State.DELAYED)

    def prepare_stats(self) -> bool:
        """Loads a slice of what has not been loaded; False when nothing is left."""
        if not self._index.unloaded:
            return False
        mids = self._index.messages.after(self._load_after, self._slice)
        for mid in mids:
            self.load(mid)
        self._load_after = mids[-1] if mids else -1
        return self._index.unloaded > 0

    def stats(self) -> Stats:
        """Figures of the queue."""
        self.publish_staged()
        self.expire()
        while self.prepare_stats():
            pass
        index, counts = self._index, self.counts
        oldest = index.messages.first()
        return Stats(
            new=len(index.new),
            ready=len(index.ready),
            in_flight=len(index.hidden) - index.delayed,
            delayed=index.delayed,
            bytes=index.bytes,
            oldest=None if oldest is None else max(self._clock() - self.time(oldest), 0),
            pushed=counts.pushed,
            delivered=counts.delivered,
            expired=counts.expired,
            deleted=counts.deleted,
            storage=self.options.storage,
        )
