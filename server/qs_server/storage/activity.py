"""Collects what the queues of one engine tell it, so that no request has to look at every queue."""

import heapq
from collections.abc import Callable


class Activity:
    """The queues with changes that no commit has covered (dirty), with new visible messages (arrived), or with windows
    that end."""

    def __init__(self) -> None:
        self.staged: dict[str, Callable[[], dict[int, OSError]]] = {}
        """By queue that has pushes which are not visible yet: makes them visible, and returns by first id those that
        came to nothing."""
        self.staged_messages = 0
        """The number of those messages, in all queues; each may have an open file."""
        self.dirty: set[str] = set()
        self.arrived: set[str] = set()
        self.expiries: list[tuple[int, str]] = []
        """A heap of announced times and queues. Its first may be out of date: ask the queue, and `drop` it then."""
        self._announced: dict[str, int] = {}

    def announce(self, qid: str, expiry: int) -> None:
        """Notes that a queue has a hidden message that is due then. Cheap to call for every message."""
        known = self._announced.get(qid)
        if known is None or expiry < known:
            self._announced[qid] = expiry
            heapq.heappush(self.expiries, (expiry, qid))

    def drop(self) -> None:
        """Forgets the earliest announcement."""
        expiry, qid = heapq.heappop(self.expiries)
        if self._announced.get(qid) == expiry:
            del self._announced[qid]

    def forget(self, qid: str) -> None:
        """Forgets a queue that is gone."""
        self.staged.pop(qid, None)
        self.dirty.discard(qid)
        self.arrived.discard(qid)
        self._announced.pop(qid, None)
