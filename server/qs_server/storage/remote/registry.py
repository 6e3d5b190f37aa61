"""The queues of a storage whose messages another server keeps, as this server knows them.

Each queue has a directory in the root, which holds the queue's options and nothing else. So `ls` shows the queue, and
no other storage takes its name.
"""

import secrets
import shutil
import threading
from collections.abc import Callable, Collection
from dataclasses import replace

from ..disk import Disk
from ..engine import NoSuchQueueError, Options, QueueExistsError
from ..making import MAKING, make_queue
from ..names import directory_of, qid_of
from ..settings import read_options


def queues_in(root: str, storages: Collection[str], disk: Disk) -> dict[str, Options]:
    """Returns the queues in a root that have one of these storages, with their options. StorageError when a
    `.queue.toml` is wrong, OSError."""
    found = {}
    for name in disk.directories_in(root):
        if not name.startswith(".") and (qid := qid_of(name)) is not None:
            options = read_options(f"{root}/{name}", "")
            if options.storage in storages:
                found[qid] = options
    return found


class QueueRegistry:
    """Keeps the names and options of one storage's queues. Several threads may use it."""

    def __init__(self, root: str, storage: str, disk: Disk | None = None) -> None:
        """root: an existing directory, that of all the server's queues. StorageError when a `.queue.toml` is wrong."""
        self._root = root
        self._storage = storage
        self._disk = disk or Disk()
        self._changing = threading.Lock()
        self._queues = queues_in(root, [storage], self._disk)
        """Replaced as a whole, so that others can go through it without a lock."""

    def queues(self) -> Collection[str]:
        """Returns the names of all queues; the collection never changes."""
        return self._queues.keys()

    def options(self, qid: str) -> Options:
        """Returns the options of a queue. NoSuchQueueError."""
        options = self._queues.get(qid)
        if options is None:
            raise NoSuchQueueError(f"there is no queue {qid!r}")
        return options

    def create(self, qid: str, options: Options, make: Callable[[Options], None]) -> None:
        """Adds a queue. make: makes it at the other server; if that fails, nothing is added. QueueExistsError,
        BadQueueNameError, OSError."""
        options = replace(options, storage=self._storage)
        with self._changing:
            if qid in self._queues:
                raise QueueExistsError(f"'{qid}' is already an existing queue")
            make_queue(self._root, qid, options, self._disk, made=lambda: make(options))
            self._disk.sync_directory(self._root)
            self._queues = {**self._queues, qid: options}

    def remove(self, qid: str, unmake: Callable[[], None]) -> None:
        """Removes a queue. unmake: removes it at the other server; if that fails, it stays. NoSuchQueueError,
        OSError."""
        with self._changing:
            self.options(qid)
            unmake()
            removed = f"{self._root}/{MAKING}{secrets.token_hex(8)}"
            self._disk.rename(f"{self._root}/{directory_of(qid)}", removed)
            self._disk.sync_directory(self._root)  # before its options are unlinked: they are there, or the name is not
            shutil.rmtree(removed, ignore_errors=True)
            self._queues = {other: kept for other, kept in self._queues.items() if other != qid}
