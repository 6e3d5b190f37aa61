"""The root directory: which queues there are, each a directory in it; made, removed, and changed by other hands."""

import contextlib
import errno
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from threading import Thread

from .activity import Activity
from .directory_queue import DirectoryQueue
from .dirq.message_queue import open_dirq_queue
from .disk import Disk
from .engine import (
    SECOND,
    Clock,
    Durability,
    Engine,
    NoSuchQueueError,
    Options,
    QueueExistsError,
    QueueNotEmptyError,
    StorageError,
    UnsupportedError,
)
from .files.queue import open_files_queue
from .journal.intake import PRIVATE
from .lifecycle import Lifecycle
from .making import MAKING, make_queue
from .names import directory_of, parse_message, qid_of
from .nullqueue import NullQueue
from .queues import EngineQueue
from .settings import read_options, write_options
from .shared import Shared
from .watch import Watch

_logger = logging.getLogger(__name__)
_KINDS: dict[str, Callable[[str, str, Options, Shared], EngineQueue]] = {
    "files": open_files_queue,
    "dirq-simple": open_dirq_queue,
    "dirq": open_dirq_queue,
    "null": NullQueue,
}
STORAGES = ("journal", *_KINDS)
"""Kinds of queues: the options of each say which it is."""
_ELSEWHERE = frozenset({"memcached", "sqs"})
"""Kinds of queues that other engines keep: each has a directory here, so that its name is taken."""
_REMOVING = ".removing-"
_LEFT_AFTER = 60
"""Seconds without change after which nobody can be at work on a directory that is being made or removed."""
_REPORTS = 4000
"""Reports of our own changes that may wait to be read. The kernel keeps 16,384, then it drops them."""
_FEW = 1000
"""Messages whose files are removed within the request that removes their queue: some 20 ms."""


class RootDirectory(Engine):
    """The part of an engine that is about queues, where they are directories in one."""

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        durability: Durability,
        disk: Disk | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        """root: an existing directory. OSError when it cannot be used, StorageError when a `.queue.toml` is wrong."""
        self._root = root
        self._clock = clock
        self._durability = durability
        self._disk = disk or Disk()
        self._watch = Watch()
        self._activity = Activity()
        self._queues: dict[str, EngineQueue] = {}
        self._root_dirty = True  # whoever was killed may have left names that nothing has made durable
        self._gone: set[str] = set()  # queues that waiters have to be told of
        self._failures: dict[tuple[str, int], OSError] = {}
        self._shared = Shared(clock, durability, self._disk, self._watch, self._activity, self._reopen, lifecycle)
        self._watch.add(root, self, of_queues=True)
        self._scan(strict=True)

    def _scan(self, *, strict: bool) -> None:
        for name in self._disk.directories_in(self._root):
            if name.startswith((MAKING, _REMOVING)):
                self._clear_left_behind(f"{self._root}/{name}")
            elif not name.startswith("."):
                self._open(name, strict=strict)

    def _clear_left_behind(self, path: str) -> None:
        """What a crash interrupted, unless another server is just at it."""
        try:
            idle = self._clock() / SECOND - self._disk.lstat(path).st_mtime
        except FileNotFoundError:
            return
        if idle > _LEFT_AFTER:
            shutil.rmtree(path, ignore_errors=True)

    def _open(self, directory: str, *, strict: bool) -> None:
        """Takes up a queue's directory. strict: what is wrong with it is raised, else logged."""
        qid = qid_of(directory)
        path = f"{self._root}/{directory}"
        if qid is None:
            _logger.warning("%s is no queue: %r cannot be the directory of any name", path, directory)
            return
        try:
            options = read_options(path, self.name)
            if options.storage in _ELSEWHERE:
                return
            if options.storage not in STORAGES:
                known = ", ".join(map(repr, (*STORAGES, *sorted(_ELSEWHERE))))
                raise StorageError(f"{path}/.queue.toml: there is no storage {options.storage!r}; there are {known}")
            self._queues[qid] = self._take_up(path, qid, options)
        except (OSError, StorageError) as error:
            if strict:
                raise
            _logger.error("%s cannot be used: %s", path, error)

    def _take_up(self, path: str, qid: str, options: Options) -> EngineQueue:
        """The queue in a directory."""
        return _KINDS[options.storage](path, qid, options, self._shared)

    def _forget(self, qid: str) -> None:
        queue = self._queues.pop(qid, None)
        if queue is not None:
            self._gone.add(qid)
            for mid in queue.close():
                self._failures[qid, mid] = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), queue.path)

    def _reopen(self, qid: str) -> None:
        """A queue's directory is gone, or another one is in its place."""
        self._forget(qid)
        directory = directory_of(qid)
        if _is_directory(f"{self._root}/{directory}"):
            self._open(directory, strict=False)

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """A directory has been made, renamed or removed (from Watch)."""
        qid = qid_of(os.fsdecode(name))
        if qid is not None and not (qid in self._queues and self._queues[qid].in_place()):
            self._reopen(qid)

    def rescan(self) -> None:
        """Reports were lost (from Watch)."""
        for qid, queue in list(self._queues.items()):
            if not queue.in_place():
                self._reopen(qid)
        for name in self._disk.directories_in(self._root):
            if not name.startswith(".") and qid_of(name) not in self._queues:
                self._open(name, strict=False)

    def vanished(self) -> None:
        """The root is gone (from Watch). Every operation will say so; those on the journal, until a restart."""
        _logger.error("%s is gone", self._root)

    # -- queues ---------------------------------------------------------------------------------------------------

    def queues(self) -> Collection[str]:
        return self._queues.keys()

    def in_place(self, qid: str) -> bool:
        queue = self._queues.get(qid)
        return queue is not None and queue.in_place()

    def queue(self, qid: str) -> EngineQueue:
        queue = self._queues.get(qid)
        if queue is None or len(self._watch.expected) > _REPORTS:
            self.refresh()  # somebody may just have made it
            queue = self._queues.get(qid)
            if queue is None:
                raise NoSuchQueueError(f"there is no queue {qid!r}")
        return queue

    def _publish_staged(self) -> None:
        """Makes visible what was pushed to any queue."""
        staged, self._activity.staged = self._activity.staged, {}
        for qid, flush in staged.items():
            for mid, error in flush().items():
                self._failures[qid, mid] = error

    def create(self, qid: str, options: Options) -> None:
        directory = directory_of(qid)
        if qid in self._queues:
            raise QueueExistsError(f"'{qid}' is already an existing queue")
        if options.storage and options.storage not in STORAGES:
            known = ", ".join(map(repr, STORAGES))
            raise UnsupportedError(f"there is no storage {options.storage!r}; this server has {known}")
        options = replace(options, storage=options.storage or self.name)
        opened = partial(self._open, directory, strict=True)
        make_queue(self._root, qid, options, self._disk, made=opened)
        self._root_dirty = True

    def remove(self, qid: str, *, force: bool) -> None:
        queue = self.queue(qid)
        self._publish_staged()
        self.refresh()
        if not force and len(queue):
            raise QueueNotEmptyError(f"queue {qid!r} is not empty: it holds {len(queue)} messages")
        if not force:
            _remove_empty(queue, self._disk)
            self._forget(qid)
            self._root_dirty = True
            return
        removing = f"{self._root}/{_REMOVING}{secrets.token_hex(8)}"
        held = len(queue)
        self._disk.rename(queue.path, removing)
        if self._durability is Durability.ALWAYS:
            try:
                self._disk.sync_directory(self._root)  # before it is emptied: the queue is all there, or gone
            except OSError:
                self._disk.rename(removing, queue.path)
                raise
        queue.note_removed()
        self._forget(qid)
        self._root_dirty = True
        clear = partial(shutil.rmtree, removing, ignore_errors=True)
        if held <= _FEW:
            clear()
        else:  # nobody shall wait for it; what is left of it when the process ends, the next start removes
            Thread(target=clear, daemon=True).start()


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _remove_empty(queue: EngineQueue, disk: Disk) -> None:
    """Removes the directory of a queue without messages. rmdir refuses in one step what somebody has put there by then,
    so nothing can be lost."""
    try:
        if isinstance(queue, DirectoryQueue):
            queue.dismantle()
        for name in os.listdir(queue.path):
            if not _is_ours(name):
                raise QueueNotEmptyError(f"queue {queue.qid!r} is not empty: its directory holds {name!r}")
        for name in os.listdir(queue.path):
            if _is_ours(name):
                with contextlib.suppress(FileNotFoundError):  # whoever was writing it has finished
                    disk.unlink(f"{queue.path}/{name}")
        disk.rmdir(queue.path)
    except OSError as error:
        write_options(queue.path, queue.options, disk)
        if error.errno == errno.ENOTEMPTY:
            raise QueueNotEmptyError(
                f"queue {queue.qid!r} is not empty: somebody has just put something there"
            ) from None
        raise


def _is_ours(name: str) -> bool:
    """A file that goes with the queue: of the server, or of somebody who has not finished writing a message. Not one
    that is just being taken in."""
    if name.startswith(PRIVATE):
        return False
    return name.startswith(".") or (parse_message(os.fsencode(name)) is not None and name.endswith(".new"))
