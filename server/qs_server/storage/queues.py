"""What the engine over a root directory asks of a queue beside what everybody does: see Queue.

Ids are those of one queue; `time` makes those of different queues comparable.
"""

from typing import Protocol

from .engine import Message, Queue


class EngineQueue(Queue, Protocol):
    """One queue, in one directory."""

    path: str
    qid: str

    def __len__(self) -> int:
        """How many messages it holds, in whatever state, without pushes that are not visible yet."""

    # -- messages

    def first_ready(self) -> int | None:
        """The oldest visible message."""

    @property
    def ready(self) -> int:
        """How many messages are visible."""

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """Receives a visible message. None: another process was faster, and `first_ready` does not give it any more;
        or its payload is over max_bytes. held: see Engine.receive."""

    def payload_of(self, mid: int) -> bytes:
        """The payload of a message, in whatever state it is. NoSuchMessageError."""

    def take_in(self, mid: int, source: "EngineQueue") -> bool:
        """Stores the message of another queue, whose ids mean the same, visible at once. False when it is here
        already. NoSuchMessageError, OtherMessageError, QueueFullError; NoSuchQueueError when the directory is gone."""

    def remove(self, mid: int, expiry: int) -> bool:
        """Removes a message that is in the state that expiry says, 0: ready. False when another process was faster."""

    # -- time

    def time(self, number: int, /) -> int:
        """When a message was pushed, from its id: microseconds since the Epoch."""

    def arrived(self) -> None:
        """Announces that there may be visible messages."""

    def next_expiry(self) -> int | None:
        """When `expire` has something to do."""

    def expire(self, count: int | None = None) -> int:
        """Makes visible what is due, at most count messages; how many."""

    # -- the directory

    def commit(self) -> None:
        """With durability ALWAYS: makes durable what has changed. FileNotFoundError when the directory is gone."""

    def in_place(self) -> bool:
        """Whether the directory is still the one that was opened."""

    def dismantle(self) -> None:
        """Removes from the directory of an empty queue what only the queue knows to be no message. OSError ENOTEMPTY
        when it holds a message all the same."""

    def note_removed(self) -> None:
        """It has been removed with all that it held: tells the record of messages' lives."""

    def close(self) -> list[int]:
        """Takes back what is not visible, and lets go of the directory. The first ids of the pushes that came to
        nothing."""
