"""Counts what has happened to messages in all queues of an engine, also in those that are gone."""

from collections.abc import Iterable
from typing import Protocol

from .engine import Stats

_COUNTED = {
    "pushed": "messages_pushed_total",
    "delivered": "messages_received_total",
    "redelivered": "messages_redelivered_total",
    "deleted": "messages_deleted_total",
    "released": "messages_released_total",
    "expired": "messages_expired_total",
    "dead": "messages_dead_lettered_total",
    "retired": "messages_retired_total",
}
"""Fields of Stats, and the names of their sums."""


def totals_of(counts: Stats) -> dict[str, float]:
    """Returns counts by the names of their sums."""
    return {name: getattr(counts, field) for field, name in _COUNTED.items()}


class Counted(Protocol):
    """A queue that counts."""

    @property
    def counts(self) -> Stats:
        """What has happened to its messages since the start."""


class Totals:
    """The sums of an engine's queues. They never go down, except when a commit fails."""

    def __init__(self) -> None:
        self._gone = dict.fromkeys(_COUNTED, 0)

    def keep(self, queue: Counted) -> None:
        """Keeps the counts of a queue that goes."""
        for field in _COUNTED:
            self._gone[field] += getattr(queue.counts, field)

    def figures(self, queues: Iterable[Counted]) -> dict[str, float]:
        """Returns each sum by its name. queues: those that are there."""
        counts = [queue.counts for queue in queues]
        return {
            name: self._gone[field] + sum([getattr(each, field) for each in counts]) for field, name in _COUNTED.items()
        }
