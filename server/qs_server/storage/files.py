"""The `files` engine: a directory of queues, each a directory in the vsqs layout.

Several servers, and any vsqs process, may share the directory while they run.
"""

import errno
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from threading import Thread

from .activity import Activity
from .directory import Shared
from .disk import Disk
from .engine import (
    SECOND,
    Clock,
    Draft,
    Durability,
    Engine,
    Message,
    NoSuchQueueError,
    Options,
    QueueExistsError,
    QueueNotEmptyError,
    Receipt,
    State,
    Stats,
    StorageError,
    UnsupportedError,
)
from .filequeue import FileQueue
from .names import directory_of, parse_message, qid_of
from .settings import read_options, write_options
from .watch import Watch

_logger = logging.getLogger(__name__)
_MAKING = ".making-"
_REMOVING = ".removing-"
_LEFT_AFTER = 60
"""Seconds without change after which nobody can be at work on a directory that is being made or removed."""
_STAGED = 1000
"""Messages that are being written, each with an open file, before they are made visible."""
_REPORTS = 4000
"""Reports of our own changes that may wait to be read. The kernel keeps 16,384, then it drops them."""
_FEW = 1000
"""Messages whose files are removed within the request that removes their queue: some 20 ms."""


class FilesEngine(Engine):
    """Every operation is the file operation, at once."""

    name = "files"

    def __init__(self, root: str, *, clock: Clock, durability: Durability, disk: Disk | None = None) -> None:
        """root: an existing directory. OSError when it cannot be used, StorageError when a `.queue.toml` is wrong."""
        self._root = root
        self._clock = clock
        self._durability = durability
        self._disk = disk or Disk()
        self._watch = Watch()
        self._activity = Activity()
        self._queues: dict[str, FileQueue] = {}
        self._root_dirty = False
        self._staged: dict[str, FileQueue] = {}
        self._staged_count = 0
        self._gone: set[str] = set()
        self._failures: dict[tuple[str, int], OSError] = {}
        self._shared = Shared(clock, durability, self._disk, self._watch, self._activity, self._reopen)
        self._watch.add(root, self, of_queues=True)
        self._scan(strict=True)

    # -- the root directory ---------------------------------------------------------------------------------------

    def _scan(self, *, strict: bool) -> None:
        for name in self._disk.directories_in(self._root):
            if name.startswith((_MAKING, _REMOVING)):
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
            if options.storage != self.name:
                raise StorageError(f"{path}/.queue.toml: storage {options.storage!r} is not known here")
            self._queues[qid] = FileQueue(path, qid, options, self._shared)
        except (OSError, StorageError) as error:
            if strict:
                raise
            _logger.error("%s cannot be used: %s", path, error)

    def _forget(self, qid: str) -> None:
        queue = self._queues.pop(qid, None)
        self._staged.pop(qid, None)
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
        """The root is gone (from Watch). Every operation will say so."""
        _logger.error("%s is gone", self._root)

    # -- queues ---------------------------------------------------------------------------------------------------

    def queues(self) -> Iterable[str]:
        return self._queues.keys()

    def options(self, qid: str) -> Options:
        return self._queue(qid).options

    def _queue(self, qid: str) -> FileQueue:
        if qid not in self._queues:
            self.refresh()  # somebody may just have made it
        elif self._watch.pending > _REPORTS:
            self.refresh()
        queue = self._queues.get(qid)
        if queue is None:
            raise NoSuchQueueError(f"there is no queue {qid!r}")
        return queue

    def create(self, qid: str, options: Options) -> None:
        directory = directory_of(qid)
        path = f"{self._root}/{directory}"
        if qid in self._queues or os.path.lexists(path):
            raise QueueExistsError(f"'{qid}' is already an existing queue")
        if options.storage not in ("", self.name):
            raise UnsupportedError(f"there is no storage {options.storage!r}; this server has {self.name!r}")
        options = replace(options, storage=self.name)
        making = f"{self._root}/{_MAKING}{secrets.token_hex(8)}"
        self._disk.mkdir(making)
        try:
            self._make(making, options)
            _rename_new(making, path, self._disk)  # whole or not at all
            try:
                self._open(directory, strict=True)
            except BaseException:
                self._disk.rename(path, making)
                raise
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        self._root_dirty = True

    def _make(self, path: str, options: Options) -> None:
        sync = self._durability is Durability.ALWAYS
        write_options(path, options, self._disk, sync=sync)
        if sync:
            self._disk.sync_directory(path)

    def remove(self, qid: str, *, force: bool) -> None:
        queue = self._queue(qid)
        self.flush()
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
        self._forget(qid)
        self._root_dirty = True
        clear = partial(shutil.rmtree, removing, ignore_errors=True)
        if held <= _FEW:
            clear()
        else:  # nobody shall wait for it; what is left of it when the process ends, the next start removes
            Thread(target=clear, daemon=True).start()

    # -- messages -------------------------------------------------------------------------------------------------

    def push(self, qid: str, drafts: Sequence[Draft]) -> list[int]:
        queue = self._queue(qid)
        mids = queue.push(drafts)
        self._staged[qid] = queue
        self._staged_count += len(mids)
        if self._staged_count >= _STAGED:
            self.flush()
        return mids

    def flush(self) -> None:
        if not self._staged:
            return
        staged, self._staged = self._staged, {}
        self._staged_count = 0
        for qid, queue in staged.items():
            for mid, error in queue.flush().items():
                self._failures[qid, mid] = error

    def take_failures(self) -> dict[tuple[str, int], OSError]:
        if not self._failures:
            return {}
        failures, self._failures = self._failures, {}
        return failures

    def receive(self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int) -> list[Message]:
        queues = [self._queue(qid) for qid in dict.fromkeys(qids)]
        self.flush()
        for queue in queues:
            queue.expire()
        found: list[Message] = []
        try:
            _take_oldest(queues, found, count, visibility, max_bytes)
        except OSError:
            if not found:
                raise  # else those that were received are handed out; the next call says it again
        return found

    def get(self, qid: str, mid: int, *, peek: bool, visibility: int | None) -> Message:
        self.flush()
        return self._queue(qid).get(mid, peek=peek, visibility=visibility)

    def list_mids(self, qid: str, state: State, count: int, after: int) -> list[int]:
        self.flush()
        return self._queue(qid).list_mids(state, count, after)

    def delete(self, qid: str, receipt: Receipt) -> None:
        self.flush()
        self._queue(qid).delete(receipt)

    def release(self, qid: str, receipt: Receipt, delay: int) -> int | None:
        self.flush()
        return self._queue(qid).release(receipt, delay)

    def extend(self, qid: str, receipt: Receipt, visibility: int | None) -> int:
        self.flush()
        return self._queue(qid).extend(receipt, visibility)

    def purge(self, qid: str, upto: int, count: int) -> int:
        self.flush()
        return self._queue(qid).purge(upto, count)

    def last_mid(self, qid: str) -> int:
        return self._queue(qid).last_mid

    # -- figures, time, durability --------------------------------------------------------------------------------

    def prepare_stats(self, qid: str) -> bool:
        return self._queue(qid).prepare_stats()

    def stats(self, qid: str) -> Stats:
        self.flush()
        return self._queue(qid).stats()

    def commit(self) -> None:
        self.flush()
        if self._durability is not Durability.ALWAYS:
            return
        dirty, self._activity.dirty = self._activity.dirty, set()
        failure: OSError | None = None
        for qid in dirty:
            queue = self._queues.get(qid)
            try:
                if queue is not None:
                    queue.commit()
            except FileNotFoundError:
                self._reopen(qid)  # somebody has removed the whole queue, and with it what there was to sync
            except OSError as error:
                failure = error  # the others are synced all the same
                self._activity.dirty.add(qid)
        if self._root_dirty:
            self._disk.sync_directory(self._root)
            self._root_dirty = False
        if failure is not None:
            raise failure

    def background_sync(self) -> Callable[[], None] | None:
        if self._durability is not Durability.INTERVAL or not (self._activity.dirty or self._root_dirty):
            return None
        self._activity.dirty.clear()
        self._root_dirty = False
        return partial(self._disk.sync_file_system, self._root)

    def refresh(self) -> None:
        self._watch.refresh()

    def fileno(self) -> int | None:
        return self._watch.fileno()

    def next_expiry(self) -> int | None:
        first = self._first_expiry()
        return None if first is None else first[0]

    def _first_expiry(self) -> tuple[int, FileQueue] | None:
        while (announced := self._activity.first()) is not None:
            expiry, qid = announced
            queue = self._queues.get(qid)
            actual = None if queue is None else queue.next_expiry()
            if queue is not None and actual == expiry:
                return expiry, queue
            self._activity.drop()
            if actual is not None:
                self._activity.announce(qid, actual)
        return None

    def expire(self, count: int) -> None:
        failed: list[FileQueue] = []
        failure: OSError | None = None
        while count > 0 and (first := self._first_expiry()) is not None and first[0] <= self._clock():
            try:
                count -= max(first[1].expire(count), 1)
            except OSError as error:  # the others' leases end all the same
                failure = error
                failed.append(first[1])
                self._activity.drop()
        for queue in failed:
            if (due := queue.next_expiry()) is not None:
                self._activity.announce(queue.qid, due)
        if failure is not None:
            raise failure

    def take_arrivals(self) -> dict[str, int]:
        if not self._activity.arrived and not self._gone:
            return {}
        arrived, self._activity.arrived = self._activity.arrived, set()
        found = ((qid, self._queues[qid].ready) for qid in arrived if qid in self._queues)
        arrivals = {qid: ready for qid, ready in found if ready}
        arrivals.update(dict.fromkeys(self._gone, sys.maxsize))
        self._gone.clear()
        return arrivals

    def close(self) -> None:
        try:
            self.commit()
            if (sync := self.background_sync()) is not None:
                sync()
        finally:
            for queue in list(self._queues.values()):
                queue.close()
            self._watch.close()


def _take_oldest(
    queues: Sequence[FileQueue], found: list[Message], count: int, visibility: int | None, max_bytes: int
) -> None:
    room: int | None = None  # the first message is handed out whatever its size
    while len(found) < count:
        first = min(
            ((q.time(mid), mid, q) for q in queues if (mid := q.first_ready()) is not None), key=_age, default=None
        )
        if first is None:
            return
        _, mid, queue = first
        try:
            message = queue.take(mid, visibility, room)
        except OSError:
            queue.arrived()  # it is there still, for whoever comes next
            raise
        if message is not None:
            found.append(message)
            room = (max_bytes if room is None else room) - len(message.payload or b"")
        elif room is not None and queue.first_ready() == mid:
            return  # too large for what room there is left


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _age(entry: tuple[int, int, FileQueue]) -> int:
    return entry[0]


def _rename_new(old: str, new: str, disk: Disk) -> None:
    try:
        disk.rename(old, new)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise QueueExistsError(f"'{qid_of(os.path.basename(new))}' is already an existing queue") from None
        raise


def _remove_empty(queue: FileQueue, disk: Disk) -> None:
    """Removes the directory of a queue without messages. rmdir refuses in one step what somebody has put there by then,
    so nothing can be lost."""
    for name in os.listdir(queue.path):
        if not _is_ours(name):
            raise QueueNotEmptyError(f"queue {queue.qid!r} is not empty: its directory holds {name!r}")
    try:
        for name in os.listdir(queue.path):
            if _is_ours(name):
                disk.unlink(f"{queue.path}/{name}")
        disk.rmdir(queue.path)
    except OSError as error:
        write_options(queue.path, queue.options, disk, sync=True)
        if error.errno == errno.ENOTEMPTY:
            raise QueueNotEmptyError(
                f"queue {queue.qid!r} is not empty: somebody has just put something there"
            ) from None
        raise


def _is_ours(name: str) -> bool:
    """A file that goes with the queue: of the server, or of somebody who has not finished writing a message."""
    return name.startswith(".") or (parse_message(os.fsencode(name)) is not None and name.endswith(".new"))
