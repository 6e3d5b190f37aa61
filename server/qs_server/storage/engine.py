"""The interface of an engine, what goes through it, and what it raises.

An engine keeps queues. It is plain synchronous code, called from one thread at a time, and knows nothing of networks.
All times and durations are whole microseconds, times since the Epoch. What an engine cannot do it says in `cannot`.

Making things durable has three steps, so that many requests can share one sync: `push` writes messages where nobody
sees them yet; `flush` makes them visible; `commit` makes all that happened before it survive a power loss. A caller
that wants one thing done at once calls all three. Whatever looks at messages flushes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from .journal.batches import LogBatches
    from .journal.claims import LogClaims

SECOND = 1_000_000
"""Microseconds."""

DEFAULT_VISIBILITY = 30 * SECOND
"""bucker's default window."""

Clock = Callable[[], int]
"""Gives the time in microseconds since the Epoch."""


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


class Durability(Enum):
    """What an answer means. ALWAYS: it survives power loss. INTERVAL: it does after at most 50 ms. NONE: it survives
    the end of the process, not of the machine."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NONE = "none"


class Feature(Enum):
    """What not every engine can. The values are the words of docs/storage.md, where a table says who can what."""

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
    FIGURES = "`queue-stats` is exact, with bytes and the age of the oldest message"
    MILLISECONDS = '`timestamps = "ms"` in `.queue.toml`'
    TELLS = "tells the server of every message that becomes visible, without being asked"


class State(Enum):
    """What `list` can be asked for. NEW: never retrieved, whether visible or delayed."""

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


@dataclass(slots=True)
class Message:
    """A message handed out or looked at. status: ready, delivered, in-flight or delayed; payload: None when it is
    inside a visibility window; visible_at: None when it is visible now."""

    qid: str
    mid: int
    status: str
    receives: int
    pushed_at: int
    visible_at: int | None = None
    payload: bytes | None = None


@dataclass(slots=True)
class Options:
    """Of a queue. visibility: microseconds; capacity: messages, None for no bound."""

    storage: str = ""
    visibility: int = DEFAULT_VISIBILITY
    capacity: int | None = None
    timestamps: str = "us"
    """Unit of the numbers in file names, `us` or `ms`."""
    schema: str = ""
    """Of a queue in the layout of dirq's Queue: the pieces of data of an element, `NAME=TYPE,...`."""
    body: str = ""
    """Which of them is the payload."""


@dataclass(slots=True)
class Stats:
    """Of a queue: messages by state, bytes of payload, age of the oldest message (None: empty), counts since start."""

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


class Background(Protocol):
    """Work of an engine that may be done while it goes on."""

    def run(self) -> None:
        """Does it. Raises nothing."""


class Engine(ABC):
    """Keeps queues. Methods that name a queue raise NoSuchQueueError. Any may raise OSError: then nothing has changed.

    But for `commit`, which can be called again, and `purge`, which removes one message after the other.
    """

    name: ClassVar[str]
    cannot: ClassVar[frozenset[Feature]] = frozenset()
    """What queues of its own storage lack. Without KEEP every queue is always empty, and the others mean nothing; a
    method or an option for what is lacking raises UnsupportedError; without TELLS `next_expiry` and `take_arrivals`
    give nothing."""

    @property
    def quick(self) -> bool:
        """Whether a batch with its commit is over so soon that a thread for it would only cost time."""
        return False

    # -- queues

    @abstractmethod
    def queues(self) -> Collection[str]:
        """The names of all queues, in no order."""

    @abstractmethod
    def options(self, qid: str) -> Options:
        """The options of a queue."""

    def in_place(self, qid: str) -> bool:
        """Whether a queue is still there: False also when somebody has removed its directory, and nobody knows yet."""
        return qid in self.queues()

    @abstractmethod
    def create(self, qid: str, options: Options) -> None:
        """Makes a queue. QueueExistsError, BadQueueNameError."""

    @abstractmethod
    def remove(self, qid: str, *, force: bool) -> None:
        """Removes a queue and, with force, what is in it. QueueNotEmptyError without."""

    # -- messages

    @abstractmethod
    def push(self, qid: str, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, all or none, invisible until `flush`. Their ids, increasing. QueueFullError."""

    def pushes_in_bulk(self, qid: str) -> bool:
        """Whether many messages that one `push` stores are as independent as those of many, only quicker."""
        return False

    @abstractmethod
    def flush(self) -> None:
        """Makes every pushed message visible. Raises nothing: see `take_failures`."""

    @abstractmethod
    def take_failures(self) -> dict[tuple[str, int], OSError]:
        """The pushes that came to nothing when they were flushed since the last call: by queue and first id, why."""

    @abstractmethod
    def receive(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int, *, held: bool = False
    ) -> list[Message]:
        """The oldest visible messages of all the queues, ordered by id; each becomes invisible for `visibility`
        (None: the queue's own). At most count, and no more than fit in max_bytes of payload, but for the first.
        held: for a subscriber that is connected to this process. That need not survive anything; with Feature.HELD
        they are visible as soon as a next process opens the engine."""

    @abstractmethod
    def read(self, qid: str, receipt: Receipt) -> Message:
        """A message and its payload, in whatever state it is, for whoever holds the receipt. NoSuchMessageError,
        StaleReceiptError."""

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        """Stores a message in other queues too, under its id, ready; queues of the log share its bytes. A queue that
        holds the message already is left alone; all the others, or none. NoSuchMessageError, QueueFullError;
        OtherMessageError for a queue in which the id is that of a message with another payload."""
        raise UnsupportedError(f"the storage {self.name!r} cannot copy messages")

    @abstractmethod
    def get(self, qid: str, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """One message. Visible and not peeked: it is received. Invisible: no payload. NoSuchMessageError."""

    @abstractmethod
    def list_mids(self, qid: str, state: State, count: int, after: int) -> list[int]:
        """Ids greater than after (-1: all), oldest first, at most count."""

    @abstractmethod
    def delete(self, qid: str, receipt: Receipt) -> None:
        """Removes a message, in whatever state it is. NoSuchMessageError, StaleReceiptError."""

    @abstractmethod
    def release(self, qid: str, receipt: Receipt, delay: int) -> int | None:
        """Makes a message visible now (None), or after delay (the time). NoSuchMessageError, StaleReceiptError."""

    @abstractmethod
    def extend(self, qid: str, receipt: Receipt, visibility: int | None) -> int:
        """Lets the window of a message in flight end `visibility` from now (None: the queue's own); the time it ends.
        NoSuchMessageError, StaleReceiptError."""

    @abstractmethod
    def purge(self, qid: str, upto: int, count: int) -> int:
        """Removes at most count messages whose ids are at most upto. How many; less than count when none is left."""

    def claims(self, qid: str) -> LogClaims:
        """The claims on a queue's messages."""
        raise self._only_in_the_journal(qid, "has no claims")

    def batches(self, qid: str) -> LogBatches:
        """The batches that producers stage for a queue."""
        raise self._only_in_the_journal(qid, "stages no batches")

    def _only_in_the_journal(self, qid: str, lack: str) -> UnsupportedError:
        return UnsupportedError(
            f"queue {qid!r} has the storage {self.options(qid).storage!r}, which {lack}: only queues of the storage "
            "'journal' can. Make one (qs new --storage journal), or stop the server and change this one "
            "(queue-journal.py convert)"
        )

    @abstractmethod
    def last_mid(self, qid: str) -> int:
        """The greatest id that the queue has given or seen, -1 when none."""

    # -- figures

    def prepare_stats(self, qid: str) -> bool:
        """Does a slice of the work that `stats` needs; False when nothing is left to do."""
        return False

    @abstractmethod
    def stats(self, qid: str) -> Stats:
        """Figures of one queue."""

    # -- time, durability, others

    @abstractmethod
    def commit(self) -> None:
        """With durability ALWAYS: makes durable all that has happened so far. Otherwise cheap."""

    @property
    def early_commits(self) -> int:
        """How many commits there were, since ever, in the middle of a batch: each made durable what was changed before
        it."""
        return 0

    def roll_back(self) -> int:
        """Takes back what was changed since the last commit, as a batch has failed, with whatever error. Returns a
        number: what was changed while `early_commits` was less than that is durable all the same."""
        return 0

    def background_sync(self) -> Callable[[], None] | None:
        """With durability INTERVAL: what makes durable all that has happened so far, to be called in any thread
        while the engine goes on. None when nothing has."""
        return None

    def next_upkeep(self) -> int | None:
        """Returns when `begin_upkeep` should be called next (a time that has passed: now), or None if there is nothing
        to do."""
        return None

    def begin_upkeep(self) -> Background | None:
        """Does a slice of a few milliseconds of the engine's own work. The caller commits, runs what is returned in any
        thread while the engine goes on, and then gives it to `finish_upkeep`. One at a time."""
        return None

    def finish_upkeep(self, upkeep: Background) -> None:  # noqa: B027 - an engine without such work has nothing to do
        """Takes over what was done in a thread."""

    def refresh(self) -> None:  # noqa: B027 - an engine that shares nothing has nothing to do
        """Takes notice of what other processes have changed."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when `refresh` has something to do, or None."""
        return None

    @abstractmethod
    def next_expiry(self) -> int | None:
        """When the next invisible message becomes visible by itself, over all queues."""

    @abstractmethod
    def expire(self, count: int) -> None:
        """Makes visible what is due, at most count messages."""

    @abstractmethod
    def take_arrivals(self) -> dict[str, int]:
        """The queues in which messages have become visible since the last call, and how many are visible now. For those
        that have gone: more than anybody waits for."""

    @abstractmethod
    def close(self) -> None:
        """Leaves everything durable and lets go of it. OSError: the last changes may not survive a power loss;
        UnfinishedError: all of them do, and the next start has something left to do."""
