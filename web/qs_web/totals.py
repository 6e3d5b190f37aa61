"""The sums over all queues that a principal may see, and their last minutes."""

from collections.abc import Iterable

from qs_client import QueueInfo

from .history import History, Point, Rates, figures_of


class Totals:
    """Sums of the figures of queues, from the last answer of the queue server."""

    def __init__(self) -> None:
        self.ready = self.in_flight = self.delayed = self.dead = self.queues = self.paused = 0
        self._history = History()

    def observe(self, now: float, queues: Iterable[QueueInfo]) -> None:
        """Takes an answer. now: as for `History.observe`."""
        self.ready = self.in_flight = self.delayed = self.dead = self.queues = self.paused = 0
        pushed = done = depth = 0
        for info in queues:
            self.queues += 1
            self.paused += bool(info.paused)
            self.ready += info.ready or 0
            self.in_flight += info.in_flight or 0
            self.delayed += info.delayed or 0
            self.dead += info.dead or 0
            figures = figures_of(info)
            pushed, done, depth = pushed + figures[0], done + figures[1], depth + figures[2]
        self._history.observe(now, "", (pushed, done, depth))

    def rates(self) -> Rates:
        """Returns the rates now."""
        return self._history.rates("")

    def points(self, now: float) -> list[Point]:
        """Returns the last minutes, see `History.points`."""
        return self._history.points("", now)
