"""The interface of the storage: an engine finds queues and commits; a queue keeps messages.

Both are synchronous code for one thread at a time, and know no network. Times are microseconds since the Epoch,
durations microseconds.

Operations act at once, for everybody to see. Engine.commit makes them durable, so that many requests share a sync.
`Effects` names the pushes that fail after their answer.
"""

import errno
import hashlib
import os
import sys
import time
from abc import ABC, abstractmethod
from array import array
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
    """The base of the errors that an engine raises on purpose. The text is for the client."""


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
    """The number of the batch is more than one past the greatest that its producer has staged or published."""


class NoSuchPartError(StorageError):
    """The named attempt at a part of the batch was not staged."""


class QueueFullError(StorageError):
    """The queue holds as many messages as its capacity allows, or no id is left, or the server remembers as many keys
    as it may."""


class UnfinishedError(StorageError):
    """The engine is closed, and has left work for the next start: the text says which. Nothing is lost."""


class BadQueueNameError(StorageError):
    """The engine cannot keep a queue, consumer or producer of that name."""


class UnsupportedError(StorageError):
    """The engine cannot do what was asked."""


class NoRoomError(OSError):
    """A request needs more room in the log than its batch has left. Nothing has changed.

    The caller ends the batch, calls `Engine.secure` with the error, and runs the request again, as the first of the
    next batch. If the request raises NoRoomError again, the disk is full: the error is an ENOSPC."""

    def __init__(self, size: int, *, push: bool = False) -> None:
        """size: the bytes of log that the request takes; push: True if a full disk has no room for the request, however
        much is left."""
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size = size
        self.push = push

    def unmet(self, secured: "NoRoomError | None") -> "NoRoomError | None":
        """Returns what has to be secured before the request is run again, None if enough was secured before this run.
        secured: what room was secured for before this run."""
        # The request was not tried again yet: all that it lacks is asked for.
        if secured is None:
            return self
        # The request was run again with what it lacked: if it lacks the same again, there is none.
        if self.size <= secured.size and (secured.push or not self.push):
            return None
        return NoRoomError(max(self.size, secured.size), push=self.push or secured.push)


class RemoteError(StorageError):
    """The remote server does not answer, or refuses. The text names the server, and says what to do."""


class UnavailableError(RemoteError):
    """The remote server cannot be asked now, and nothing was changed."""


class NotKnownError(RemoteError):
    """Whether the remote server has done what was asked is not known. Repeating it is safe for a push with a key."""


class Durability(Enum):
    """The faults that an answered operation survives: ALWAYS a power loss, INTERVAL a power loss 50 ms later, NONE a
    kill of the process."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NONE = "none"


class Feature(Enum):
    """The features that some engines lack. The values are the words of the table in docs/storage.md."""

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
    HEADERS = "`headers` in `push-message`"
    PRIORITY = "`priority` in `push-message`"
    EXPIRES = "`expires` in `push-message`"
    UNIQUE = '`unique="yes"` in `push-message`'
    GROUP = "`group` in `push-message`, and `group-in-flight` and `fair` in `new-queue`"
    PACE = "`max-in-flight` and `rate` in `new-queue`"
    GIVEN = "`order` in `receive-message`"
    TELLS = "tells the server of every message that becomes visible, without being asked"


class State(Enum):
    """The states by which `list_mids` selects messages. NEW: never retrieved, visible or delayed."""

    NEW = "new"
    READY = "ready"
    IN_FLIGHT = "in-flight"
    DELAYED = "delayed"
    ALL = "all"


Headers = tuple[tuple[str, str], ...]
"""The headers of a message: (name, text), in the order in which the producer gave them. The names differ, also without
regard to case."""
PRIORITIES = 10
"""Priorities are 0 to 9. A message of a higher one is handed out first."""


class Draft(NamedTuple):
    """A message to push. delay: microseconds until the message is visible; key: another push with the same key within
    five minutes gets the id of the first, see `names.owned_name`; unique: True if the key counts for as long as the
    message is in the queue, and no longer; priority: 0 to 9; expires: microseconds after the push from which the
    message is not handed out any more, None for never; group: the name of what must not overtake itself, empty for
    none; headers: see `Headers`."""

    payload: bytes
    delay: int = 0
    key: str | None = None
    unique: bool = False
    priority: int = 0
    expires: int | None = None
    group: str = ""
    headers: Headers = ()


class Receipt(NamedTuple):
    """Names a message for its consumer. receives: the count that the consumer saw, so that a consumer whose window has
    ended does not delete a message that another one has by now; None: any count will do."""

    mid: int
    receives: int | None = None


class Origin(NamedTuple):
    """Says where a dead letter comes from. qid, mid, receives: queue, id and count of receives before the move; at: the
    time of the move; reason: `receives` (received too often) or `rejected`; pushed_at: the time of the first push.
    receives and at are 0 if unknown."""

    qid: str
    mid: int
    receives: int
    at: int
    reason: str
    pushed_at: int


@dataclass(slots=True)
class Message:
    """A message as the storage gives it to a request. status: ready, delivered, in-flight or delayed; payload: None for
    a message in a window, which comes without headers too; visible_at: None for now; reason: the last one of a release
    or reject; priority, group, headers: see `Draft`; expires_at: None for never."""

    qid: str
    mid: int
    status: str
    receives: int
    pushed_at: int
    visible_at: int | None = None
    payload: bytes | None = None
    origin: Origin | None = None
    reason: str | None = None
    headers: Headers = ()
    priority: int = 0
    group: str = ""
    expires_at: int | None = None


@dataclass(slots=True)
class Options:
    """The options of a queue. A queue and its engine share the object, so a change takes effect at once.

    visibility: microseconds; capacity: messages; paused: True if the queue gives nothing out; dead_letter: the queue
    for messages after max_receives receives; retention: microseconds after which a message that is not in flight is
    removed, see `policy.py`; backoff, backoff_max: microseconds, see `policy.py`; group_in_flight: the most messages of
    a group that are out at a time, None for 1, which is strict order within the group; fair: True if groups are served
    in turn, and not by age; max_in_flight: the most messages of the queue that are out at a time; rate: the most
    messages that are handed out a second. None or empty: no bound."""

    storage: str = ""
    visibility: int = DEFAULT_VISIBILITY
    capacity: int | None = None
    timestamps: str = "us"
    """Unit of the numbers in file names, `us` or `ms`."""
    pieces: str = ""
    """For dirq's Queue: an element's pieces of data, `NAME=TYPE,...`."""
    body: str = ""
    """For dirq's Queue: the name of the piece that holds the payload."""
    paused: bool = False
    dead_letter: str = ""
    max_receives: int | None = None
    retention: int | None = None
    backoff: int | None = None
    backoff_max: int | None = None
    group_in_flight: int | None = None
    fair: bool = False
    max_in_flight: int | None = None
    rate: float | None = None
    schema: str = ""
    """The name of the schema that the payloads of the queue obey."""
    where: str = ""
    """The condition of a bus's durable name. The bus keeps it here, and nothing else looks at it."""


@dataclass(slots=True)
class Stats:
    """The counts of a queue: messages by their states, their bytes of payload, and events since the start. oldest: the
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
    """The messages of `dead` that were rejected."""
    retired: int = 0
    """Older than the retention."""
    redelivered: int = 0
    """Deliveries after the first of a message."""
    released: int = 0
    limited: str = ""
    """The option that keeps all visible messages back now: `max-in-flight`, `rate` or `group-in-flight`. Empty if none
    does, or nothing is visible."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Describes a claim. consumer: see `names.owned_name`; seq: its number, 1, 2, 3, …; bytes: the bytes of payload;
    first, last: its smallest and greatest id, or None; checksum: the checksum of the ids, so that a consumer can tell
    that a claim has the same messages as before; since: microseconds."""

    consumer: str
    seq: int
    count: int
    bytes: int
    first: int | None
    last: int | None
    checksum: str
    since: int


def checksum_of(mids: Sequence[int]) -> str:
    """Returns the checksum of a claim with these ids. mids: increasing."""
    return hashlib.sha256(array("Q", mids).tobytes()).hexdigest()[:16]


class Claims(Protocol):
    """Makes and ends claims on a queue's messages. Each call may be repeated. consumer: see `names.owned_name`."""

    @property
    def most(self) -> int:
        """The most messages of a claim."""

    def claim(self, consumer: str, seq: int, count: int, max_bytes: int | None, upto: int | None) -> Claim:
        """Takes the oldest visible messages for a consumer: at most count, max_bytes of payload (but at least one
        message), ids up to upto. seq: the number after the consumer's last claim; the number of an earlier claim
        describes that claim again. ClaimOrderError."""

    def part(
        self, consumer: str, seq: int, part: tuple[int, int], count: int, max_bytes: int
    ) -> Sequence[Message] | None:
        """Reads a part of a claim. part: (n, m) for the n-th of m parts, counted from 0. Returns None if the part has
        more than count messages, or more than max_bytes of payload. NoSuchClaimError."""

    def open_before(self, consumer: str, seq: int) -> Sequence[int]:
        """Returns the numbers, increasing, of the consumer's claims before seq that are neither acknowledged nor
        released. ClaimOrderError."""

    def acknowledge(self, consumer: str, seq: int) -> int:
        """Deletes the messages of the consumer's claims up to seq. Returns how many. ClaimOrderError."""

    def release(self, consumer: str, seq: int) -> int:
        """Makes the messages of the consumer's claims from seq on visible again. Returns how many. NoSuchClaimError."""

    def all(self) -> Iterable[Claim]:
        """Yields the open claims by consumer and seq. Summing up each claim takes time for all its ids, so other
        requests may run in between; claims made meanwhile are left out."""


class Batches(Protocol):
    """Stages and publishes batches of messages for a queue. Each call may be repeated. producer: see
    `names.owned_name`."""

    def stage(self, producer: str, name: tuple[int, int, int], drafts: Sequence[Draft]) -> None:
        """Adds messages to a part of a batch. name: the batch, the part, the attempt; drafts: without delays and keys.
        A lifetime begins when the message is staged."""

    def publish(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> int:
        """Publishes the named attempt of each part, and drops everything else that is staged up to that batch. Does
        nothing if no parts are named. Returns the number of messages. BatchOrderError, NoSuchPartError."""


class Redrive(Protocol):
    """Moves the dead letters of a queue to other queues."""

    def letters(self, mids: Sequence[int], count: int) -> list[tuple[int, str]]:
        """Returns at most count dead letters, oldest first, with their former queues. mids: the letters to consider,
        empty for all."""

    def move(self, letters: Sequence[tuple[int, "Queue"]]) -> list[tuple[int, int]]:
        """Moves dead letters to the ends of queues, visible and never received. Moves as many as one transaction takes,
        oldest first. Returns (id, new id) of those that moved. If it raises, none has moved. QueueFullError,
        UnsupportedError for a queue of another storage."""


class Queue(Protocol):
    """A queue of any storage.

    Ensures that a method which raises has changed nothing, unless its description says otherwise. Each method may raise
    OSError. A change is there for everybody at once, and is durable after the next `Engine.commit`.

    Assumes one thread at a time, and that nobody keeps the object over a request: see `Engine.queue`."""

    options: Options

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1 without any."""

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, all or none. Returns increasing ids. QueueFullError."""

    @property
    def push_payloads(self) -> Callable[[Sequence[bytes]], Sequence[int]] | None:
        """Stores messages without delays and keys, like `push`. None if the pushes of one call are not as independent
        as those of many calls."""

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """Receives a visible message, or with peek only shows it. A hidden message comes without its payload.
        NoSuchMessageError."""

    def read(self, receipt: Receipt) -> Message:
        """Reads a message in any state for the holder of a receipt. NoSuchMessageError, StaleReceiptError."""

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        """Returns the ids of messages in a state, oldest first, at most count. after: only greater ids, -1 for all."""

    def delete(self, receipt: Receipt) -> None:
        """Removes a message in any state. NoSuchMessageError, StaleReceiptError."""

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        """Makes a message visible now or after a delay, or moves an exhausted one to the dead-letter queue. Returns the
        time from which the message is visible; None for now, and for a dead letter. The message has to be in flight;
        with a receipt without receives it may also be delayed, which changes its delay. delay: microseconds, 0 for now;
        None for the queue's back-off if the message is in flight and its receive counts, else for now. count: False
        takes the receive back (Feature.REDRIVE); reason: replaces the message's last reason (Feature.REASON), None
        keeps the last one. NoSuchMessageError, StaleReceiptError, UnsupportedError."""

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        """Makes a message in any state a dead letter, with the reason `rejected` in its origin (Feature.REASON).
        reason: see `release`. Raises also what keeps the dead-letter queue from taking the message. NoSuchMessageError,
        StaleReceiptError, NoDeadLetterQueueError, QueueFullError, UnsupportedError."""

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Makes the window of a message in flight end `visibility` from now (None: the queue's own). Returns the end.
        NoSuchMessageError, StaleReceiptError."""

    def purge(self, upto: int, count: int) -> int:
        """Removes at most count messages with ids up to upto, oldest first. Returns the number removed; fewer than
        count if none is left."""

    @property
    def claims(self) -> Claims | None:
        """The claims on the queue's messages, None without Feature.CLAIM."""

    @property
    def batches(self) -> Batches | None:
        """The staged batches of the queue, None without Feature.CLAIM."""

    @property
    def redrive(self) -> Redrive | None:
        """Moves the queue's dead letters. None without Feature.REDRIVE; raises UnsupportedError if there is another
        way, which the text names."""

    def prepare_stats(self) -> bool:
        """Does a slice of work for `stats`. Returns False when the work is done."""

    def stats(self) -> Stats:
        """Returns the counts. It may take long unless `prepare_stats` has returned False."""


LEFT = 64 << 10
"""Bytes of room with which a batch begins, if the disk has them: enough for some hundred requests that push nothing."""


class Effects(NamedTuple):
    """What has happened in an engine since the last call of `Engine.effects` or `commit`. arrived: counts of visible
    messages, of queues with new ones; for a removed queue, a number greater than any receive waits for. failed: pushes
    that failed after their answer, by queue and first id. next_expiry: when to call `expire`, maybe before anything is
    due, as windows that ended early are not taken out; next_upkeep: when to call `begin_upkeep`; None for never.
    commit_is_cheap: True if the next commit needs no thread; pushes_first: True if a batch should begin with pushes, to
    sync them together; room: see `Engine.room`."""

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
        """Does the work. Never raises."""


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
        """Returns the names of all queues, unsorted."""

    @abstractmethod
    def queue(self, qid: str) -> Queue:
        """Returns a queue. The object is valid until the next request. NoSuchQueueError."""

    def in_place(self, qid: str) -> bool:
        """Tells whether a queue exists. Returns False also if the queue's directory was removed, and the engine has not
        noticed yet."""
        return qid in self.queues()

    @abstractmethod
    def create(self, qid: str, options: Options) -> None:
        """Makes a queue. QueueExistsError, BadQueueNameError."""

    def options(self, qid: str) -> Options:
        """Returns a queue's options. NoSuchQueueError."""
        return self.queue(qid).options

    def configure(self, qid: str, options: Options) -> None:
        """Replaces a queue's options, durably and at once. NoSuchQueueError, UnsupportedError."""
        raise UnsupportedError(f"options of queues of the storage {self.name!r} cannot be changed")

    @abstractmethod
    def remove(self, qid: str, *, force: bool) -> None:
        """Removes a queue. force: True to remove its messages too. NoSuchQueueError; QueueNotEmptyError without
        force."""

    # -- what concerns several queues

    @abstractmethod
    def receive(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        held: bool = False,
        given: bool = False,
    ) -> list[Message]:
        """Receives the next messages of the queues: of a higher priority first, within one priority the oldest, at most
        count, and no more than max_bytes of payload (but at least one). visibility: None for the queue's own. held:
        True for a subscriber of this process: the receive need not be durable, and with Feature.HELD the next process
        that opens the engine makes the messages visible. given: True to empty the first queue before the second is
        looked at. NoSuchQueueError."""

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        """Stores a message in other queues too, ready and under the same id: in all of them or none. Leaves out queues
        that have the message already. NoSuchQueueError, NoSuchMessageError, QueueFullError; OtherMessageError if
        another message has the id."""
        raise UnsupportedError(f"the storage {self.name!r} cannot copy messages")

    # -- time, durability, others

    def secure(self, lacked: NoRoomError | None = None) -> None:  # noqa: B027 - an engine without a log needs no room there
        """Secures room for the next batch, in which nothing has been done yet: see `room`. Call it when less than
        `LEFT` bytes are left, or with what the first request lacked in an earlier batch. Begins a segment or, on a full
        disk, compacts, which may take some milliseconds. If that gains no room, only pushes are refused. OSError."""

    @abstractmethod
    def commit(self) -> Effects:
        """Makes all changes durable, as the durability asks."""

    @abstractmethod
    def effects(self) -> Effects:
        """Returns what has happened since the last call or commit, without a commit."""

    def roll_back(self) -> None:  # noqa: B027 - an engine whose changes are durable at once takes none back
        """Takes back the changes since the last commit, after a failure."""

    def background_sync(self) -> Callable[[], None] | None:
        """Returns a function, for any thread, that makes all changes durable; None if all changes are durable."""
        return None

    def begin_upkeep(self) -> Background | None:
        """Does some milliseconds of the engine's own work. Returns the work for another thread, or None. The caller
        commits, runs the work in any thread, and passes it to `finish_upkeep` before the next call."""
        return None

    def finish_upkeep(self, upkeep: Background) -> None:  # noqa: B027 - an engine without such work has nothing to do
        """Takes over the results of work that has run in another thread."""

    def figures(self) -> dict[str, float]:
        """Returns figures of the whole engine by their names in docs/protocol.md."""
        return {}

    def check_again(self) -> None:  # noqa: B027 - an engine that shares nothing has nothing to do
        """Looks again at what other programs have put into queues with a schema and what was refused. Call it when the
        schemas have changed; changed options of a queue need no call."""

    def refresh(self) -> None:  # noqa: B027 - an engine that shares nothing has nothing to do
        """Reads what other processes have changed."""

    def fileno(self) -> int | None:
        """Returns a descriptor that is readable when `refresh` has something to do, or None."""
        return None

    @abstractmethod
    def expire(self, count: int) -> int:
        """Ends windows, delays and retentions that are due, at most count. Returns their number; 0 if nothing is
        due."""

    @abstractmethod
    def close(self) -> None:
        """Makes everything durable and closes the engine. OSError: changes may be lost; UnfinishedError: work is left
        for the next start."""
