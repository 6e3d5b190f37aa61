"""Who waits for messages of which queues. Woken by whatever makes a message visible; nobody looks again and again."""

import trio

from .group import Work


class Waiters:
    """First come, first served, queue by queue."""

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[Work, None]] = {}
        self._places: dict[Work, tuple[trio.Event, tuple[str, ...]]] = {}

    def add(self, work: Work, qids: tuple[str, ...]) -> None:
        """Takes a place in every one of the queues."""
        self._places[work] = trio.Event(), qids
        for qid in qids:
            self._by_queue.setdefault(qid, {})[work] = None

    def woken(self, work: Work) -> trio.Event:
        """Is set when there is something for the work. For work that has its place."""
        return self._places[work][0]

    def wake(self, qid: str, count: int) -> None:
        """Wakes the first ones of a queue, as many as there are messages."""
        for work in list(self._by_queue.get(qid, ()))[:count]:
            event, qids = self._places[work]
            self._step_out(work, qids)
            event.set()

    def resume(self, work: Work) -> None:
        """The work goes on, and looks for itself."""
        _, qids = self._places.pop(work)
        self._step_out(work, qids)

    def leave(self, work: Work) -> None:
        """The work will not go on. If it was woken, the next in line gets the chance."""
        place = self._places.pop(work, None)
        if place is None:
            return
        event, qids = place
        self._step_out(work, qids)
        if event.is_set():
            for qid in qids:
                self.wake(qid, 1)

    def _step_out(self, work: Work, qids: tuple[str, ...]) -> None:
        for qid in qids:
            places = self._by_queue.get(qid)
            if places is not None:
                places.pop(work, None)
                if not places:
                    del self._by_queue[qid]
