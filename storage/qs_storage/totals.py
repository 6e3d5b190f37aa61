"""Figures over all queues of an engine, also those that are gone."""

from collections.abc import Iterable

from .engine import Stats
from .queues import EngineQueue

DEAD, REJECTED = "messages_dead_lettered_total", "messages_rejected_total"
"""All dead letters, and those that were rejected: to clients, one figure with a label for the reason."""
_COUNTED = {
    "pushed": "messages_pushed_total",
    "delivered": "messages_received_total",
    "redelivered": "messages_redelivered_total",
    "deleted": "messages_deleted_total",
    "released": "messages_released_total",
    "expired": "messages_expired_total",
    "dead": DEAD,
    "rejected": REJECTED,
    "retired": "messages_retired_total",
}
"""Fields of Stats, and their names as figures."""


def totals_of(counts: Stats) -> dict[str, float]:
    """Returns counts by their names as figures."""
    return {name: getattr(counts, field) for field, name in _COUNTED.items()}


class Totals:
    """The sums of an engine's queues. They never go down, except when a commit fails."""

    def __init__(self) -> None:
        self._gone = dict.fromkeys(_COUNTED, 0)

    def keep(self, queue: EngineQueue) -> None:
        """Keeps the counts of a queue that goes."""
        for field in _COUNTED:
            self._gone[field] += getattr(queue.counts, field)

    def figures(self, queues: Iterable[EngineQueue]) -> dict[str, float]:
        """queues: those that exist."""
        queues = list(queues)
        counts = [queue.counts for queue in queues]
        sums: dict[str, float] = {
            name: self._gone[field] + sum([getattr(each, field) for each in counts]) for field, name in _COUNTED.items()
        }
        sums["messages_ready"] = sum([queue.ready for queue in queues])
        sums["queues"] = len(queues)
        sums["queues_paused"] = sum([queue.options.paused for queue in queues])
        return sums
