"""The messages of a queue in a directory that other programs share, as a layout keeps them.

A layout has two classes: a `MessageStore`, which knows the names and the states of messages, and a `Writer`, which
writes pushed ones. `DirectoryQueue` is the queue over both.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from .engine import Draft, Options, Origin
from .index.message_index import Index
from .shared import DirectoryIdentity, Shared

FOREIGN = 1 << 62
"""The end of another program's lock, which nobody knows."""


class MessageState(NamedTuple):
    """hidden: 0 when it is ready, FOREIGN, or the end of a window or delay, in the layout's unit."""

    hidden: int
    receives: int
    delayed: bool = False


class MessageStore(ABC):
    """The messages in one directory, and their index.

    The disk is the truth, and other processes change it at any time: a method returns False or None if a message is not
    as it has to be, and has updated the index. Methods may raise OSError; then nothing has changed. Changes are made
    within `exclusive`, with the state that it gave. It never waits for another process, except for a moment in
    `exclusive`, and never removes what is not its own.
    """

    far: ClassVar[int]
    """Ids from here on are mistakes: no id of ours follows them."""
    of_queues: ClassVar[bool] = False
    """Which changes `Watch` reports."""

    def __init__(self, path: str, qid: str, options: Options, shared: Shared) -> None:
        """path: an existing directory. OSError."""
        self.path = path
        self.qid = qid
        self.options = options
        self.shared = shared
        self.index = Index()
        self.last_mid = -1
        """The greatest id that was given or seen, -1: none."""
        self.origins: dict[int, Origin] = {}
        """Those of the loaded dead letters, by id."""
        self.reasons: dict[int, str] = {}
        """Why messages were given back, of the loaded ones that say it, by id."""
        self.watch = -1
        """The number of reports about the directory."""
        self._disk = shared.disk
        self._activity = shared.activity
        self._identity = DirectoryIdentity(path, shared.disk)
        self._unsynced: set[int] = set()
        """Messages of which more than the name has to be synced at the next commit."""

    # -- the directory

    def open(self) -> None:
        """Watches the directory, and lists it. Call it once, before anything else."""
        # Before listing: what comes in between is seen twice, not never.
        self.watch = self.shared.watch.add(self.path, self, of_queues=self.of_queues)
        try:
            self.rescan()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops the reports."""
        self.shared.watch.remove(self.watch)

    @property
    def watched(self) -> bool:
        """False: nothing is reported, so `rescan` has to be called."""
        return self.watch >= 0

    def in_place(self) -> bool:
        """Tells whether the directory is still the one that was opened."""
        return self._identity.in_place()

    def vanished(self) -> None:
        """See Watched."""
        self.shared.vanished(self.qid)

    @abstractmethod
    def changed(self, name: bytes, *, appeared: bool) -> None:
        """See Watched."""

    @abstractmethod
    def rescan(self) -> None:
        """Lists the directory."""

    @abstractmethod
    def dismantle(self) -> None:
        """Removes what is no file from the directory of an empty queue. OSError ENOTEMPTY if there is a message."""

    @abstractmethod
    def commit(self) -> None:
        """Makes all changes durable."""

    # -- ids and times

    def arrived(self) -> None:
        """Announces that there may be visible messages."""
        self._activity.arrived.add(self.qid)

    def saw(self, mid: int) -> None:
        """Makes the next ids greater than this one."""
        if self.last_mid < mid < self.far:
            self.last_mid = mid

    @abstractmethod
    def pushed_at(self, mid: int) -> int:
        """Returns the time in an id: microseconds since the Epoch."""

    @abstractmethod
    def last_at(self, time: int) -> int:
        """Returns the greatest id of that time."""

    @abstractmethod
    def number(self, time: int) -> int:
        """Converts a time to a number of the layout."""

    @abstractmethod
    def time(self, number: int) -> int:
        """Converts a number of the layout to a time."""

    @abstractmethod
    def due(self, now: int) -> int | None:
        """Returns a hidden message whose time is over, or None. now: a number of the layout."""

    @abstractmethod
    def next_expiry(self) -> int | None:
        """Returns when `due` has a message; None: never."""

    # -- looking at one

    @abstractmethod
    def path_of(self, mid: int) -> str:
        """Returns a message's path by the index."""

    @abstractmethod
    def load(self, mid: int) -> bool:
        """Loads into the index what a listing does not tell. False if the message is gone."""

    @abstractmethod
    def look(self, mid: int) -> MessageState | None:
        """Reads a message's state; None if it is gone."""

    @abstractmethod
    def is_current(self, mid: int, state: MessageState) -> bool:
        """Tells whether the message is still in that state."""

    @abstractmethod
    def exclusive(self, mid: int, *, removing: bool = False) -> AbstractContextManager[MessageState | None]:
        """Keeps other servers of ours from changing a message, if the layout can. Gives its state, None if it is
        gone. removing: then receives may be -1, for unknown."""

    @abstractmethod
    def read(self, mid: int, hidden: int, max_bytes: int | None = None) -> bytes | None:
        """Reads a payload. hidden: the state it has to have. None in another state, or over max_bytes."""

    # -- changing one

    @abstractmethod
    def hide(self, mid: int, state: MessageState, wanted: MessageState, *, durable: bool = True) -> bool:
        """Hides a message, or changes until when. durable: with the next commit. False if another was faster."""

    @abstractmethod
    def show(self, mid: int, state: MessageState, receives: int) -> bool:
        """Makes a hidden message ready. receives: its new count, 0: it is new. False if another process was faster."""

    @abstractmethod
    def remove(self, mid: int, state: MessageState) -> bool:
        """Returns False if another process was faster."""


@dataclass(slots=True)
class Staged:
    """A written message that is not visible. until: when it will be, in the layout's unit, 0: at once; size: bytes;
    temporary: its path; fd: of its file, -1: closed; folder: of dirq, the intermediate directory to be, empty: not
    chosen yet."""

    mid: int
    until: int
    size: int
    temporary: str
    fd: int = -1
    folder: str = ""


class Writer(Protocol):
    """Writes the messages of one queue. OSError."""

    def stage(self, draft: Draft) -> Staged:
        """Writes a message that no consumer sees. QueueFullError if no id is left."""

    def write_copy(self, mid: int, payload: bytes, file: str | None) -> Staged:
        """Writes a copy under its id. file: the original's path a moment ago, or None. FileExistsError for an id
        that somebody is writing; NoSuchQueueError."""

    def sync(self, requests: Collection[list[Staged]]) -> dict[int, OSError]:
        """Makes messages durable, a list as a whole if the layout can. Returns the failed requests by first id."""

    def show(self, staged: Staged) -> None:
        """Makes a message visible."""

    def finish(self, request: list[Staged]) -> None:
        """Ends a request after all its messages are visible."""

    def take_back(self, staged: Staged) -> None:
        """Removes a visible message of a request that failed. Raises nothing."""

    def discard(self, request: list[Staged]) -> None:
        """Removes messages that are not visible. Raises nothing."""
