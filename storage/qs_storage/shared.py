"""The interface between an engine over a root directory and its queues: a queue's methods in addition to those of
`engine.Queue`, the events that a queue reports, the context that it gets, and the engine's operations on several
queues.

Ids of different queues can be compared only by their `time`.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from .disk import Disk
from .door import Door
from .engine import (
    SECOND,
    Clock,
    Durability,
    Headers,
    Message,
    NoSuchQueueError,
    Queue,
    Stats,
    StorageError,
    wall_clock,
)
from .watch import Watch


class EngineQueue(Queue, Protocol):
    """A queue as the engine over a root directory needs it: `LogQueue`, `DirectoryQueue` and `NullQueue`.

    The methods beside those of `Queue` are for the engine alone: no request of a client calls them."""

    path: str
    qid: str

    @property
    def counts(self) -> Stats:
        """The counts of events since the start."""

    def __len__(self) -> int:
        """Counts messages in any state, without pushes that are not visible yet."""

    def first_ready(self) -> int | None:
        """Returns the message that is handed out next, None if none may be."""

    def priority_of(self, mid: int) -> int:
        """Returns the priority of a message, 0 for a queue without priorities."""

    @property
    def ready(self) -> int:
        """The number of visible messages."""

    @property
    def obtainable(self) -> int:
        """The number of visible messages that the queue's limits let out now."""

    def obey_options(self) -> None:
        """Takes note of options that were changed."""

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """Receives a visible message. Returns None if another process was faster, or the payload has more than
        max_bytes."""

    def take_first(self, count: int, visibility: int | None, max_bytes: int, *, held: bool = False) -> list[Message]:
        """Receives the oldest visible messages: see `take_oldest`."""

    def payload_of(self, mid: int) -> bytes:
        """Reads a payload in any state. NoSuchMessageError."""

    def headers_of(self, mid: int) -> Headers:
        """Reads the headers of a message in any state. NoSuchMessageError."""

    def take_in(self, mid: int, source: "EngineQueue") -> bool:
        """Stores a copy of a message from a queue with the same kind of ids, visible at once. Returns False if this
        queue has the message already. NoSuchMessageError, OtherMessageError, QueueFullError, NoSuchQueueError."""

    def remove(self, mid: int, expiry: int) -> bool:
        """Removes a message in a state. expiry: the time until which the message is hidden, 0 for a ready one. Returns
        False if another process was faster."""

    def time(self, number: int, /) -> int:
        """Returns the time in an id: microseconds since the Epoch."""

    def arrived(self) -> None:
        """Announces that there may be visible messages."""

    def next_expiry(self) -> int | None:
        """Returns when a window, a delay or a retention ends. Has to be cheap, as each commit calls it."""

    def expire(self, count: int | None = None) -> int:
        """Ends windows and delays that are due, at most count; with None as many as a request has time for. Returns
        their number."""

    def retire(self, count: int) -> int:
        """Removes messages that are too old and not in flight, at most count. Returns their number. OSError."""

    def commit(self) -> None:
        """Makes changes durable, with durability ALWAYS. FileNotFoundError if the directory is gone."""

    def in_place(self) -> bool:
        """Tells whether the directory is still the one that was opened. OSError."""

    def dismantle(self) -> None:
        """Removes everything but messages from the directory of an empty queue. OSError ENOTEMPTY if there is a
        message."""

    def note_removed(self) -> None:
        """Reports to the lifecycle record that the queue was removed with its messages."""

    def close(self) -> list[int]:
        """Removes pushed messages that are not visible yet, and closes the queue. Returns the first ids of failed
        pushes."""


# -- events -----------------------------------------------------------------------------------------------------------

# Each is reported once, before the commit that makes it durable. Changes by other processes are not reported.

Event = Literal["pushed", "received", "released", "expired", "extended", "dead", "redriven", "retired", "deleted"]
"""pushed: by a push, a copy or a move; received: handed out; released: given back, or the connection was lost; expired:
its window timed out (not a delay); extended: the end of its window was moved; deleted: by itself, by a purge, or with
its queue.

dead: moved to a dead-letter queue, instead of released or expired; redriven: moved from one. Both name the former
queue and id; `pushed`, with 0 receives, follows for the new ones. retired: removed as older than the retention.
"""


class Lifecycle(Protocol):
    """Receives the events of messages. The server's history implements the interface, which is here because the storage
    must not import the server.

    Methods have to be quick and must not raise: they are called in the middle of a request."""

    @property
    def peer(self) -> str:
        """The client of the current request: `HOST:PORT`, or empty."""

    def note(
        self,
        event: Event,
        qid: str,
        mid: int,
        size: int | None,
        receives: int | None,
        *,
        peer: str | None = None,
        trace: str | None = None,
    ) -> None:
        """Notes an event of a message. size: the bytes of payload and headers; receives: the count of receives, with
        the present one; both are None if unknown. peer: None for the current client; trace: of `pushed` only, the
        result of `headers.trace_of`."""

    def note_all(
        self, event: Event, qid: str, mids: Sequence[int], sizes: Sequence[int], receives: Iterable[int]
    ) -> None:
        """Notes the same event of many messages, by the current client, in a third of the time."""


# -- what a queue is given --------------------------------------------------------------------------------------------


class Activity:
    """Collects the reports of an engine's queues, so that a commit looks only at queues in which something happened.
    dirty: queues to commit; arrived: queues with new visible messages."""

    def __init__(self) -> None:
        self.pending: dict[str, Callable[[], dict[int, OSError]]] = {}
        """By queue with pushes that are not visible: publishes them, and returns the failed ones by first id."""
        self.pending_messages = 0
        """The number of messages of pending pushes, each maybe with an open file."""
        self.dirty: set[str] = set()
        self.arrived: set[str] = set()
        self.vanished: dict[str, None] = {}
        """Queues whose directory is gone or another one by now, in the order of the reports. The engine reopens them
        between two operations: nobody closes a queue in the middle of its own."""
        self.expiries: list[tuple[int, str]] = []
        """A heap of announced times and queues. The first may be outdated: ask the queue, and `drop` it."""
        self.announced: dict[str, int] = {}
        """The earliest of each queue's times in the heap."""

    def announce(self, qid: str, expiry: int) -> None:
        """Announces the time at which a hidden message is due. Has to be cheap."""
        known = self.announced.get(qid)
        # A later time is left out: when the announced one has come, the engine asks the queue again.
        if known is None or expiry < known:
            self.announced[qid] = expiry
            heapq.heappush(self.expiries, (expiry, qid))

    def drop(self) -> None:
        """Drops the first announced time."""
        expiry, qid = heapq.heappop(self.expiries)
        # An earlier time may have been announced since, which is in the heap too.
        if self.announced.get(qid) == expiry:
            del self.announced[qid]

    def forget(self, qid: str) -> None:
        """Drops the reports of a queue that is closed."""
        self.pending.pop(qid, None)
        self.dirty.discard(qid)
        self.arrived.discard(qid)
        self.announced.pop(qid, None)


def _no_queue(qid: str, storage: str) -> EngineQueue:
    raise NoSuchQueueError(f"there is no queue {qid!r}")


@dataclass(frozen=True, slots=True)
class EngineContext:
    """The objects that each queue of an engine needs: clock, durability, disk, and the receivers of its reports.

    A context is complete when it is made, and never changes. find_or_make: returns the queue with a name, made with a
    storage if needed; lifecycle: receives the events of messages, None if they are not recorded; door: checks what
    other programs put into queues with a schema, None if nothing is checked."""

    clock: Clock
    durability: Durability
    disk: Disk
    watch: Watch
    activity: Activity
    find_or_make: Callable[[str, str], EngineQueue] = _no_queue
    lifecycle: Lifecycle | None = None
    door: Door | None = None

    @property
    def always(self) -> bool:
        """True if a commit has to survive a power loss."""
        return self.durability is Durability.ALWAYS

    def vanished(self, qid: str) -> None:
        """Notes that a queue's directory is gone."""
        self.activity.vanished[qid] = None

    def idle_seconds(self, path: str) -> float:
        """Returns the seconds since a file was last written to. OSError.

        Files bear the wall clock's time. If the wall clock was set forward since, a file that is being written looks
        old by the wall clock; if it was set back, the file looks old by the server's time. So the shorter of both times
        counts."""
        return min(self.clock(), wall_clock()) / SECOND - self.disk.lstat(path).st_mtime


class DirectoryIdentity:
    """Recognizes the directory that was opened, by its device and inode: another directory may get its name, and
    changes that belong to the old one must not go there."""

    def __init__(self, path: str, disk: Disk) -> None:
        """Opens a directory, and notes its device and inode. OSError."""
        self._path = path
        self._disk = disk
        self._identity = self._look_up()

    def _look_up(self) -> tuple[int, int]:
        status = self._disk.lstat(self._path)
        return status.st_dev, status.st_ino

    def in_place(self) -> bool:
        """Tells whether the directory with the name is still the one that was opened. OSError."""
        try:
            return self._look_up() == self._identity
        except FileNotFoundError:
            return False


# -- over several queues ----------------------------------------------------------------------------------------------


def take_oldest(
    queues: Sequence[EngineQueue],
    count: int,
    visibility: int | None,
    max_bytes: int,
    *,
    held: bool,
    given: bool = False,
) -> list[Message]:
    """Receives the next messages of several queues: see Engine.receive. OSError, StorageError."""
    found: list[Message] = []
    try:
        _take_oldest(queues, found, count, visibility, max_bytes, held=held, given=given)
    except (OSError, StorageError):
        if not found:
            raise  # else those that were received are handed out; the next call says it again
    return found


def _take_oldest(
    queues: Sequence[EngineQueue],
    found: list[Message],
    count: int,
    visibility: int | None,
    max_bytes: int,
    *,
    held: bool,
    given: bool,
) -> None:
    """Receives messages into `found`, one by one, so that an error does not lose those received before. OSError,
    StorageError."""
    room: int | None = None  # the first message is handed out whatever its size

    def head(number: int, queue: EngineQueue, mid: int) -> tuple[int, int, int, int]:
        return (0, 0, number, mid) if given else (-queue.priority_of(mid), queue.time(mid), number, mid)

    heads = [
        head(number, queue, mid) for number, queue in enumerate(queues) if (mid := queue.first_ready()) is not None
    ]
    heapq.heapify(heads)  # each queue is looked at once, and again after each of its messages
    while heads and len(found) < count:
        *_, number, mid = heads[0]
        queue = queues[number]
        try:
            message = queue.take(mid, visibility, room, held=held)
        except (OSError, StorageError):
            queue.arrived()  # it is there still, for the next receive
            raise
        if message is not None:
            found.append(message)
            room = (max_bytes if room is None else room) - len(message.payload or b"") - len(message.reason or "")
            room -= sum([len(name) + len(text) for name, text in message.headers])
        # Still there: not another process, but its size has kept it back. Smaller ones behind it have to wait, or it
        # would never be received.
        elif room is not None and queue.first_ready() == mid:
            break  # too large for what room there is left
        following = queue.first_ready()
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, head(number, queue, following))
    for *_, number, _ in heads:
        # A receive that was woken for a message of this queue may have taken one of another: who waits next is woken.
        queues[number].arrived()


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
    """Returns counts by the names that they have as figures."""
    return {name: getattr(counts, field) for field, name in _COUNTED.items()}


class Totals:
    """The sums of an engine's queues. Like all counters, they never go down, except when a commit fails: the counts of
    removed queues are kept."""

    def __init__(self) -> None:
        self._gone = dict.fromkeys(_COUNTED, 0)

    def keep(self, queue: EngineQueue) -> None:
        """Keeps the counts of a queue that is removed."""
        for field in _COUNTED:
            self._gone[field] += getattr(queue.counts, field)

    def figures(self, queues: Iterable[EngineQueue]) -> dict[str, float]:
        """Returns the sums by the names that they have as figures. queues: those that exist."""
        queues = list(queues)
        # Once for each queue, and not once for each figure: a server may have thousands.
        counts = [queue.counts for queue in queues]
        sums: dict[str, float] = {
            name: self._gone[field] + sum([getattr(each, field) for each in counts]) for field, name in _COUNTED.items()
        }
        sums["messages_ready"] = sum([queue.ready for queue in queues])
        sums["queues"] = len(queues)
        sums["queues_paused"] = sum([queue.options.paused for queue in queues])
        sums["queues_limited"] = sum([bool(queue.ready and not queue.obtainable) for queue in queues])
        return sums
