"""The interface through which an engine reports the events of its messages.

Every engine reports each event once, after it has happened to a message and before the commit that makes it durable. It
does not report what other processes do in a directory.
"""

from typing import Literal, Protocol

Event = Literal["pushed", "received", "released", "expired", "extended", "dead", "redriven", "retired", "deleted"]
"""The events of a message. pushed: it was added to a queue, by a push, a copy or a move; received: it was handed out;
released: its holder gave it back or lost the connection; expired: its window timed out (the end of a delay does not
count); extended: the end of its window was moved; deleted: it was removed, by itself, by a purge, or with its queue.

dead: it left its queue for a dead-letter queue, instead of released or expired; redriven: it left a dead-letter queue
for another one; both are of the queue and id that it had, and `pushed`, with 0 receives, follows for those that it has
then. retired: it was removed as it was older than the retention of its queue."""


class Lifecycle(Protocol):
    """Receives events as they happen. Its methods have to be quick and must not raise."""

    @property
    def peer(self) -> str:
        """The client whose request is being handled: `HOST:PORT`, or empty for none."""

    def note(
        self, event: Event, qid: str, mid: int, size: int | None, receives: int | None, *, peer: str | None = None
    ) -> None:
        """Records an event. size: bytes of payload; receives: how often the message has been received, this time
        included; None: unknown. peer: the client that caused it, None for the one whose request is being handled."""


class Record(Protocol):
    """Keeps or discards the events of each batch. Its methods raise nothing."""

    def begin(self, peer: str) -> None:
        """Sets the address of the client that causes the following events; empty for none."""

    def commit(self) -> None:
        """Keeps the events since the last call, as their changes are committed."""

    def discard(self) -> None:
        """Discards the events since the last call, as their changes are undone."""
