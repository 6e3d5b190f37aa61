"""Lists and counts the messages of a queue from its index."""

from collections.abc import Callable
from dataclasses import replace

from ..engine import State, Stats
from .message_index import Index


class IndexQueries:
    """Lists and counts the messages of one index, for any kind of queue.

    Ensures that no call loads more messages than its answer has. Only `stats` needs all of them: `prepare` loads them
    slice by slice. Assumes that the queue's `expire` was called first, so that due messages are visible. Changes
    nothing else in the index than which messages are loaded."""

    def __init__(self, index: Index, load: Callable[[int], bool], at_once: int) -> None:
        """load: loads a message from the disk, returns False if the message is gone; at_once: the number of messages
        that can be loaded in some 30 ms."""
        self._index = index
        self._load = load
        self._at_once = at_once
        self._loaded_upto = -1

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        """Returns the ids of messages in a state, oldest first, at most count. after: only greater ids, -1 for all.
        OSError."""
        index = self._index
        if state is State.READY:
            return index.visible(after, count)
        if state is State.ALL:
            return index.messages.after(after, count)
        # Candidates: only the disk knows which of them are of that state, so they are loaded one by one.
        source = index.new if state is State.NEW else index.hidden
        found: list[int] = []
        while len(found) < count and (mids := source.after(after, count)):
            after = mids[-1]
            found += [mid for mid in mids if self._load(mid) and self._is(mid, state)]
        return found[:count]

    def _is(self, mid: int, state: State) -> bool:
        if state is State.NEW:
            return mid in self._index.new
        return self._index.is_delayed(mid) is (state is State.DELAYED)

    def prepare(self) -> bool:
        """Loads a slice of the messages that are not loaded. Returns False when all are loaded. OSError."""
        if not self._index.unloaded:
            return False
        mids = self._index.messages.after(self._loaded_upto, self._at_once)
        for mid in mids:
            self._load(mid)
        self._loaded_upto = mids[-1] if mids else -1
        return self._index.unloaded > 0

    def stats(self, counts: Stats, age_of: Callable[[int], int]) -> Stats:
        """Returns `counts` with the numbers of messages. age_of: returns the microseconds since a message was pushed.
        OSError."""
        while self.prepare():
            pass
        index = self._index
        oldest = index.messages.first()
        return replace(
            counts,
            new=len(index.new),
            ready=index.visible_count,
            in_flight=len(index.hidden) - len(index.delayed),
            delayed=len(index.delayed),
            bytes=index.bytes,
            oldest=None if oldest is None else max(age_of(oldest), 0),
        )
