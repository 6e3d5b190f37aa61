"""The interface through which an engine reports the events of its messages, each once, before the commit that makes
it durable. Changes by other processes are not reported."""

from typing import Literal, Protocol

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
