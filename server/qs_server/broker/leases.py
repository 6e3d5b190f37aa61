"""The leases of subscriptions: which holds which message (sent, and neither deleted nor released), and until when."""

import heapq

from .subscriber import Subscription

Key = tuple[str, int]
"""Identifies a message: (queue, id)."""


class Leases:
    """Maps each message that was sent to its subscription. A lease ends with its visibility window at the latest."""

    def __init__(self) -> None:
        self._leases: dict[str, dict[int, tuple[Subscription, int]]] = {}
        """By queue, and by id: (subscription, end). Queues without leases are not in it."""
        self.count = 0
        """The number of leases."""
        self._ends: list[tuple[int, Key]] = []
        """A heap of ends; it may have entries of leases that ended before."""

    def begin(self, key: Key, subscription: Subscription, receives: int, end: int) -> None:
        """Adds the lease of a message that nobody holds. end: of its window, in microseconds since the Epoch."""
        subscription.receives[key] = receives
        self.count += 1
        self._note(key, subscription, end)

    def move(self, key: Key, end: int) -> None:
        """Changes the end of a lease, if there is one."""
        found = self._find(key)
        if found is not None:
            self._note(key, found[0], end)

    def _find(self, key: Key) -> tuple[Subscription, int] | None:
        return self._leases.get(key[0], {}).get(key[1])

    def _note(self, key: Key, subscription: Subscription, end: int) -> None:
        self._leases.setdefault(key[0], {})[key[1]] = subscription, end
        heapq.heappush(self._ends, (end, key))
        self._tidy()

    def _tidy(self) -> None:
        """Removes ended leases from the heap when most of it is."""
        if len(self._ends) > 2 * self.count + 64:
            held = self._leases.items()
            self._ends = [(end, (qid, mid)) for qid, leases in held for mid, (_, end) in leases.items()]
            heapq.heapify(self._ends)

    def end(self, key: Key) -> Subscription | None:
        """Ends the lease of a message. Returns the subscription that held it, None if there was none."""
        leases = self._leases.get(key[0], {})
        found = leases.pop(key[1], None)
        if found is None:
            return None
        if not leases:
            del self._leases[key[0]]
        self.count -= 1
        del found[0].receives[key]
        return found[0]

    def end_all(self, qid: str, upto: int | None = None) -> set[Subscription]:
        """Ends the leases of a queue, in some 0.3 us each. Returns the subscriptions that held them. upto: the greatest
        id, None for all."""
        leases = self._leases.get(qid, {})
        mids = [mid for mid in leases if upto is None or mid <= upto]
        held = {self.end((qid, mid)) for mid in mids}
        return {subscription for subscription in held if subscription is not None}

    def holder(self, key: Key) -> Subscription | None:
        found = self._find(key)
        return None if found is None else found[0]

    def next_end(self) -> int | None:
        """Returns when the next lease ends, None if there is none."""
        self._tidy()
        while self._ends:
            end, key = self._ends[0]
            found = self._find(key)
            if found is not None and found[1] == end:
                return end
            heapq.heappop(self._ends)
        return None

    def due(self, now: int) -> Key | None:
        """Returns a message whose lease should have ended, None if there is none."""
        end = self.next_end()
        return None if end is None or end > now else self._ends[0][1]
