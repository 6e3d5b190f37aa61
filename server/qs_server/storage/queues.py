"""The methods of a queue that only the engine over a root directory calls, beside those of Queue.

Ids are those of one queue; `time` makes those of different queues comparable.
"""

from typing import Protocol

from .engine import Message, Queue, Stats


class EngineQueue(Queue, Protocol):
    """One queue, in one directory."""

    path: str
    qid: str

    @property
    def counts(self) -> Stats:
        """The counts of what has happened to its messages since the start."""

    def __len__(self) -> int:
        """Returns how many messages it holds, in whatever state, without pushes that are not visible yet."""

    # -- messages

    def first_ready(self) -> int | None:
        """Returns the oldest visible message."""

    @property
    def ready(self) -> int:
        """The number of visible messages."""

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """Receives a visible message. None: another process was faster, and `first_ready` does not give it any more;
        or its payload is over max_bytes. held: see Engine.receive."""

    def payload_of(self, mid: int) -> bytes:
        """Returns the payload of a message, in whatever state it is. NoSuchMessageError."""

    def take_in(self, mid: int, source: "EngineQueue") -> bool:
        """Stores the message of another queue, whose ids mean the same, visible at once. False when it is here
        already. NoSuchMessageError, OtherMessageError, QueueFullError; NoSuchQueueError when the directory is gone."""

    def remove(self, mid: int, expiry: int) -> bool:
        """Removes a message that is in the state that expiry says, 0: ready. False when another process was faster."""

    # -- time

    def time(self, number: int, /) -> int:
        """Returns when a message was pushed, from its id: microseconds since the Epoch."""

    def arrived(self) -> None:
        """Announces that there may be visible messages."""

    def next_expiry(self) -> int | None:
        """Returns when `expire` or `retire` has something to do: the end of a window or a delay, or the end of the
        retention of a message that is visible or delayed. Cheap: called with every commit."""

    def expire(self, count: int | None = None) -> int:
        """Makes visible what is due, at most count messages, None: as many as a request has time for. Returns how
        many."""

    def retire(self, count: int) -> int:
        """Removes messages that are older than the retention and not in flight, oldest first, at most count. Returns
        how many. OSError."""

    # -- the directory

    def commit(self) -> None:
        """Makes durable what has changed, with durability ALWAYS. FileNotFoundError when the directory is gone."""

    def in_place(self) -> bool:
        """Tells whether the directory is still the one that was opened."""

    def dismantle(self) -> None:
        """Removes from the directory of an empty queue what only the queue knows to be no message. OSError ENOTEMPTY
        when it holds a message all the same."""

    def note_removed(self) -> None:
        """Tells the lifecycle record that the queue has been removed with all that it held."""

    def close(self) -> list[int]:
        """Takes back what is not visible, and lets go of the directory. The first ids of the pushes that came to
        nothing."""
