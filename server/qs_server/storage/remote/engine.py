"""What the storages have in common whose messages are kept by another server, which answers when it likes.

Which queues there are is known here: each has a directory in the root, with its options and nothing else, so that `ls`
shows it and no other storage takes the name. What it holds is at the other server.
"""

import secrets
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar

from ..disk import Disk
from ..engine import (
    Clock,
    Feature,
    Message,
    NoSuchQueueError,
    Options,
    Queue,
    QueueExistsError,
    StorageError,
)
from ..lifecycle import Lifecycle
from ..making import MAKING, make_queue
from ..names import directory_of, qid_of
from ..settings import read_options


class RemoteError(StorageError):
    """The other server is not there, does not answer, or answers that it cannot. The text says which server, what
    happened, and what to do."""


class RemoteEngine(ABC):
    """Finds queues at another server. Each call may take long, and is made in a thread of its own, several at once.
    What a call has returned from has happened, and is as durable as the other server makes it: there is no commit.

    Meanings and errors are those of Engine and Queue. Methods about messages also raise RemoteError; they have tried
    again by then.
    """

    name: ClassVar[str]
    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.HELD, Feature.CLAIM, Feature.MILLISECONDS, Feature.TELLS})

    def __init__(
        self, root: str, *, clock: Clock, disk: Disk | None = None, lifecycle: Lifecycle | None = None
    ) -> None:
        """root: an existing directory, that of all the server's queues. StorageError when a `.queue.toml` is wrong."""
        self._root = root
        self._clock = clock
        self._disk = disk or Disk()
        self._lifecycle = lifecycle
        self.registered: dict[str, Options] = {}
        """The queues that there are. Other threads add and remove some."""
        self._registering = threading.Lock()
        for name in self._disk.directories_in(root):
            if not name.startswith(".") and (qid := qid_of(name)) is not None:
                options = read_options(f"{root}/{name}", "")
                if options.storage == self.name:
                    self.registered[qid] = options

    def describe(self) -> str:
        """What whoever starts a server should know of the storage; nothing when there is nothing to be known."""
        return ""

    # -- queues: what is known here, and what has to be done at the other server

    def queues(self) -> Collection[str]:
        """Returns the names of all queues, in no order."""
        return list(self.registered)  # others change it meanwhile, in other threads

    def options(self, qid: str) -> Options:
        """Returns the options of a queue. NoSuchQueueError."""
        options = self.registered.get(qid)
        if options is None:
            raise NoSuchQueueError(f"there is no queue {qid!r}")
        return options

    def create(self, qid: str, options: Options) -> None:
        """See Engine."""
        options = replace(options, storage=self.name)
        with self._registering:
            if qid in self.registered:
                raise QueueExistsError(f"'{qid}' is already an existing queue")
            make_queue(self._root, qid, options, self._disk, made=lambda: self._make(qid, options))
            self._disk.sync_directory(self._root)
            self.registered[qid] = options

    def remove(self, qid: str, *, force: bool) -> None:
        """See Engine."""
        with self._registering:
            self.options(qid)
            self._unmake(qid, force=force)
            removing = f"{self._root}/{MAKING}{secrets.token_hex(8)}"
            self._disk.rename(f"{self._root}/{directory_of(qid)}", removing)
            self._disk.sync_directory(self._root)  # before it is emptied: its options are there, or it is gone
            shutil.rmtree(removing, ignore_errors=True)
            del self.registered[qid]

    @abstractmethod
    def _make(self, qid: str, options: Options) -> None:
        """Makes a queue at the other server. One that is there already, with what it holds, is taken up as it is.
        UnsupportedError for options that it cannot honour, BadQueueNameError."""

    @abstractmethod
    def _unmake(self, qid: str, *, force: bool) -> None:
        """Removes a queue at the other server; one that is not there is no error. QueueNotEmptyError without force."""

    @abstractmethod
    def queue(self, qid: str) -> Queue:
        """Returns a queue. NoSuchQueueError."""

    # -- messages

    @abstractmethod
    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        """See Engine."""

    @abstractmethod
    def receive_within(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float,
        stop: threading.Event,
    ) -> list[Message]:
        """Receives as Engine.receive does; when there is nothing, waits until there is: at most so many seconds, and
        not much more than a second after `stop` is set. Does not ask again and again where the other server can be
        waited for."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the connections."""
