"""The interface of the storage: an engine finds queues and commits; a queue keeps messages.

Both are synchronous code for one thread at a time, and know no network. Times are microseconds since the Epoch,
durations microseconds.

Operations act at once, for everybody to see. Engine.commit makes them durable, so that many requests share a sync. A
push that fails after its answer is an effect of that commit.
"""

import errno
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

SECOND = 1_000_000
"""Microseconds."""

DEFAULT_VISIBILITY = 30 * SECOND
"""The window of a queue that names none: bucker's default, whose clients this server answers too."""

Clock = Callable[[], int]
"""Returns microseconds since the Epoch."""


def wall_clock() -> int:
    """Reads the system's clock."""
    return time.time_ns() // 1000


class StorageError(Exception):
    """Base of what an engine raises on purpose. The text is for the client."""


class NoSuchQueueError(StorageError):
    """There is no queue of that name."""


class NoSuchMessageError(StorageError):
    """The queue holds no message of that id."""


class QueueExistsError(StorageError):
    """A queue of that name is there already."""


class OtherMessageError(StorageError):
    """The queue to copy to holds another message of that id."""


class DeadLetterCycleError(StorageError):
    """The dead-letter queues would form a cycle."""


class NoDeadLetterQueueError(StorageError):
    """The queue of a rejected message names no dead-letter queue."""


class QueueNotEmptyError(StorageError):
    """The queue to remove holds messages."""


class StaleReceiptError(StorageError):
    """The message was received again since, or is not in flight any more."""


def not_in_flight(qid: str, mid: int) -> StaleReceiptError:
    """Returns the error for a message that nobody holds."""
    return StaleReceiptError(f"message {mid} of queue {qid!r} is not in flight: nobody holds it")


class NoSuchClaimError(StorageError):
    """The consumer has no claim of that number."""


class ClaimOrderError(StorageError):
    """The number of the claim is not the one that follows."""


class BatchOrderError(StorageError):
    """The number of the batch is too far ahead of the producer's others."""


class NoSuchPartError(StorageError):
    """That part of the batch was not staged."""


class QueueFullError(StorageError):
    """The queue holds as many messages as its capacity allows, or no room is left for another id, or the server
    remembers as many keys as it may."""


class UnfinishedError(StorageError):
    """The engine is closed, and has left work for the next start, as the text says. Nothing is lost."""


class BadQueueNameError(StorageError):
    """This engine cannot keep the name."""


class UnsupportedError(StorageError):
    """The engine cannot do that."""


KEYS_IN = ("journal", "memcached")
"""The storages without `Feature.KEY` in their `cannot`. Storages on other servers are imported only when one is asked
for, so an error cannot ask them; a test compares."""


class NoKeysError(UnsupportedError):
    """The storage keeps no keys of pushes."""

    def __init__(self, storage: str) -> None:
        where = " and ".join(map(repr, KEYS_IN))
        super().__init__(f"the storage {storage!r} keeps no keys: 'key' is for queues of the storages {where}")


class NoRoomError(OSError):
    """A request needs more room in the log than this batch has left; nothing has changed.

    The caller ends the batch, calls `Engine.secure` with the error, and runs the request again, as the first of the
    next batch. If it raises this again, the disk is full: the error is an ENOSPC."""

    def __init__(self, size: int, *, push: bool = False) -> None:
        """size: bytes of log that the request takes; push: True if a full disk has none for it, whatever is left."""
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size = size
        self.push = push

    def unmet(self, secured: "NoRoomError | None") -> "NoRoomError | None":
        """Returns what has to be secured for the request, None if it was. secured: for what room was secured before
        the request was run this time."""
        # The request was not tried again yet: all that it lacks is asked for.
        if secured is None:
            return self
        # The request was run again with what it lacked: if it lacks the same again, there is none.
        if self.size <= secured.size and (secured.push or not self.push):
            return None
        return NoRoomError(max(self.size, secured.size), push=self.push or secured.push)


class RemoteError(StorageError):
    """The remote server does not answer, or refuses. The text names it, and says what to do."""


class Durability(Enum):
    """Says which faults an answered operation survives: ALWAYS a power loss, INTERVAL one 50 ms later, NONE a kill of
    the process."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NONE = "none"


class Feature(Enum):
    """Names the features that some engines lack. The values are the words of the table in docs/storage.md."""

    KEEP = "keeps messages at all"
    DURABLE = "keeps them through a power loss, with `--durability always`"
    WHOLE = "stores a list whole or not at all, also in a crash"
    ORDER = "gives the oldest messages first"
    EXACT = "ends windows and delays to the microsecond, by the server's clock"
    HELD = "gives back at the next start what subscribers held when the server was killed"
    SHARED = "can be used by several servers at the same time"
    KEY = "`key` in `push-message`"
    CAPACITY = "`capacity` in `new-queue`"
    GET = "`get-message`"
    LIST = "`list-messages`"
    COPY = "`copy-message`"
    ANY = "deletes, releases and extends what it has not handed out itself"
    CLAIM = "`claim-messages`, `stage-messages` and what goes with them"
    PART = "`purge-queue` spares what is pushed after it began"
    SET = "`set-queue`"
    PAUSE = "`pause-queue` and `resume-queue`"
    DEAD = "dead letters: `dead-letter` and `max-receives`"
    REDRIVE = "`redrive-messages`, and `count` in `release-message`"
    REASON = "`reason` in `release-message`, and `reject-message`"
    BACKOFF = "`backoff` and `backoff-max` in `new-queue`"
    RETENTION = "`retention` in `new-queue`"
    FIGURES = "`queue-stats` is exact, with bytes and the age of the oldest message"
    MILLISECONDS = '`timestamps = "ms"` in `.queue.toml`'
    TELLS = "tells the server of every message that becomes visible, without being asked"


class State(Enum):
    """Selects messages in `list_mids`. NEW: never retrieved, visible or delayed."""

    NEW = "new"
    READY = "ready"
    IN_FLIGHT = "in-flight"
    DELAYED = "delayed"
    ALL = "all"


class Draft(NamedTuple):
    """A message to push. delay: microseconds until it is visible; key: a push with it within five minutes gets the id
    of the first, see `names.owned_name`."""

    payload: bytes
    delay: int = 0
    key: str | None = None


class Receipt(NamedTuple):
    """Names a message for those who hold it. receives: the count that the holder saw, so that a consumer whose window
    has ended does not delete what another one has by now; None: any count will do."""

    mid: int
    receives: int | None = None


class Origin(NamedTuple):
    """Tells what a dead letter was. qid, mid, receives: in its former queue; at: when it moved; reason: `receives`, too
    many, or `rejected`; pushed_at: when it was pushed first. receives and at are 0 if unknown."""

    qid: str
    mid: int
    receives: int
    at: int
    reason: str
    pushed_at: int


@dataclass(slots=True)
class Message:
    """A message as the storage gives it to a request. status: ready, delivered, in-flight or delayed; payload: None in
    a window; visible_at: None for now; reason: of the last release or reject that gave one."""

    qid: str
    mid: int
    status: str
    receives: int
    pushed_at: int
    visible_at: int | None = None
    payload: bytes | None = None
    origin: Origin | None = None
    reason: str | None = None


@dataclass(slots=True)
class Options:
    """The options of a queue. A change of the object takes effect at once: a queue and its engine share it.

    visibility: microseconds; capacity: messages; paused: gives nothing out; dead_letter: the queue for messages after
    max_receives receives; retention: microseconds after which a message that is not in flight is removed, see
    `policy.py`; backoff, backoff_max: microseconds, see there. None, empty: no bound."""

    storage: str = ""
    visibility: int = DEFAULT_VISIBILITY
    capacity: int | None = None
    timestamps: str = "us"
    """Unit of the numbers in file names, `us` or `ms`."""
    schema: str = ""
    """For dirq's Queue: an element's pieces of data, `NAME=TYPE,...`."""
    body: str = ""
    """The payload's piece."""
    paused: bool = False
    dead_letter: str = ""
    max_receives: int | None = None
    retention: int | None = None
    backoff: int | None = None
    backoff_max: int | None = None


@dataclass(slots=True)
class Stats:
    """Counts the messages of a queue by their states, their bytes of payload, and events since the start. oldest: the
    age of the oldest message in microseconds, None for an empty queue."""

    new: int = 0
    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    bytes: int = 0
    oldest: int | None = None
    pushed: int = 0
    delivered: int = 0
    expired: int = 0
    deleted: int = 0
    storage: str = ""
    dead: int = 0
    """Moved to the dead-letter queue."""
    rejected: int = 0
    """Those of `dead` that were rejected."""
    retired: int = 0
    """Older than the retention."""
    redelivered: int = 0
    """Deliveries after the first of a message."""
    released: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """Describes a claim. consumer: see `names.owned_name`; seq: 1, 2, 3, …; bytes: of payload; first, last: ids or
    None; checksum: of the ids, so that a consumer can tell that it got the same claim again; since: microseconds."""

    consumer: str
    seq: int
    count: int
    bytes: int
    first: int | None
    last: int | None
    checksum: str
    since: int


class Claims(Protocol):
    """The claims on a queue's messages. Each call may be repeated. consumer: see `names.owned_name`."""

    @property
    def most(self) -> int:
        """The most messages of a claim."""

    def claim(self, consumer: str, seq: int, count: int, max_bytes: int | None, upto: int | None) -> Claim:
        """Takes the oldest visible messages for a consumer: at most count, max_bytes of payload (but at least one),
        ids up to upto. seq: follows the consumer's last one; an earlier one describes its claim again.
        ClaimOrderError."""

    def part(
        self, consumer: str, seq: int, part: tuple[int, int], count: int, max_bytes: int
    ) -> Sequence[Message] | None:
        """Reads a part of a claim: (n, m) is the n-th of m parts, from 0. None if it has more than count messages,
        or max_bytes of payload. NoSuchClaimError."""

    def open_before(self, consumer: str, seq: int) -> Sequence[int]:
        """Returns the numbers, increasing, of the consumer's claims before seq that are neither acknowledged nor
        released. ClaimOrderError."""

    def acknowledge(self, consumer: str, seq: int) -> int:
        """Deletes the messages of the consumer's claims up to seq. Returns how many. ClaimOrderError."""

    def release(self, consumer: str, seq: int) -> int:
        """Makes the messages of the consumer's claims from seq on visible again. Returns how many. NoSuchClaimError."""

    def all(self) -> Iterable[Claim]:
        """Yields the claims that are open when it begins, by consumer and seq. Each takes as long as its ids to sum up,
        so other requests may run in between."""


class Batches(Protocol):
    """Batches of messages that producers stage for a queue. Each call may be repeated. producer: see
    `names.owned_name`."""

    def stage(self, producer: str, name: tuple[int, int, int], payloads: Sequence[bytes]) -> None:
        """Adds messages to a part of a batch. name: batch, part, attempt."""

    def publish(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> int:
        """Publishes the named attempt of each part, and drops all else staged up to that batch. Does nothing without
        parts. Returns the number of messages. BatchOrderError, NoSuchPartError."""


class Redrive(Protocol):
    """Moves the dead letters of a queue to other queues."""

    def letters(self, mids: Sequence[int], count: int) -> list[tuple[int, str]]:
        """Returns at most count dead letters, oldest first, with their former queues. mids: only these; empty: all."""

    def move(self, letters: Sequence[tuple[int, "Queue"]]) -> list[tuple[int, int]]:
        """Moves dead letters to the ends of queues, visible and never received, all or none. Returns (id, new id).
        QueueFullError, UnsupportedError for a queue of another storage."""


class Queue(Protocol):
    """A queue of any storage.

    Ensures, with every method: if it raises, nothing has changed, unless it says so. Each may raise OSError. What has
    changed is there for everybody at once, and is durable after the next `Engine.commit`.

    Assumes one thread at a time, and that nobody keeps the object over a request: see `Engine.queue`."""

    options: Options
    merges_pushes: ClassVar[bool]
    """Pushes of one call are as independent as those of many, only faster."""

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, all or none. Returns increasing ids. QueueFullError."""

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """Receives a visible message, or peeks at it; others come without their payload. NoSuchMessageError."""

    def read(self, receipt: Receipt) -> Message:
        """Reads a message in any state for the receipt's holder. NoSuchMessageError, StaleReceiptError."""

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        """Returns at most count ids greater than after (-1: all), oldest first."""

    def delete(self, receipt: Receipt) -> None:
        """Removes a message in any state. NoSuchMessageError, StaleReceiptError."""

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        """Makes a message visible (None), or after a while (the time), or a dead letter if it is exhausted (None). It
        has to be in flight, or delayed if the receipt has no receives: that is how a delay is changed. delay:
        microseconds, 0 for now; None: what the queue's back-off says for a message in flight whose receive counts, else
        now. count: False takes the receive back (Feature.REDRIVE); reason: replaces the message's last one
        (Feature.REASON), None keeps that. NoSuchMessageError, StaleReceiptError, UnsupportedError."""

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        """Makes a message in any state a dead letter, with the reason `rejected` in its origin (Feature.REASON).
        reason: see `release`. It also raises what keeps the dead-letter queue from taking the message, and then
        nothing has changed. NoSuchMessageError, StaleReceiptError, NoDeadLetterQueueError, QueueFullError,
        UnsupportedError."""

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Ends the window of a message in flight `visibility` from now (None: the queue's). Returns the time.
        NoSuchMessageError, StaleReceiptError."""

    def purge(self, upto: int, count: int) -> int:
        """Removes at most count messages with ids up to upto, in order. Returns how many; fewer: none is left."""

    @property
    def claims(self) -> Claims | None:
        """None without Feature.CLAIM."""

    @property
    def batches(self) -> Batches | None:
        """None without Feature.CLAIM."""

    @property
    def redrive(self) -> Redrive | None:
        """None without Feature.REDRIVE, or an UnsupportedError that names the way."""

    def prepare_stats(self) -> bool:
        """Does a slice of work for `stats`; False when it is done."""

    def stats(self) -> Stats:
        """Returns the counts. It may take long unless `prepare_stats` has returned False."""


LEFT = 64 << 10
"""Bytes of room with which a batch begins, if the disk has them: enough for some hundred requests that push nothing."""


class Effects(NamedTuple):
    """Tells what has happened since it was last asked. arrived: counts of visible messages, of queues with new ones;
    for a removed queue, more than anybody waits for. failed: pushes that failed after their answer, by queue and first
    id. next_expiry: when to call `expire`, maybe before anything is due, as windows that ended early are not taken out;
    next_upkeep: when to call `begin_upkeep`; None: never. commit_is_cheap: the next commit needs no thread;
    pushes_first: a batch should begin with pushes, to sync them together; room: see `Engine.room`."""

    arrived: dict[str, int]
    failed: dict[tuple[str, int], OSError]
    next_expiry: int | None
    next_upkeep: int | None
    commit_is_cheap: bool = False
    pushes_first: bool = False
    room: int = LEFT


class Background(Protocol):
    """Work of an engine that may be done in another thread while the engine goes on."""

    def run(self) -> None:
        """Raises nothing."""


class Engine(ABC):
    """The engine of a storage: finds, makes and removes queues, receives from several, and commits.

    Ensures:
    1. Changes act at once in memory, and are durable (as the durability asks) when `commit` returns.
    2. If a method raises, nothing has changed, and `commit` can be called again. Methods may raise OSError.
    3. After `roll_back`, memory is as it was after the last commit.
    4. No method waits for a client or for a time: what comes later is an effect of a later commit.

    Assumes one thread at a time. Never starts work by itself: `Effects` says when some is due, and the caller calls."""

    name: ClassVar[str]
    cannot: ClassVar[frozenset[Feature]] = frozenset()
    """Lacking features of queues of its own storage: using one raises UnsupportedError. Without KEEP a queue is
    always empty, and the other features mean nothing; without TELLS nothing ever arrives or expires."""
    room: int = sys.maxsize
    """Bytes of log that this batch may still take. Work that no request bounds is done in slices: while less than
    `LEFT` is there, the rest waits for the next batch."""

    # -- queues

    @abstractmethod
    def queues(self) -> Collection[str]:
        """Returns all names, unsorted."""

    @abstractmethod
    def queue(self, qid: str) -> Queue:
        """Returns a queue, valid until the next request. NoSuchQueueError."""

    def in_place(self, qid: str) -> bool:
        """Tells whether a queue exists: False also if its directory was removed, and nobody has noticed yet."""
        return qid in self.queues()

    @abstractmethod
    def create(self, qid: str, options: Options) -> None:
        """Makes a queue. QueueExistsError, BadQueueNameError."""

    def options(self, qid: str) -> Options:
        """Raises NoSuchQueueError."""
        return self.queue(qid).options

    def configure(self, qid: str, options: Options) -> None:
        """Replaces a queue's options, durably and at once. NoSuchQueueError, UnsupportedError."""
        raise UnsupportedError(f"options of queues of the storage {self.name!r} cannot be changed")

    @abstractmethod
    def remove(self, qid: str, *, force: bool) -> None:
        """Removes a queue. force: with its messages. NoSuchQueueError; QueueNotEmptyError without force."""

    # -- what concerns several queues

    @abstractmethod
    def receive(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int, *, held: bool = False
    ) -> list[Message]:
        """Receives the oldest visible messages of the queues, ordered by id, at most count, and no more than
        max_bytes of payload (but at least one). visibility: None for the queue's. held: for a subscriber of this
        process: nothing need be durable, and with Feature.HELD the next process that opens the engine makes the
        messages visible. NoSuchQueueError."""

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        """Stores a message in other queues too, under its id, ready: in all or none, except those that have it
        already. NoSuchQueueError, NoSuchMessageError, QueueFullError; OtherMessageError for another message's id."""
        raise UnsupportedError(f"the storage {self.name!r} cannot copy messages")

    # -- time, durability, others

    def secure(self, lacked: NoRoomError | None = None) -> None:  # noqa: B027 - an engine without a log needs no room there
        """Secures room for the next batch, which is empty so far: see `room`. lacked: what its first request lacked in
        an earlier batch; None: for `LEFT` bytes, call it when less than that is left. May take some milliseconds: it
        begins a segment, or, on a full disk, compacts. Where that makes no room, pushes are refused, and nothing else.
        OSError."""

    @abstractmethod
    def commit(self) -> Effects:
        """Makes all changes durable, as the durability asks."""

    @abstractmethod
    def effects(self) -> Effects:
        """Returns what has happened since the last call or commit, without a commit."""

    def roll_back(self) -> None:  # noqa: B027 - an engine whose changes are durable at once takes none back
        """Takes back the changes since the last commit, after a failure."""

    def background_sync(self) -> Callable[[], None] | None:
        """Returns a function, for any thread, that makes all changes durable; None if there is nothing to do."""
        return None

    def begin_upkeep(self) -> Background | None:
        """Does some milliseconds of the engine's own work. The caller commits, runs the result in any thread, and
        gives it to `finish_upkeep`. One at a time."""
        return None

    def finish_upkeep(self, upkeep: Background) -> None:  # noqa: B027 - an engine without such work has nothing to do
        """Takes over a thread's work."""

    def figures(self) -> dict[str, float]:
        """Returns figures of the whole engine by their names in docs/protocol.md."""
        return {}

    def refresh(self) -> None:  # noqa: B027 - an engine that shares nothing has nothing to do
        """Reads what other processes have changed."""

    def fileno(self) -> int | None:
        """Returns a descriptor that is readable when `refresh` has something to do, or None."""
        return None

    @abstractmethod
    def expire(self, count: int) -> int:
        """Ends at most count windows, delays and retentions that are due. Returns how many; 0: nothing is due."""

    @abstractmethod
    def close(self) -> None:
        """Makes everything durable and closes. OSError: changes may be lost; UnfinishedError: a start has work left."""
