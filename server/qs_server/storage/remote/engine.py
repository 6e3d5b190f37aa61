"""What the storages have in common whose messages are kept by another server, which answers when it likes.

Which queues there are is known here: each has a directory in the root, with its options and nothing else, so that `ls`
shows it and no other storage takes the name. What it holds is at the other server.
"""

import secrets
import shutil
import threading
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar

from ..disk import Disk
from ..engine import (
    Clock,
    Engine,
    Feature,
    Message,
    NoSuchQueueError,
    Options,
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


class RemoteEngine(Engine):
    """An engine whose every call may take long: each is made in a thread of its own, several at once, and what it has
    returned from has happened: `flush` and `commit` have nothing to do.

    Beside what every engine raises, methods about messages raise RemoteError; they have tried again by then.
    """

    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.HELD, Feature.CLAIM, Feature.MILLISECONDS, Feature.TELLS})

    def __init__(
        self, root: str, *, clock: Clock, disk: Disk | None = None, lifecycle: Lifecycle | None = None
    ) -> None:
        """root: an existing directory, that of all the server's queues. StorageError when a `.queue.toml` is wrong."""
        self._root = root
        self._clock = clock
        self._disk = disk or Disk()
        self._lifecycle = lifecycle
        self._registered: dict[str, Options] = {}
        self._registering = threading.Lock()
        for name in self._disk.directories_in(root):
            if not name.startswith(".") and (qid := qid_of(name)) is not None:
                options = read_options(f"{root}/{name}", "")
                if options.storage == self.name:
                    self._registered[qid] = options

    def describe(self) -> str:
        """What whoever starts a server should know of the storage; nothing when there is nothing to be known."""
        return ""

    # -- queues: what is known here, and what has to be done at the other server

    def queues(self) -> Collection[str]:
        return list(self._registered)  # others change it meanwhile, in other threads

    def options(self, qid: str) -> Options:
        options = self._registered.get(qid)
        if options is None:
            raise NoSuchQueueError(f"there is no queue {qid!r}")
        return options

    def create(self, qid: str, options: Options) -> None:
        options = replace(options, storage=self.name)
        with self._registering:
            if qid in self._registered:
                raise QueueExistsError(f"'{qid}' is already an existing queue")
            make_queue(self._root, qid, options, self._disk, made=lambda: self._make(qid, options))
            self._disk.sync_directory(self._root)
            self._registered[qid] = options

    def remove(self, qid: str, *, force: bool) -> None:
        with self._registering:
            self.options(qid)
            self._unmake(qid, force=force)
            removing = f"{self._root}/{MAKING}{secrets.token_hex(8)}"
            self._disk.rename(f"{self._root}/{directory_of(qid)}", removing)
            self._disk.sync_directory(self._root)  # before it is emptied: its options are there, or it is gone
            shutil.rmtree(removing, ignore_errors=True)
            del self._registered[qid]

    @abstractmethod
    def _make(self, qid: str, options: Options) -> None:
        """Makes a queue at the other server. One that is there already, with what it holds, is taken up as it is.
        UnsupportedError for options that it cannot honour, BadQueueNameError."""

    @abstractmethod
    def _unmake(self, qid: str, *, force: bool) -> None:
        """Removes a queue at the other server; one that is not there is no error. QueueNotEmptyError without force."""

    # -- messages

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
        """As `receive`; when there is nothing, waits until there is: at most so many seconds, and not much more than a
        second after `stop` is set. Does not ask again and again where the other server can be waited for."""

    # -- what a remote engine has nothing to do for

    def flush(self) -> None:
        """Every push is visible."""

    def take_failures(self) -> dict[tuple[str, int], OSError]:
        return {}

    def commit(self) -> None:
        """Every call is as durable as the other server makes it."""

    def next_expiry(self) -> int | None:
        return None

    def expire(self, count: int) -> None:
        """Windows end at the other server."""

    def take_arrivals(self) -> dict[str, int]:
        return {}
