"""The queues of one remote storage. Each has a directory in the root with its options only: `ls` shows the queue,
and no other storage takes its name."""

import secrets
import shutil
import threading
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

from ..disk import Disk
from ..engine import NoSuchQueueError, Options, QueueExistsError
from ..names import directory_of, qid_of
from ..settings import MAKING, make_queue, read_options, write_options


def queues_in(root: str, storages: Collection[str], disk: Disk) -> dict[str, Options]:
    """Returns the queues of these storages in a root, with their options. StorageError, OSError."""
    found = {}
    for name in disk.directories_in(root):
        if not name.startswith(".") and (qid := qid_of(name)) is not None:
            options = read_options(f"{root}/{name}", "")
            if options.storage in storages:
                found[qid] = options
    return found


class Counters:
    """Counts pushes, deliveries and deletions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"pushed": 0, "delivered": 0, "deleted": 0}

    def add(self, what: str, count: int = 1) -> None:
        with self._lock:
            self._counts[what] += count

    def counts(self) -> dict[str, int]:
        """Returns the counts by the names of fields of Stats."""
        with self._lock:
            return dict(self._counts)


class RemoteQueue(Protocol):
    options: Options
    """Kept by this server. A change of the object takes effect at once."""

    def make(self) -> None:
        """Makes the queue at the other server, or takes up an existing one. UnsupportedError for bad options."""

    def unmake(self, *, force: bool) -> None:
        """Removes the queue at the other server, if it is there. QueueNotEmptyError without force."""


Q = TypeVar("Q", bound=RemoteQueue)


class QueueRegistry(Generic[Q]):
    """Several threads may use it."""

    def __init__(self, root: str, storage: str, disk: Disk | None, open_queue: Callable[[str, Options], Q]) -> None:
        """root: of all queues; open_queue: returns a queue without asking the other server. StorageError."""
        self._root = root
        self._storage = storage
        self._disk = disk or Disk()
        self._open = open_queue
        self._opened: dict[str, Q] = {}
        self._opening = threading.Lock()
        self._changing = threading.Lock()
        self._options = queues_in(root, [storage], self._disk)
        """Replaced as a whole, so that threads can read it without a lock."""

    def queues(self) -> Collection[str]:
        """Returns a collection that never changes."""
        return self._options.keys()

    def queue(self, qid: str) -> Q:
        """Returns a queue, one object for all threads. NoSuchQueueError."""
        options = self._options.get(qid)
        if options is None:
            raise NoSuchQueueError(f"there is no queue {qid!r}")
        with self._opening:
            queue = self._opened.get(qid)
            if queue is None or queue.options is not options:  # it has been removed and made again
                queue = self._opened[qid] = self._open(qid, options)
            return queue

    def create(self, qid: str, options: Options, make: Callable[[Q], None] | None = None) -> None:
        """See RemoteEngine. make: called instead of the queue's own `make`. OSError."""
        options = replace(options, storage=self._storage)
        with self._changing:
            if qid in self._options:
                raise QueueExistsError(f"'{qid}' is already an existing queue")
            queue = self._open(qid, options)
            made = queue.make if make is None else partial(make, queue)
            make_queue(self._root, qid, options, self._disk, made=made)
            self._disk.sync_directory(self._root)
            with self._opening:
                self._opened[qid] = queue
            self._options = {**self._options, qid: options}

    def configure(self, qid: str, options: Options) -> None:
        """Replaces the options that this server keeps, durably. NoSuchQueueError, OSError."""
        with self._changing:
            queue = self.queue(qid)
            write_options(f"{self._root}/{directory_of(qid)}", options, self._disk)
            for field in fields(Options):
                setattr(queue.options, field.name, getattr(options, field.name))

    def remove(self, qid: str, *, force: bool) -> Q:
        """See RemoteEngine. Returns the removed queue. OSError."""
        with self._changing:
            queue = self.queue(qid)
            queue.unmake(force=force)
            removed = f"{self._root}/{MAKING}{secrets.token_hex(8)}"
            self._disk.rename(f"{self._root}/{directory_of(qid)}", removed)
            self._disk.sync_directory(self._root)  # before its options are unlinked: they are there, or the name is not
            shutil.rmtree(removed, ignore_errors=True)
            self._options = {other: kept for other, kept in self._options.items() if other != qid}
            self._opened.pop(qid, None)
            return queue
