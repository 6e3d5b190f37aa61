"""The methods of a queue for the engine over a root directory, in addition to Queue; receives from several queues.

Ids are of one queue; `time` makes those of several comparable.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import Protocol

from .engine import Message, Queue, Stats, StorageError


class EngineQueue(Queue, Protocol):
    path: str
    qid: str

    @property
    def counts(self) -> Stats:
        """Counts since the start."""

    def __len__(self) -> int:
        """Counts messages in any state, without pushes that are not visible yet."""

    def first_ready(self) -> int | None:
        """Returns the oldest visible message, or None."""

    @property
    def ready(self) -> int:
        """The number of visible messages."""

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """Receives a visible message. None: another process was faster, or the payload is over max_bytes."""

    def payload_of(self, mid: int) -> bytes:
        """Reads a payload in any state. NoSuchMessageError."""

    def take_in(self, mid: int, source: "EngineQueue") -> bool:
        """Stores a message of a queue with the same kind of ids, visible at once. False if it is here.
        NoSuchMessageError, OtherMessageError, QueueFullError, NoSuchQueueError."""

    def remove(self, mid: int, expiry: int) -> bool:
        """Removes a message in the state of that expiry, 0: ready. False if another process was faster."""

    def time(self, number: int, /) -> int:
        """Returns the time in an id: microseconds since the Epoch."""

    def arrived(self) -> None:
        """Announces that there may be visible messages."""

    def next_expiry(self) -> int | None:
        """Returns when a window, a delay or a retention ends. Cheap, for each commit."""

    def expire(self, count: int | None = None) -> int:
        """Ends at most count due windows and delays, None: as many as a request has time for. Returns how many."""

    def retire(self, count: int) -> int:
        """Removes at most count messages that are too old and not in flight. Returns how many. OSError."""

    def commit(self) -> None:
        """Makes changes durable, with durability ALWAYS. FileNotFoundError if the directory is gone."""

    def in_place(self) -> bool: ...

    def dismantle(self) -> None:
        """Removes from an empty queue's directory what is no message. OSError ENOTEMPTY if there is a message."""

    def note_removed(self) -> None:
        """Records that the queue has been removed with its messages."""

    def close(self) -> list[int]:
        """Takes back what is not visible, and closes. Returns the first ids of failed pushes."""


def take_oldest(
    queues: Sequence[EngineQueue],
    found: list[Message],
    count: int,
    visibility: int | None,
    max_bytes: int,
    *,
    held: bool,
) -> None:
    """See Engine.receive. OSError, StorageError: earlier messages are in `found`."""
    room: int | None = None  # the first message is handed out whatever its size
    heads = [
        (queue.time(mid), number, mid)
        for number, queue in enumerate(queues)
        if (mid := queue.first_ready()) is not None
    ]
    heapify(heads)  # each queue is looked at once, and again after each of its messages
    while heads and len(found) < count:
        _, number, mid = heads[0]
        queue = queues[number]
        try:
            message = queue.take(mid, visibility, room, held=held)
        except (OSError, StorageError):
            queue.arrived()  # it is there still, for whoever comes next
            raise
        if message is not None:
            found.append(message)
            room = (max_bytes if room is None else room) - len(message.payload or b"") - len(message.reason or "")
        elif room is not None and queue.first_ready() == mid:
            return  # too large for what room there is left
        following = queue.first_ready()
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (queue.time(following), number, following))
