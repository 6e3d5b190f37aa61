"""The works that wait for messages of queues. They are woken when messages become visible; none polls."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from operator import itemgetter

import trio

from .jobs import Pause, Work

_order = itemgetter(0)


class Waiters:
    """Wakes works in the order in which they began to wait. A work that found no message gets its old place again."""

    def __init__(self) -> None:
        self._lines: dict[str, list[tuple[int, Work]]] = {}
        self._places: dict[Work, tuple[trio.Event, Pause]] = {}
        self.any = False
        """True if any work waits in a line."""

    def add(self, work: Work, pause: Pause) -> None:
        """Adds a work to the line of each queue, before those that began to wait later."""
        self._places[work] = trio.Event(), pause
        self.any = True
        for qid in pause.qids:
            insort(self._lines.setdefault(qid, []), (pause.order, work), key=_order)

    def count(self, qid: str) -> int:
        """May be called in any thread."""
        return len(self._lines.get(qid, ()))

    @property
    def total(self) -> int:
        """The number of works that wait, each in one queue or several."""
        return len(self._places)

    def woken(self, work: Work) -> trio.Event:
        """Returns the event that is set when there may be a message for a waiting work."""
        return self._places[work][0]

    def wake_all(self, arrived: Mapping[str, int]) -> None:
        for qid, count in arrived.items():
            self.wake(qid, count)

    def wake(self, qid: str, count: int) -> None:
        """Wakes the first works of a queue. count: the number of messages."""
        for _, work in self._lines.get(qid, [])[:count]:
            event, pause = self._places[work]
            self._step_out(pause)
            event.set()

    def resume(self, work: Work) -> None:
        _, pause = self._places.pop(work)
        self._step_out(pause)

    def leave(self, work: Work) -> None:
        """Removes a work that is given up, if it waits; if it was woken, wakes the next in line."""
        place = self._places.pop(work, None)
        if place is None:
            return
        event, pause = place
        self._step_out(pause)
        if event.is_set():
            for qid in pause.qids:
                self.wake(qid, 1)

    def _step_out(self, pause: Pause) -> None:
        for qid in pause.qids:
            line = self._lines.get(qid, [])
            at = bisect_left(line, pause.order, key=_order)
            if at < len(line) and line[at][0] == pause.order:
                del line[at]
                if not line:
                    del self._lines[qid]
        self.any = bool(self._lines)
