"""What an engine tells about its messages: events, each once, before the commit that makes it durable, and figures
over all queues. Changes by other processes are no events."""

from collections.abc import Iterable
from typing import Literal, Protocol

from .engine import Stats
from .queues import EngineQueue

Event = Literal["pushed", "received", "released", "expired", "extended", "dead", "redriven", "retired", "deleted"]
"""pushed: by a push, a copy or a move; received: handed out; released: given back, or the connection was lost; expired:
its window timed out (not a delay); extended: the end of its window was moved; deleted: by itself, by a purge, or with
its queue.

dead: moved to a dead-letter queue, instead of released or expired; redriven: moved from one. Both name the former
queue and id; `pushed`, with 0 receives, follows for the new ones. retired: removed as older than the retention.
"""


class Lifecycle(Protocol):
    """Methods have to be quick and must not raise."""

    @property
    def peer(self) -> str:
        """The client of the current request: `HOST:PORT`, or empty."""

    def note(
        self, event: Event, qid: str, mid: int, size: int | None, receives: int | None, *, peer: str | None = None
    ) -> None:
        """size: bytes of payload; receives: with this one; None: unknown. peer: None for the current client."""


class Record(Protocol):
    """Keeps or discards the events of each batch. Raises nothing."""

    def begin(self, peer: str) -> None:
        """peer: the client that causes the following events; empty for none."""

    def commit(self) -> None:
        """Keeps the events since the last call."""

    def discard(self) -> None:
        """Discards the events since the last call."""


# -- figures -----------------------------------------------------------------------------------------------------------

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
