"""What an engine tells whoever keeps a record of its messages' lives.

Every engine tells it the same: each event once, when it has happened to a message and before the commit that makes it
durable. What other processes do in a directory is theirs to record.
"""

from typing import Literal, Protocol

Event = Literal["pushed", "received", "released", "expired", "extended", "deleted"]
"""What happens to a message. pushed: it has become part of a queue, by a push or a copy; received: it was handed out;
released: its holder gave it back, or lost the connection; expired: its window ended by its time, not
that of a delay; extended: its window was moved; deleted: it is gone, singly, by a purge, or with its queue."""


class Lifecycle(Protocol):
    """Is told of events where they happen: it has to be quick, and must not raise."""

    @property
    def peer(self) -> str:
        """Whose request is being done: `HOST:PORT`, or nothing. What is made visible later remembers it."""

    def note(
        self, event: Event, qid: str, mid: int, size: int | None, receives: int | None, *, peer: str | None = None
    ) -> None:
        """Something has happened. size: bytes of payload; receives: how often the message was received by now, this
        time included; None: nobody knows. peer: whose doing it is, None for whose request is being done."""


class Record(Protocol):
    """What keeps a record of what batches do. Its methods raise nothing."""

    def begin(self, peer: str) -> None:
        """Names the client, by its address, for whom the following is done; empty: for nobody."""

    def commit(self) -> None:
        """What has been done since the last call is there to stay."""

    def discard(self) -> None:
        """What has been done since the last call has come to nothing."""
