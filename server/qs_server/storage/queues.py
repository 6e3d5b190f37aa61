"""The methods of a queue for the engine over a root directory, in addition to Queue.

Ids are of one queue; `time` makes those of several comparable.
"""

from typing import Protocol

from .engine import Message, Queue, Stats


class EngineQueue(Queue, Protocol):
    path: str
    qid: str

    @property
    def counts(self) -> Stats:
        """Counts since the start."""

    def __len__(self) -> int:
        """Counts messages in any state, without pushes that are not visible yet."""

    # -- messages

    def first_ready(self) -> int | None:
        """Returns the oldest visible message, or None."""

    @property
    def ready(self) -> int:
        """The number of visible messages."""

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """Receives a visible message. None: another process was faster, or the payload is over max_bytes. held: see
        Engine.receive."""

    def payload_of(self, mid: int) -> bytes:
        """Reads a payload in any state. NoSuchMessageError."""

    def take_in(self, mid: int, source: "EngineQueue") -> bool:
        """Stores a message of a queue with the same kind of ids, visible at once. False if it is here.
        NoSuchMessageError, OtherMessageError, QueueFullError, NoSuchQueueError."""

    def remove(self, mid: int, expiry: int) -> bool:
        """Removes a message in the state of that expiry, 0: ready. False if another process was faster."""

    # -- time

    def time(self, number: int, /) -> int:
        """Returns the time in an id: microseconds since the Epoch."""

    def arrived(self) -> None:
        """Announces that there may be visible messages."""

    def next_expiry(self) -> int | None:
        """Returns when `expire` or `retire` has something to do: a window, a delay or a retention ends. Cheap, for
        each commit."""

    def expire(self, count: int | None = None) -> int:
        """Ends at most count windows and delays that are due, None: as many as a request has time for. Returns how
        many."""

    def retire(self, count: int) -> int:
        """Removes at most count messages older than the retention and not in flight, oldest first. Returns how many.
        OSError."""

    # -- the directory

    def commit(self) -> None:
        """Makes changes durable, with durability ALWAYS. FileNotFoundError if the directory is gone."""

    def in_place(self) -> bool: ...

    def dismantle(self) -> None:
        """Removes from an empty queue's directory what it alone knows to be no message. OSError ENOTEMPTY if there
        is a message."""

    def note_removed(self) -> None:
        """Records that the queue has been removed with its messages."""

    def close(self) -> list[int]:
        """Takes back what is not visible, and closes. Returns the first ids of failed pushes."""
