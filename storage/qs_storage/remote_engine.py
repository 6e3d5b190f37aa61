"""Engines whose messages another server keeps: their interface, how they are found, and what those with a directory
in the root for each queue share.

An engine is found by the name of its storage, as an entry point of the group `qs.engines`, of qs or of any other
distribution. An engine is imported only for a server that uses it, so that others do not need its library.
"""

import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from .disk import Disk
from .engine import (
    Clock,
    Draft,
    Feature,
    Message,
    NoSuchQueueError,
    Options,
    Queue,
    QueueExistsError,
    Receipt,
    RemoteError,
    StorageError,
    UnsupportedError,
)
from .names import directory_of, qid_of
from .policy import (
    refuse_dead_letters,
    refuse_options,
    refuse_reason,
    refuse_reject,
    refuse_uncounted,
)
from .settings import MAKING, make_queue, read_options, write_options

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "qs.engines"
"""The group of the entry points. Each names a callable that takes the root, `clock`, and as further named arguments
what the server's flags say of this storage; it returns the engine without asking the other server."""


class RemoteEngine(Protocol):
    """An engine whose messages another server keeps. qs has two, over memcached and SQS; other distributions may have
    more. See Engine and Queue.

    Methods block until the other server has answered, and are called in threads, several at once. There is no commit:
    when a method returns, its change is as durable as the other server makes it. Methods that ask the other server also
    raise RemoteError, after trying again."""

    name: ClassVar[str]
    cannot: ClassVar[frozenset[Feature]]

    def describe(self) -> str:
        """Returns a warning for the log of a start, or an empty text."""

    def queues(self) -> Collection[str]:
        """Returns the names of all queues from memory. The server calls the method for each request, outside of
        threads. The returned collection never changes."""

    def create(self, qid: str, options: Options) -> None:
        """Makes a queue, or takes up an existing one of the other server. QueueExistsError, BadQueueNameError,
        UnsupportedError."""

    def options(self, qid: str) -> Options:
        """Returns a queue's options. Asks the other server for the options that it keeps. NoSuchQueueError."""

    def configure(self, qid: str, options: Options) -> None:
        """Replaces a queue's options: see Engine."""

    def remove(self, qid: str, *, force: bool) -> None:
        """Removes a queue. force: True to remove its messages too. NoSuchQueueError; QueueNotEmptyError without
        force."""

    def queue(self, qid: str) -> Queue:
        """Returns a queue, without asking the other server. NoSuchQueueError."""

    def receive(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float = 0,
        stop: threading.Event | None = None,
        held: bool = False,
        given: bool = False,
    ) -> list[Message]:
        """Receives the oldest visible messages: see Engine.receive. Waits at most `wait` seconds for a message, and
        little more than a second after `stop` is set. Does not poll a server that offers a way to wait. An
        engine without Feature.HELD ignores `held`; one without Feature.GIVEN is never asked for it."""

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        """Stores a message in other queues too: see Engine."""

    def close(self) -> None:
        """Closes the connections. Messages stay at the other server."""


# -- engines that gather requests

T = TypeVar("T")


class Operation(Generic[T]):
    """A request to an engine that gathers requests, and its result.

    Ensures that `result` is there, and never changes, when `done` is called. `done` is called once, in any thread, with
    all operations that have the same `done` and end together. Any thread may wait for it, or stop it. Assumes that an
    operation is submitted once."""

    __slots__ = ("_done", "_ended", "_error", "_result", "stopped")

    def __init__(self) -> None:
        self._done: Callable[[Sequence[Operation[Any]]], None] | None = None
        self._ended: threading.Event | None = None
        self._result: list[T] = []  # a list, as None may be a result
        self._error: Exception | None = None
        self.stopped = False
        """True if nobody wants the result any more: a receive that waits ends soon, without messages. The engine gives
        back what such a receive has got."""

    def on_end(self, done: "Callable[[Sequence[Operation[Any]]], None]") -> None:
        """Sets what is called when the operation has ended. Call it before `submit`. It has to be quick."""
        self._done = done

    def wait(self) -> T:
        """Waits in this thread until the operation has ended, after `begin_wait`. Returns its result, or raises."""
        if self._ended is not None:
            self._ended.wait()
        return self.result()

    def begin_wait(self) -> None:
        """Makes `wait` possible. Call it before `submit`."""
        self._ended = threading.Event()

    def ends_within(self, seconds: float) -> bool:
        """Waits in this thread for the end, after `begin_wait`. Returns False if it has not come after so long."""
        return self._ended is None or self._ended.wait(seconds)

    @property
    def has_ended(self) -> bool:
        return bool(self._result) or self._error is not None

    def result(self) -> T:
        """Returns the result, or raises the error. RemoteError if the operation has not ended."""
        if self._error is not None:
            raise self._error
        if not self._result:
            raise RemoteError("the request was given up, as the server stops or the client has gone; it may be done")
        return self._result[0]

    # -- for the engine

    def succeed(self, result: T) -> None:
        """Sets the result. `end_all` tells of it."""
        self._result.append(result)

    def fail(self, error: Exception) -> None:
        """Sets the error. `end_all` tells of it."""
        self._error = error


def end_all(operations: "Sequence[Operation[Any]]") -> None:
    """Tells of the end of operations whose results are set: once for all with the same `done`."""
    told: dict[Callable[[Sequence[Operation[Any]]], None], list[Operation[Any]]] = {}
    for operation in operations:
        if operation._done is not None:
            told.setdefault(operation._done, []).append(operation)
        if operation._ended is not None:
            operation._ended.set()
    for done, ended in told.items():
        done(ended)


class Push(Operation[list[int]]):
    """Stores messages: see `Queue.push`."""

    __slots__ = ("drafts", "qid")

    def __init__(self, qid: str, drafts: Sequence[Draft]) -> None:
        super().__init__()
        self.qid = qid
        self.drafts = drafts


class Receive(Operation[list[Message]]):
    """Receives messages: see `Engine.receive`. wait: seconds for which the operation waits for a message."""

    __slots__ = (
        "count", "deadline", "given", "held", "max_bytes", "order", "qids", "seen", "visibility", "wait_seconds",
    )  # fmt: skip

    def __init__(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float = 0,
        held: bool = False,
        given: bool = False,
    ) -> None:
        super().__init__()
        self.qids = qids
        self.count = count
        self.visibility = visibility
        self.max_bytes = max_bytes
        self.wait_seconds = wait
        self.held = held
        self.given = given
        self.deadline = 0.0
        """When it ends without messages, by the monotonic clock. The engine sets it."""
        self.order = -1
        """For the engine: its number among those that have begun to wait, -1 before."""
        self.seen: dict[str, int] = {}
        """For the engine: how often messages had come to each queue when the receive was last tried."""


class Delete(Operation[list[StorageError | None]]):
    """Removes messages: see `Queue.delete`. The result has for each receipt what `Queue.delete` would raise, else
    None."""

    __slots__ = ("qid", "receipts")

    def __init__(self, qid: str, receipts: Sequence[Receipt]) -> None:
        super().__init__()
        self.qid = qid
        self.receipts = receipts


class Release(Operation[int | None]):
    """Makes a message visible: see `Queue.release`."""

    __slots__ = ("counts", "delay", "qid", "reason", "receipt")

    def __init__(self, qid: str, receipt: Receipt, delay: int | None, *, counts: bool, reason: str | None) -> None:
        super().__init__()
        self.qid = qid
        self.receipt = receipt
        self.delay = delay
        self.counts = counts
        self.reason = reason


class Reject(Operation[None]):
    """Makes a message a dead letter: see `Queue.reject`."""

    __slots__ = ("qid", "reason", "receipt")

    def __init__(self, qid: str, receipt: Receipt, reason: str | None) -> None:
        super().__init__()
        self.qid = qid
        self.receipt = receipt
        self.reason = reason


class Extend(Operation[int]):
    """Moves the end of a window: see `Queue.extend`."""

    __slots__ = ("qid", "receipt", "visibility")

    def __init__(self, qid: str, receipt: Receipt, visibility: int | None) -> None:
        super().__init__()
        self.qid = qid
        self.receipt = receipt
        self.visibility = visibility


class GatheringEngine(RemoteEngine, Protocol):
    """A remote engine that does many requests together: those that come in one sweep share a transaction.

    Its methods may be called in threads, as those of any remote engine. `submit` needs no thread for each request."""

    def submit(self, operations: Sequence[Operation[Any]]) -> None:
        """Begins operations, and returns at once. They may be done in any order, and together. May be called in any
        thread. Errors are those of the operations."""

    def stop(self, operation: Operation[Any]) -> None:
        """Ends a receive that waits, whose `stopped` was set: soon, and without messages. Does nothing if the operation
        has ended. May be called in any thread."""

    def knows(self, qid: str) -> bool:
        """Tells whether `queues` is complete as far as this queue is concerned. False if the other server has never
        answered since the start: then there may be a queue of this name."""

    def answers(self) -> bool:
        """Tells whether the other server did what the engine has last asked by itself, about once a second. Asks
        nothing."""

    def figures(self) -> Mapping[str, float]:
        """Returns figures of the whole engine by their names in docs/protocol.md. Asks no other server."""


# -- finding an engine


@cache
def installed_engines() -> "Mapping[str, EntryPoint]":
    """Returns the engines of all installed distributions, by the names of their storages. Takes some 50 ms the first
    time, so call it only for a storage that is not one of the root directory."""
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def open_engine(storage: str, root: str, clock: Clock, options: Mapping[str, Any]) -> RemoteEngine | None:
    """Imports and opens an engine, None if none of that name is installed. options: the values of this storage's flags.
    UnsupportedError if the engine cannot be opened, for instance without its library; StorageError, OSError as the
    engine raises."""
    entry = installed_engines().get(storage)
    if entry is None:
        return None
    try:
        engine: RemoteEngine = entry.load()(root, clock=clock, **options)
    except ModuleNotFoundError as error:
        package = entry.dist.name if entry.dist is not None else storage
        raise UnsupportedError(
            f"the storage {storage!r} needs {error.name}, which is not installed here: "
            f"pip install '{package}[{storage}]'"
        ) from None
    except (StorageError, OSError):
        raise
    except Exception as error:  # whatever somebody else's code does
        raise UnsupportedError(f"the storage {storage!r} cannot be used: {entry.value} fails with {error!r}") from error
    return engine


def foreign_queues(root: str, own: Collection[str]) -> dict[str, str]:
    """Returns, by queue, the storages of those queues in a root whose storage is not one of `own`. StorageError,
    OSError."""
    return {qid: found.storage for qid, found in _options_in(root, Disk()).items() if found.storage not in {"", *own}}


def _options_in(root: str, disk: Disk) -> dict[str, Options]:
    names = {qid_of(name): name for name in disk.directories_in(root) if not name.startswith(".")}
    return {qid: read_options(f"{root}/{name}", "") for qid, name in names.items() if qid is not None}


# -- engines with a directory for each queue


class RemoteQueue(Queue):
    """The base of the queues of remote engines; see Queue. Several threads may use one queue, so counts have a lock.

    Its methods also raise RemoteError. An engine's own class has the methods that ask the other server."""

    push_payloads: ClassVar[None] = None
    claims: None = None
    batches: None = None

    def __init__(self, qid: str, options: Options) -> None:
        """options: those that this server keeps. A change of the object takes effect at once."""
        self.qid = qid
        self.options = options
        self._counting = threading.Lock()
        self._counts = {"pushed": 0, "delivered": 0, "deleted": 0}

    def make(self) -> None:
        """Makes the queue at the other server, or takes up an existing one. UnsupportedError for bad options."""
        raise NotImplementedError

    def unmake(self, *, force: bool) -> None:
        """Removes the queue at the other server, if it exists there. QueueNotEmptyError without force."""
        raise NotImplementedError

    def count(self, what: str, number: int = 1) -> None:
        """Counts messages that this server has pushed, delivered or deleted."""
        with self._counting:
            self._counts[what] += number

    def counts(self) -> dict[str, int]:
        """Returns the counts by the names of fields of Stats."""
        with self._counting:
            return dict(self._counts)

    def check_release(self, *, count: bool, reason: str | None) -> None:
        """Refuses a release that is not counted, or has a reason. UnsupportedError."""
        refuse_uncounted(self.options.storage, count=count)
        refuse_reason(self.options.storage, reason)

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        raise refuse_reject(self.options.storage)

    def prepare_stats(self) -> bool:
        return False


Q = TypeVar("Q", bound=RemoteQueue)


class RootedEngine(RemoteEngine, Generic[Q]):
    """The queues of a remote engine. Each has a directory in the root with its options only: `ls` shows the queue, and
    no other storage takes its name.

    Ensures that several threads may use the engine: one at a time makes or removes queues, and all may read.

    A subclass has `open_queue`, and may override `create`, `options`, `configure` and `remove`."""

    name: ClassVar[str]

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        """root: the directory of all queues. StorageError, OSError."""
        self.root = root
        self._disk = disk or Disk()
        self._opened: dict[str, Q] = {}
        self._opening = threading.Lock()
        self._changing = threading.Lock()
        self._options = {
            qid: options for qid, options in _options_in(root, self._disk).items() if options.storage == self.name
        }
        """Replaced as a whole, so that threads can read it without a lock."""

    def open_queue(self, qid: str, options: Options) -> Q:
        """Returns a queue without asking the other server. BadQueueNameError."""
        raise NotImplementedError

    def check_options(self, options: Options) -> None:
        """Refuses options that only other storages have. UnsupportedError."""
        refuse_dead_letters(options)
        refuse_options(options)

    def queues(self) -> Collection[str]:
        return self._options.keys()

    def queue(self, qid: str) -> Q:
        """Returns a queue, one object for all threads. NoSuchQueueError."""
        options = self._options.get(qid)
        if options is None:
            raise NoSuchQueueError(f"there is no queue {qid!r}")
        with self._opening:
            queue = self._opened.get(qid)
            if queue is None or queue.options is not options:  # it has been removed and made again
                queue = self._opened[qid] = self.open_queue(qid, options)
            return queue

    def create(self, qid: str, options: Options) -> None:
        """Makes a queue, or takes up an existing one of the other server: see RemoteEngine. OSError."""
        options = replace(options, storage=self.name)
        self.check_options(options)
        self.add(qid, options, lambda queue: queue.make())

    def add(self, qid: str, options: Options, make: Callable[[Q], None]) -> None:
        """Adds a queue. make: makes the queue at the other server. QueueExistsError, OSError."""
        with self._changing:
            if qid in self._options:
                raise QueueExistsError(f"'{qid}' is already an existing queue")
            queue = self.open_queue(qid, options)
            make_queue(self.root, qid, options, self._disk, made=lambda: make(queue))
            self._disk.sync_directory(self.root)
            with self._opening:
                self._opened[qid] = queue
            # A new dict: readers in other threads have the old one, as it was.
            self._options = {**self._options, qid: options}

    def options(self, qid: str) -> Options:
        return self.queue(qid).options

    def configure(self, qid: str, options: Options) -> None:
        """Replaces the options that this server keeps, durably. NoSuchQueueError, OSError."""
        with self._changing:
            queue = self.queue(qid)
            write_options(f"{self.root}/{directory_of(qid)}", options, self._disk)
            for field in fields(Options):
                setattr(queue.options, field.name, getattr(options, field.name))

    def remove(self, qid: str, *, force: bool) -> None:
        """Removes a queue here and at the other server: see RemoteEngine. OSError."""
        with self._changing:
            self.queue(qid).unmake(force=force)
            # Under a name that no queue has, so that a crash leaves nothing that looks like one.
            removed = f"{self.root}/{MAKING}{secrets.token_hex(8)}"
            self._disk.rename(f"{self.root}/{directory_of(qid)}", removed)
            self._disk.sync_directory(self.root)  # before its options are unlinked: they are there, or the name is not
            shutil.rmtree(removed, ignore_errors=True)
            self._options = {other: kept for other, kept in self._options.items() if other != qid}
            self._opened.pop(qid, None)
