"""The interface of the storage: an engine finds queues and commits; a queue keeps messages.

Both are plain synchronous code, called from one thread at a time, and know nothing of networks. All times and durations
are whole microseconds, times since the Epoch. What an engine cannot do it says in `cannot`.

What is asked of a queue happens at once, for everybody to see. Engine.commit makes all of it survive a power loss, so
that many requests share one sync. A push that fails after it was answered is one of the effects of that commit.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

SECOND = 1_000_000
"""Microseconds."""

DEFAULT_VISIBILITY = 30 * SECOND
"""bucker's default window."""

Clock = Callable[[], int]
"""Gives the time in microseconds since the Epoch."""


def wall_clock() -> int:
    """Microseconds since the Epoch, by the system's clock."""
    return time.time_ns() // 1000


class StorageError(Exception):
    """Base of what an engine raises on purpose. The text is for the one who asked."""


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


class QueueNotEmptyError(StorageError):
    """The queue to remove holds messages."""


class StaleReceiptError(StorageError):
    """The message was received again since, or is not in flight any more."""


class NoSuchClaimError(StorageError):
    """The consumer has no claim of that number."""


class ClaimOrderError(StorageError):
    """The number of the claim is not the one that follows."""


class NoSuchPartError(StorageError):
    """That part of the batch was not staged."""


class QueueFullError(StorageError):
    """The queue holds as many messages as its capacity allows, or no room is left for another id."""


class UnfinishedError(StorageError):
    """The engine is closed, and has left work for the next start. The text says what, and why; nothing is lost."""


class BadQueueNameError(StorageError):
    """The name cannot be kept by this engine."""


class UnsupportedError(StorageError):
    """The engine cannot do that."""


class RemoteError(StorageError):
    """The server that keeps the messages is not there, does not answer, or refuses. The text says which server, what
    happened, and what to do."""


class Durability(Enum):
    """Says what an answered operation survives. ALWAYS: a power loss; INTERVAL: the same, 50 ms later at the latest;
    NONE: the end of the process, but not of the machine."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NONE = "none"


class Feature(Enum):
    """Names what some engines lack. The values are the words of docs/storage.md, whose table says which engine lacks
    what."""

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
    RETENTION = "`retention` in `new-queue`"
    FIGURES = "`queue-stats` is exact, with bytes and the age of the oldest message"
    MILLISECONDS = '`timestamps = "ms"` in `.queue.toml`'
    TELLS = "tells the server of every message that becomes visible, without being asked"


class State(Enum):
    """Selects the messages that `list_mids` returns. NEW: never retrieved, whether visible or delayed."""

    NEW = "new"
    READY = "ready"
    IN_FLIGHT = "in-flight"
    DELAYED = "delayed"
    ALL = "all"


class Draft(NamedTuple):
    """A message to store. delay: microseconds until it becomes visible, 0 or more; key: a push with the same one within
    five minutes stores nothing, and gets the id of the first."""

    payload: bytes
    delay: int = 0
    key: str | None = None


class Receipt(NamedTuple):
    """A message, and the count of receives that its holder saw; None: whatever it is by now."""

    mid: int
    receives: int | None = None


class Origin(NamedTuple):
    """Says what a dead letter was. qid, mid, receives: its queue, its id there, and how often it was received there;
    at: when it was moved, reason: why (`receives`: too often); pushed_at: when it was pushed first. receives and at are
    0 when the storage does not know them."""

    qid: str
    mid: int
    receives: int
    at: int
    reason: str
    pushed_at: int


@dataclass(slots=True)
class Message:
    """A message handed out or looked at. status: ready, delivered, in-flight or delayed; payload: None when it is
    inside a visibility window; visible_at: None when it is visible now; origin: of a dead letter."""

    qid: str
    mid: int
    status: str
    receives: int
    pushed_at: int
    visible_at: int | None = None
    payload: bytes | None = None
    origin: Origin | None = None


@dataclass(slots=True)
class Options:
    """The options of a queue. visibility: microseconds; capacity: messages, None for no bound; paused: it gives nothing
    out; dead_letter: the queue to which a message goes after max_receives receives, empty and None for never;
    retention: microseconds after which a message that is not in flight is removed, None for never, see `retention.py`.
    A change of the object takes effect at once."""

    storage: str = ""
    visibility: int = DEFAULT_VISIBILITY
    capacity: int | None = None
    timestamps: str = "us"
    """Unit of the numbers in file names, `us` or `ms`."""
    schema: str = ""
    """For the layout of dirq's Queue: the pieces of data of an element, `NAME=TYPE,...`."""
    body: str = ""
    """Which of them is the payload."""
    paused: bool = False
    dead_letter: str = ""
    max_receives: int | None = None
    retention: int | None = None


@dataclass(slots=True)
class Stats:
    """The figures of a queue: messages by state, bytes of payload, age of the oldest message (None: empty), counts
    since the start."""

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
    retired: int = 0
    """Removed as they were older than the retention."""
    redelivered: int = 0
    """Of those delivered, how many had been delivered before."""
    released: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """Describes a claim. seq: 1, 2, 3, …; bytes: of payload; first, last: ids, None when it has no messages; checksum:
    of the ids; since: when it was made, microseconds since the Epoch."""

    consumer: str
    seq: int
    count: int
    bytes: int
    first: int | None
    last: int | None
    checksum: str
    since: int


class Claims(Protocol):
    """The claims on a queue's messages. Each call may be repeated, whatever became of its answer."""

    @property
    def most(self) -> int:
        """The number of messages that a claim may have."""

    def claim(self, consumer: str, seq: int, count: int, max_bytes: int | None, upto: int | None) -> Claim:
        """Takes the oldest visible messages for a consumer: at most count, with at most max_bytes of payload but for
        the first, and none with an id greater than upto. seq: one more than that of the consumer's last claim; that of
        an earlier one describes it again. ClaimOrderError."""

    def part(
        self, consumer: str, seq: int, part: tuple[int, int], count: int, max_bytes: int
    ) -> Sequence[Message] | None:
        """Reads a part of a claim: (n, m) is the n-th of m parts, from 0. None when that part has more messages than
        count, or more bytes of payload than max_bytes. NoSuchClaimError."""

    def acknowledge(self, consumer: str, seq: int) -> None:
        """Deletes the messages of the consumer's claims up to seq. NoSuchClaimError, ClaimOrderError."""

    def release(self, consumer: str, seq: int) -> int:
        """Makes the messages of the consumer's claims from seq on visible again; how many. NoSuchClaimError."""

    def all(self) -> Sequence[Claim]:
        """Every claim, by consumer and seq."""


class Batches(Protocol):
    """The batches of messages that producers stage for a queue. Each call may be repeated."""

    def stage(self, producer: str, name: tuple[int, int, int], payloads: Sequence[bytes]) -> None:
        """Adds messages to a part of a batch that nobody sees yet. name: batch, part, attempt."""

    def publish(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> None:
        """Makes a batch visible at once: of each part the attempt that is named; everything else that the producer has
        staged up to that batch is dropped. NoSuchPartError."""


class Redrive(Protocol):
    """Moves the dead letters of a queue to other queues."""

    def letters(self, mids: Sequence[int], count: int) -> list[tuple[int, str]]:
        """Returns dead letters that are in no claim, oldest first, at most count, each with the queue from which it
        came. mids: only these; empty: all."""

    def move(self, letters: Sequence[tuple[int, "Queue"]]) -> list[tuple[int, int]]:
        """Moves dead letters, each to the end of a queue, visible and never received: those that it returns, (id, new
        id), or none. QueueFullError, UnsupportedError for a queue of another storage."""


class Queue(Protocol):
    """One queue. Its methods may raise OSError: then nothing has changed, except where it is said."""

    options: Options
    merges_pushes: ClassVar[bool]
    """True if pushes that are made with one call are as independent as those of many calls, only faster."""

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, all or none. Returns their ids, increasing. QueueFullError."""

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """Looks at one message. A visible one is received, unless it is peeked at; one that is not visible comes
        without its payload. NoSuchMessageError."""

    def read(self, receipt: Receipt) -> Message:
        """Reads a message and its payload, in whatever state it is, for whoever holds the receipt.
        NoSuchMessageError, StaleReceiptError."""

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        """Returns ids greater than after (-1: all), oldest first, at most count."""

    def delete(self, receipt: Receipt) -> None:
        """Removes a message, in whatever state it is. NoSuchMessageError, StaleReceiptError."""

    def release(self, receipt: Receipt, delay: int, *, count: bool = True) -> int | None:
        """Makes a message visible now (returns None), or after delay (returns the time); moves one that was received
        too often to the dead-letter queue (returns None). count: False takes the receive back, UnsupportedError without
        Feature.REDRIVE.
        NoSuchMessageError, StaleReceiptError."""

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Lets the window of a message in flight end `visibility` from now (None: the queue's own). Returns the time at
        which it ends. NoSuchMessageError, StaleReceiptError."""

    def purge(self, upto: int, count: int) -> int:
        """Removes at most count messages whose ids are at most upto, one after the other. Returns how many; fewer than
        count when none is left."""

    @property
    def claims(self) -> Claims | None:
        """None without Feature.CLAIM."""

    @property
    def batches(self) -> Batches | None:
        """None without Feature.CLAIM."""

    @property
    def redrive(self) -> Redrive | None:
        """None without Feature.REDRIVE, or an UnsupportedError that says what to do instead."""

    def prepare_stats(self) -> bool:
        """Does a slice of the work that `stats` needs; False when nothing is left to do."""

    def stats(self) -> Stats:
        """Counts the messages."""


class Effects(NamedTuple):
    """Says what has happened in an engine since it was last asked. arrived: queues in which messages have become
    visible, and how many are visible now; for a queue that has gone, more than anybody waits for. failed: pushes that
    came to nothing after they returned, by queue and first id. next_expiry: when `expire` has something to do
    next, None: nothing will be due; next_upkeep: when `begin_upkeep` should be called, None: there is nothing to do;
    commit_is_cheap: whether the next commit will be over so soon that a thread for it would only cost time;
    pushes_first: whether pushes should be done before everything else of a batch, so that their files are synced
    together."""

    arrived: dict[str, int]
    failed: dict[tuple[str, int], OSError]
    next_expiry: int | None
    next_upkeep: int | None
    commit_is_cheap: bool = False
    pushes_first: bool = False


class Background(Protocol):
    """Work of an engine that may be done while it goes on."""

    def run(self) -> None:
        """Does the work. Raises nothing."""


class Engine(ABC):
    """Keeps queues. Methods may raise OSError: then nothing has changed, and `commit` can be called again."""

    name: ClassVar[str]
    cannot: ClassVar[frozenset[Feature]] = frozenset()
    """The features that queues of its own storage lack. Without KEEP every queue is always empty, and the others mean
    nothing; a method or an option for what is lacking raises UnsupportedError; without TELLS nothing ever arrives or
    expires."""
    early_commits: int = 0
    """The number of commits in the middle of a batch: each made durable what was changed before it."""

    # -- queues

    @abstractmethod
    def queues(self) -> Collection[str]:
        """Returns the names of all queues, in no order."""

    @abstractmethod
    def queue(self, qid: str) -> Queue:
        """Returns a queue, to be used at once: after the next request it may be another one. NoSuchQueueError."""

    def in_place(self, qid: str) -> bool:
        """Tells whether a queue is still there: False also when somebody has removed its directory, and nobody has
        noticed yet."""
        return qid in self.queues()

    @abstractmethod
    def create(self, qid: str, options: Options) -> None:
        """Makes a queue. QueueExistsError, BadQueueNameError."""

    def options(self, qid: str) -> Options:
        """Returns the options of a queue, as they are by now. NoSuchQueueError."""
        return self.queue(qid).options

    def configure(self, qid: str, options: Options) -> None:
        """Replaces the options of a queue, durably and at once. NoSuchQueueError, UnsupportedError."""
        raise UnsupportedError(f"options of queues of the storage {self.name!r} cannot be changed")

    @abstractmethod
    def remove(self, qid: str, *, force: bool) -> None:
        """Removes a queue and, with force, what is in it. NoSuchQueueError; QueueNotEmptyError without force."""

    # -- what concerns several queues

    @abstractmethod
    def receive(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int, *, held: bool = False
    ) -> list[Message]:
        """Receives the oldest visible messages of all the queues, ordered by id; each becomes invisible for
        `visibility` (None: its queue's own). At most count, and no more than fit in max_bytes of payload, except for
        the first. held: for a subscriber that is connected to this process: it need not survive anything, and with
        Feature.HELD the messages are visible as soon as the next process opens the engine. NoSuchQueueError."""

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        """Stores a message in other queues too, under its id, ready; queues of the log share its bytes. A queue that
        has the message already is left alone; all the others get it, or none. NoSuchQueueError, NoSuchMessageError,
        QueueFullError; OtherMessageError for a queue in which the id is that of a message with another payload."""
        raise UnsupportedError(f"the storage {self.name!r} cannot copy messages")

    # -- time, durability, others

    @abstractmethod
    def commit(self) -> Effects:
        """Makes durable all that has happened so far, as the durability asks."""

    @abstractmethod
    def effects(self) -> Effects:
        """Returns what has happened since the last call, or the last commit, without a commit."""

    def roll_back(self) -> int:
        """Takes back what was changed since the last commit, as a batch has failed, with whatever error. Returns a
        number: what was changed while `early_commits` was less than that is durable all the same."""
        return 0

    def background_sync(self) -> Callable[[], None] | None:
        """Returns a function that makes durable all that has happened so far, to be called in any thread while the
        engine goes on; None if all is durable, or durability is not INTERVAL."""
        return None

    def begin_upkeep(self) -> Background | None:
        """Does a slice of a few milliseconds of the engine's own work. The caller commits, runs what is returned in any
        thread while the engine goes on, and then gives it to `finish_upkeep`. One at a time."""
        return None

    def finish_upkeep(self, upkeep: Background) -> None:  # noqa: B027 - an engine without such work has nothing to do
        """Takes over what was done in a thread."""

    def figures(self) -> dict[str, float]:
        """Returns what is to be known of the engine as a whole, by the names in docs/protocol.md: what has happened in
        all queues since the start, and how the journal and the disk are."""
        return {}

    def refresh(self) -> None:  # noqa: B027 - an engine that shares nothing has nothing to do
        """Takes notice of what other processes have changed."""

    def fileno(self) -> int | None:
        """Returns a descriptor that becomes readable when `refresh` has something to do, or None."""
        return None

    @abstractmethod
    def expire(self, count: int) -> int:
        """Makes visible what is due, and removes what is too old: at most count messages. Returns how many; 0: nothing
        is due."""

    @abstractmethod
    def close(self) -> None:
        """Leaves everything durable and lets go of it. OSError: the last changes may not survive a power loss;
        UnfinishedError: all of them do, and the next start has something left to do."""
