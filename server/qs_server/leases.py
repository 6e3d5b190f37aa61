"""Which subscription holds which message, and until when: what has been sent and neither deleted nor released."""

import heapq

from .subscriber import Subscription

Key = tuple[str, int]
"""A message: queue and id."""


class Leases:
    """Of all subscriptions. A lease ends with its window, whatever has become of the message."""

    def __init__(self) -> None:
        self._leases: dict[Key, tuple[Subscription, int]] = {}
        self._ends: list[tuple[int, Key]] = []
        """A heap; entries of leases that have ended otherwise may still be in it."""

    def begin(self, key: Key, subscription: Subscription, receives: int, end: int) -> None:
        """A message has been sent, which nobody holds. end: of its window."""
        subscription.receives[key] = receives
        self._note(key, subscription, end)

    def move(self, key: Key, end: int) -> None:
        """The window of a message ends at another time."""
        found = self._leases.get(key)
        if found is not None:
            self._note(key, found[0], end)

    def _note(self, key: Key, subscription: Subscription, end: int) -> None:
        self._leases[key] = subscription, end
        heapq.heappush(self._ends, (end, key))
        if len(self._ends) > 2 * len(self._leases) + 64:
            self._ends = [(end, key) for key, (_, end) in self._leases.items()]
            heapq.heapify(self._ends)

    def end(self, key: Key) -> Subscription | None:
        """Nobody holds the message any more. Who did."""
        found = self._leases.pop(key, None)
        if found is None:
            return None
        del found[0].receives[key]
        return found[0]

    def holder(self, key: Key) -> Subscription | None:
        """Who holds a message."""
        found = self._leases.get(key)
        return None if found is None else found[0]

    def of_queue(self, qid: str) -> list[Key]:
        """The messages of a queue that are held."""
        return [key for key in self._leases if key[0] == qid]

    def next_end(self) -> int | None:
        """When the next window ends."""
        while self._ends:
            end, key = self._ends[0]
            found = self._leases.get(key)
            if found is not None and found[1] == end:
                return end
            heapq.heappop(self._ends)
        return None

    def due(self, now: int) -> Key | None:
        """A message whose window is over."""
        end = self.next_end()
        return None if end is None or end > now else self._ends[0][1]
