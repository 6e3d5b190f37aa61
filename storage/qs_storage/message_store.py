"""The messages of a queue in a directory that other programs share, as a layout keeps them.

A layout has two classes: a `MessageStore`, which knows the names and the states of messages, and a `Writer`, which
writes pushed ones. `Publisher` takes pushes for the writer, and `DirectoryQueue` is the whole queue over both.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from .door import Arrival
from .engine import Draft, Headers, Options, Origin, Stats
from .headers import trace_of
from .index.message_index import Index
from .metadata import StoredHeaders
from .policy import PLAIN, refuse_attributes, require_room
from .shared import DirectoryIdentity, EngineContext

FOREIGN = 1 << 62
"""The end of another program's lock, which nobody knows: later than any time, so it is never due."""


Content = tuple[bytes, Headers]
"""A payload, and the headers beside it."""


class MessageState(NamedTuple):
    """The state of a message as a layout keeps it. hidden: 0 for a ready message, FOREIGN, or the end of a window or
    delay, in the layout's unit."""

    hidden: int
    receives: int
    delayed: bool = False


class MessageStore(ABC):
    """The messages in one directory, as a layout keeps them, and their index.

    Ensures:
    1. A change is made only if the message is in the state that the caller has seen. Otherwise a method updates the
       index, and returns False or None.
    2. If a method raises OSError, nothing has changed.
    3. After `commit`, all changes so far survive a power loss.

    Assumes that changes are made within `exclusive`, with the state that `exclusive` has yielded, and that other
    processes change the directory at any time: the disk is the truth.

    Never waits for another process, except for a moment in `exclusive`, and never removes files of other programs."""

    far: ClassVar[int]
    """Ids from here on are mistakes: new ids do not follow them."""
    of_queues: ClassVar[bool] = False
    """True for a directory whose entries are directories: see `Watch.add`."""

    def __init__(self, path: str, qid: str, options: Options, context: EngineContext) -> None:
        """path: an existing directory. OSError."""
        self.path = path
        self.qid = qid
        self.options = options
        self.context = context
        self.index = Index()
        self.last_mid = -1
        """The greatest id that was given or seen, -1 without any."""
        self.origins: dict[int, Origin] = {}
        """The origins of the loaded dead letters, by id."""
        self.reasons: dict[int, str] = {}
        """Why messages were given back, of the loaded ones that say it, by id."""
        self.arrivals: dict[str, Arrival] = {}
        """What other programs have put there and the door has not checked yet, by its name below the directory."""
        self.watch = -1
        """The number of reports about the directory."""
        self._disk = context.disk
        self._activity = context.activity
        self._identity = DirectoryIdentity(path, context.disk)
        self._unsynced: set[int] = set()
        """Messages of which more than the name has to be synced at the next commit."""

    # -- the directory

    def open(self) -> None:
        """Watches the directory, and lists it. Call it once, before anything else."""
        # Before listing: what comes in between is seen twice, not never.
        self.watch = self.context.watch.add(self.path, self, of_queues=self.of_queues)
        try:
            self.rescan()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops watching the directory."""
        self.context.watch.remove(self.watch)
        if self.context.door is not None:
            self.context.door.forget(self)

    @property
    def watched(self) -> bool:
        """True if changes by other processes are reported; if False, call `rescan`."""
        return self.watch >= 0

    def in_place(self) -> bool:
        """Tells whether the directory is still the one that was opened."""
        return self._identity.in_place()

    def vanished(self) -> None:
        """Reports that the directory is gone."""
        self.context.vanished(self.qid)

    @abstractmethod
    def changed(self, name: bytes, *, appeared: bool, moved: bool = False) -> None:
        """Updates the index after a change by another process: see Watched."""

    @abstractmethod
    def rescan(self) -> None:
        """Lists the directory."""

    @abstractmethod
    def dismantle(self) -> None:
        """Removes everything but files from the directory of an empty queue. OSError ENOTEMPTY if there is a
        message."""

    # -- what has to be checked first: see `door.py`

    @property
    def guarded(self) -> bool:
        """True if the queue has a schema, so that what other programs put there has to be checked."""
        return bool(self.options.schema) and self.context.door is not None

    def withhold(self, name: str) -> None:
        """Gives what another program has put into a guarded queue to the door, for a check. name: see Arrival."""
        if self.context.door is not None:
            self.context.door.arrive(self, name)

    @abstractmethod
    def folders(self) -> list[str]:
        """Returns the paths of the directories that have messages. For any thread."""

    @abstractmethod
    def payload_file(self, name: str) -> str:
        """Returns the path of the file with the payload of an arrival. For any thread."""

    @abstractmethod
    def admit(self, name: str) -> None:
        """Takes up an arrival as a message."""

    @abstractmethod
    def refuse(self, name: str) -> str | None:
        """Sets an arrival aside under a name that no message has. Returns the path that it has then; None if another
        program has locked it. FileNotFoundError if it is gone."""

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
        """Returns the greatest id of messages pushed at a time."""

    @abstractmethod
    def number(self, time: int) -> int:
        """Converts a time to a number of the layout."""

    @abstractmethod
    def time(self, number: int) -> int:
        """Converts a number of the layout to a time."""

    @abstractmethod
    def due(self, now: int) -> int | None:
        """Returns a hidden message whose time is over, None without one. now: a number of the layout."""

    @abstractmethod
    def next_expiry(self) -> int | None:
        """Returns when `due` will have a message; None for never."""

    # -- looking at one

    @abstractmethod
    def path_of(self, mid: int) -> str:
        """Returns the path that a message has according to the index."""

    @abstractmethod
    def load(self, mid: int) -> bool:
        """Reads the facts of a message that a listing does not tell, and notes them in the index. Returns False if the
        message is gone."""

    @abstractmethod
    def look(self, mid: int) -> MessageState | None:
        """Reads a message's state; returns None if the message is gone."""

    @abstractmethod
    def is_current(self, mid: int, state: MessageState) -> bool:
        """Tells whether a message is still in a state."""

    @abstractmethod
    def exclusive(self, mid: int, *, removing: bool = False) -> AbstractContextManager[MessageState | None]:
        """Keeps other servers of qs from changing a message, if the layout can. Yields the message's state, None if the
        message is gone. removing: True if receives may be -1, for unknown, in the state."""

    @abstractmethod
    def read(self, mid: int, hidden: int, max_bytes: int | None = None) -> Content | None:
        """Reads a payload and headers. Returns None if the message is in another state than `hidden`, or they have more
        than max_bytes."""

    # -- changing one

    @abstractmethod
    def hide(self, mid: int, state: MessageState, wanted: MessageState, *, durable: bool = True) -> bool:
        """Hides a message, or changes the time until which it is hidden. durable: True to make the change durable with
        the next commit. Returns False if another process was faster."""

    @abstractmethod
    def show(self, mid: int, state: MessageState, receives: int) -> bool:
        """Makes a hidden message ready. receives: the message's new count, 0 for a new message. Returns False if
        another process was faster."""

    @abstractmethod
    def remove(self, mid: int, state: MessageState) -> bool:
        """Removes a message. Returns False if another process was faster."""


@dataclass(slots=True)
class PendingMessage:
    """A pushed message that is written to a file and not visible yet.

    until: when the message will be visible, in the layout's unit, 0 for at once; size: its bytes, with headers;
    temporary: the path of its file; fd: the file's descriptor, -1 if closed; folder: in dirq's layouts, the
    intermediate directory that the message will be in, empty if not chosen yet; headers: where its headers are, None
    without any; trace: for the lifecycle record, see `Lifecycle.note`."""

    mid: int
    until: int
    size: int
    temporary: str
    fd: int = -1
    folder: str = ""
    headers: StoredHeaders | None = None
    trace: str | None = None


class Writer(Protocol):
    """Writes the messages of one queue: `FileWriter` in the vsqs layout, `ElementWriter` in dirq's layouts. The methods
    raise OSError unless they say otherwise."""

    def write(self, draft: Draft) -> PendingMessage:
        """Writes a message that no consumer sees yet. QueueFullError if no id is left."""

    def write_copy(self, mid: int, content: Content, file: str | None) -> PendingMessage:
        """Writes a copy of a message under the same id. file: the path at which the original was a moment ago, None if
        unknown. UnsupportedError for headers that the layout cannot keep; FileExistsError for an id that another
        program is writing; NoSuchQueueError."""

    def sync(self, requests: Collection[list[PendingMessage]]) -> dict[int, OSError]:
        """Makes messages durable; a list as a whole if the layout can. Returns the failed requests by first id."""

    def show(self, pending: PendingMessage) -> None:
        """Makes a message visible."""

    def finish(self, request: list[PendingMessage]) -> None:
        """Ends a request whose messages are all visible."""

    def take_back(self, pending: PendingMessage) -> None:
        """Removes a visible message of a request that failed. Never raises."""

    def discard(self, request: list[PendingMessage]) -> None:
        """Removes messages that are not visible. Never raises."""


MOST_PENDING = 1000
"""Messages, maybe with open files, before they are published: a process may have some thousand files open."""


class Publisher:
    """Takes the pushes of a queue in a directory: writes messages at once, and publishes them together.

    Ensures that the messages of one push become visible together or not at all, as far as the layout can, and that
    `flush` returns each failure after the answer, by the first id of the push. Many pushes are synced together, which
    makes the server fast with many clients.

    Assumes that `publish` is called before anybody looks at messages. Never publishes a message that could not be
    synced."""

    def __init__(self, store: MessageStore, writer: Writer) -> None:
        self.path = store.path
        self.qid = store.qid
        self.options = store.options
        self.store = store
        self.counts = Stats(storage=self.options.storage)
        self._writer = writer
        self._index = store.index
        self._context = store.context
        self._activity = store.context.activity
        self._requests: list[list[PendingMessage]] = []
        self._failed: dict[int, OSError] = {}
        self._peers: dict[int, str] = {}
        """Clients of pending pushes, by first id."""

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Writes messages that are not visible yet, all or none. Returns their ids. UnsupportedError for an attribute
        that the storage cannot keep; QueueFullError, OSError."""
        for draft in drafts:
            if draft[2:] != PLAIN:
                refuse_attributes(self.options.storage, draft)
        if self.options.capacity is not None:
            self.require_room(len(drafts))
        request: list[PendingMessage] = []
        try:
            for draft in drafts:
                pending = self._writer.write(draft)
                request.append(pending)  # what was written before an error is discarded
                if draft.headers:
                    pending.trace = trace_of(draft.headers)
        except BaseException:
            self._writer.discard(request)
            raise
        if request:
            self._add(request)
            if self._context.lifecycle is not None:
                # Remembered now: it is published later, maybe in another client's request.
                self._peers[request[0].mid] = self._context.lifecycle.peer
        if self._activity.pending_messages >= MOST_PENDING:
            self.publish()
        return [pending.mid for pending in request]

    def publish_copy(self, pending: PendingMessage) -> None:
        """Makes a copy visible. OSError: the copy is removed."""
        self._add([pending])
        self.publish()
        # A copy is answered after it is visible, so its error need not wait for a commit.
        if (error := self._failed.pop(pending.mid, None)) is not None:
            raise error

    def require_room(self, count: int) -> None:
        """Checks that the queue has capacity for so many messages. QueueFullError."""
        require_room(self.qid, self.options.capacity, self._with_pending, count, self._context.watch.refresh)

    def _with_pending(self) -> int:
        return len(self._index) + self._count_pending()

    def _count_pending(self) -> int:
        """Counts messages that are not visible yet."""
        return sum(map(len, self._requests))

    def _add(self, request: list[PendingMessage]) -> None:
        self._requests.append(request)
        self._activity.pending[self.qid] = self.flush
        self._activity.pending_messages += len(request)

    def flush(self) -> dict[int, OSError]:
        """Publishes pushed messages. Returns the requests that have failed since the last call, by first id."""
        self.publish()
        failures, self._failed = self._failed, {}
        return failures

    def publish(self) -> None:
        """Makes pushed messages visible. Call it before looking at messages; `flush` returns failures."""
        if not self._requests:
            return
        requests = self._take_pending()
        # All requests together: their syncs share commits of the file system.
        failed = self._writer.sync(requests)
        for request in requests:
            first = request[0].mid
            if first not in failed:
                try:
                    self._make_visible(request)
                    continue
                except OSError as error:
                    failed[first] = error
            self._writer.discard(request)
        self._failed |= failed
        self._peers.clear()

    def _take_pending(self) -> list[list[PendingMessage]]:
        self._activity.pending_messages -= self._count_pending()
        requests, self._requests = self._requests, []
        return requests

    def _make_visible(self, request: list[PendingMessage]) -> None:
        shown: list[PendingMessage] = []
        try:
            for pending in request:
                self._writer.show(pending)
                shown.append(pending)
            self._writer.finish(request)
        except OSError:
            # A list is there as a whole or not at all.
            for pending in shown:
                self._writer.take_back(pending)
            raise
        self.counts.pushed += len(request)
        lifecycle = self._context.lifecycle
        if lifecycle is not None:
            peer = self._peers.get(request[0].mid)  # a copy has none: the caller that stored it makes it visible
            for pending in request:
                lifecycle.note("pushed", self.qid, pending.mid, pending.size, 0, peer=peer, trace=pending.trace)

    def close(self) -> list[int]:
        """Removes messages that are not visible, and stops watching. Returns the first ids of failed requests."""
        requests = self._take_pending()
        for request in requests:
            self._writer.discard(request)
        self._activity.forget(self.qid)
        self.store.close()
        # Messages that were never visible have failed, and the requests that wait for their commit need the errors.
        return [*self._failed, *(request[0].mid for request in requests)]
