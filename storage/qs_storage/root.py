"""The root directory, in which each queue is a directory, made and removed here or by others."""

import contextlib
import errno
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from threading import Thread

from .disk import Disk
from .engine import (
    NoRoomError,
    Options,
    QueueExistsError,
    QueueNotEmptyError,
    StorageError,
    UnsupportedError,
)
from .names import PRIVATE, directory_of, parse_message, qid_of
from .policy import check_dead_letter, refuse_options
from .remote_engine import installed_engines
from .settings import MAKING, make_queue, read_options, storage_in, write_options
from .shared import EngineContext, EngineQueue, Totals

_logger = logging.getLogger(__name__)
_REMOVING = ".removing-"
_LEFT_AFTER = 60
"""Seconds without change until a directory being made or removed is taken for left behind."""
_FEW = 1000
"""Messages whose files a request removes with their queue: some 20 ms. More are removed by a thread of their own."""


OpenQueue = Callable[[str, str, Options, EngineContext], EngineQueue]
"""Opens a queue: path, name, options. OSError, StorageError."""


class RootDirectory:
    """The directories of all queues: opens, makes, configures and removes them.

    Ensures:
    1. A queue is there as a whole or not at all: its directory is made, or removed, under another name first.
    2. A queue is closed only between two operations, never during one.
    3. A directory that cannot be used is named in the server's log, and does not keep others from being opened, except
       at a start.

    Assumes that other servers and programs make and remove directories at any time. Never follows a link to one."""

    def __init__(
        self,
        path: str,
        context: EngineContext,
        storages: Mapping[str, OpenQueue],
        default: str,
        forget: Callable[[EngineQueue], None],
    ) -> None:
        """Opens nothing yet: see `scan`. storages: how to open the queues of each storage; default: the storage of
        queues without options; forget: makes the journal forget a queue that is gone, and ignores queues of other
        storages."""
        self.path = path
        self.queues: dict[str, EngineQueue] = {}
        self.totals = Totals()
        """The counts of queues that are gone."""
        self.gone: set[str] = set()
        """Removed queues that `take_gone` has not returned yet."""
        self.failures: dict[tuple[str, int], OSError] = {}
        """Failed pushes that `take_failures` has not returned yet, by queue and first id."""
        self.dirty = True  # a killed server may have left names that nothing has made durable
        self._context = context
        self._disk = context.disk
        self._storages = storages
        self._default = default
        self._forget = forget
        context.watch.add(path, self, of_queues=True)

    def scan(self) -> None:
        """Opens all queues. OSError; StorageError for a wrong `.queue.toml`."""
        for name in self._disk.directories_in(self.path):
            # A crash has left it, or another server is at it just now: its age decides.
            if name.startswith((MAKING, _REMOVING)):
                self._clear_left_behind(f"{self.path}/{name}")
            elif not name.startswith("."):
                self._open(name, strict=True)

    def _clear_left_behind(self, path: str) -> None:
        """Removes directories that a crash has left, unless another server may be using them."""
        try:
            idle = self._context.idle_seconds(path)
        except FileNotFoundError:
            return
        if idle > _LEFT_AFTER:
            shutil.rmtree(path, ignore_errors=True)

    def _open(self, directory: str, *, strict: bool) -> None:
        """Opens the queue in a directory. strict: True to raise errors, False to log them."""
        qid = qid_of(directory)
        path = f"{self.path}/{directory}"
        if qid is None:
            _logger.warning("%s is no queue: %r cannot be the directory of any name", path, directory)
            return
        try:
            options = read_options(path, self._default)
            if options.storage not in self._storages:
                if options.storage in installed_engines():
                    return  # another server keeps it
                known = ", ".join(map(repr, (*self._storages, *sorted(installed_engines()))))
                raise StorageError(f"{path}/.queue.toml: there is no storage {options.storage!r}; there are {known}")
            self._context.activity.vanished.pop(qid, None)
            self.queues[qid] = self._storages[options.storage](path, qid, options, self._context)
        except NoRoomError:
            if strict:
                raise
            self._context.vanished(qid)  # a later batch has room for its name
        except (OSError, StorageError) as error:
            if strict:
                raise
            _logger.error("%s cannot be used: %s", path, error)

    def _close(self, qid: str) -> None:
        self._context.activity.vanished.pop(qid, None)
        queue = self.queues.pop(qid, None)
        if queue is not None:
            self.gone.add(qid)
            for mid in queue.close():
                self.failures[qid, mid] = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), queue.path)
            # The totals of the engine must not go down when a queue goes.
            self.totals.keep(queue)
            self._forget(queue)

    # -- what others do

    def reopen(self, qid: str) -> None:
        """Closes a queue whose directory is gone, and opens the queue that has the name now."""
        self._close(qid)
        directory = directory_of(qid)
        path = f"{self.path}/{directory}"
        if os.path.isdir(path) and not os.path.islink(path):
            self._open(directory, strict=False)

    def reopen_vanished(self) -> None:
        """Reopens all queues whose directories are gone according to the watch. Call it when no queue is in use."""
        vanished = self._context.activity.vanished
        for qid in list(vanished):
            if qid in vanished:
                self.reopen(qid)

    def changed(self, name: bytes, *, appeared: bool, moved: bool = False) -> None:
        """Notes that a directory was made or removed, for the next `reopen_vanished`."""
        qid = qid_of(os.fsdecode(name))
        # By now the queue may be open again, or the report may be about what this server has done.
        if qid is not None and not self.in_place(qid):
            self._context.vanished(qid)

    def rescan(self) -> None:
        """Notes all directories as changed, because reports were lost."""
        gone = [directory_of(qid) for qid in self.queues]  # first: one that is renamed keeps its watch
        for name in (*gone, *self._disk.directories_in(self.path)):
            if not name.startswith("."):
                self.changed(os.fsencode(name), appeared=True)

    def vanished(self) -> None:
        """Logs that the root is gone. Every operation then raises an error; operations on the journal do so after a
        start."""
        _logger.error("%s is gone", self.path)

    # -- what the engine tells others

    def take_failures(self) -> dict[tuple[str, int], OSError]:
        """Returns `failures`, and empties it."""
        failures, self.failures = self.failures, {}
        return failures

    def take_gone(self) -> set[str]:
        """Returns `gone`, and empties it."""
        gone, self.gone = self.gone, set()
        return gone

    def take_dirty(self) -> bool:
        """Tells whether the queues' names are not durable. The caller makes them durable."""
        dirty, self.dirty = self.dirty, False
        return dirty

    # -- queues

    def in_place(self, qid: str) -> bool:
        """Tells whether a queue is open and its directory exists. OSError."""
        queue = self.queues.get(qid)
        return queue is not None and queue.in_place()

    def publish_pending(self) -> None:
        """Publishes the pushes to all queues."""
        activity = self._context.activity
        pending, activity.pending = activity.pending, {}
        for qid, flush in pending.items():
            for mid, error in flush().items():
                self.failures[qid, mid] = error

    def sync(self) -> None:
        """Makes the names of the queues' directories durable. OSError."""
        if self.dirty:
            self._disk.sync_directory(self.path)
            self.dirty = False

    def create(self, qid: str, options: Options) -> None:
        """Makes a queue. QueueExistsError, BadQueueNameError, UnsupportedError, DeadLetterCycleError, OSError."""
        directory = directory_of(qid)
        if qid in self.queues:
            raise QueueExistsError(f"'{qid}' is already an existing queue")
        if options.storage and options.storage not in self._storages:
            known = ", ".join(map(repr, self._storages))
            raise UnsupportedError(f"there is no storage {options.storage!r}; this server has {known}")
        options = replace(options, storage=options.storage or self._default)
        refuse_options(options)
        self._check_dead_letter(qid, options)
        make_queue(self.path, qid, options, self._disk, made=partial(self._open, directory, strict=True))
        self.dirty = True

    def configure(self, queue: EngineQueue, options: Options) -> None:
        """Replaces a queue's options, first in its directory. Checks the dead-letter queue only if it changes, so that
        one which has become unusable does not prevent other changes. If it raises, nothing has changed: OSError,
        UnsupportedError, DeadLetterCycleError."""
        refuse_options(options)
        # Only a new one: a queue whose dead-letter queue is gone can still be changed.
        if options.dead_letter != queue.options.dead_letter:
            self._check_dead_letter(queue.qid, options)
        write_options(queue.path, options, self._disk)
        for field in fields(Options):
            # In place: the queue and others have this object.
            setattr(queue.options, field.name, getattr(options, field.name))
        queue.obey_options()

    def _check_dead_letter(self, qid: str, options: Options) -> None:
        """Checks the dead-letter queue that options name. UnsupportedError, DeadLetterCycleError."""
        if options.dead_letter:
            storage = storage_in(self.path, options.dead_letter, self._default)
            check_dead_letter(qid, options, {name: queue.options for name, queue in self.queues.items()}, storage)

    def remove(self, queue: EngineQueue, *, force: bool) -> None:
        """Removes a queue. QueueNotEmptyError without force; OSError."""
        self.publish_pending()
        self._context.watch.refresh()
        held = len(queue)
        if force:
            clear = self._move_away(queue)
        elif held:
            raise QueueNotEmptyError(f"queue {queue.qid!r} is not empty: it holds {held} messages")
        else:
            _remove_empty(queue, self._disk)
        self._close(queue.qid)
        self.dirty = True
        # The queue is gone already: only its files are left, under a name that no queue can have.
        if force and held > _FEW:
            Thread(target=clear, daemon=True).start()  # what is left when the process ends, the next start removes
        elif force:
            clear()

    def _move_away(self, queue: EngineQueue) -> Callable[[], None]:
        """Renames a queue's directory. Returns a function that removes the renamed directory. OSError."""
        removing = f"{self.path}/{_REMOVING}{secrets.token_hex(8)}"
        self._disk.rename(queue.path, removing)
        if self._context.always:
            try:
                self._disk.sync_directory(self.path)  # before it is emptied: the queue is all there, or gone
            except OSError:
                self._disk.rename(removing, queue.path)
                raise
        queue.note_removed()
        # What cannot be removed now, the next start removes.
        return partial(shutil.rmtree, removing, ignore_errors=True)


def _remove_empty(queue: EngineQueue, disk: Disk) -> None:
    """Removes a directory without messages. rmdir refuses if other programs have put something there.
    QueueNotEmptyError, OSError."""
    try:
        queue.dismantle()
        for name in os.listdir(queue.path):
            if not _is_ours(name):
                raise QueueNotEmptyError(f"queue {queue.qid!r} is not empty: its directory holds {name!r}")
        for name in os.listdir(queue.path):
            if _is_ours(name):
                with contextlib.suppress(FileNotFoundError):  # its writer has finished
                    disk.unlink(f"{queue.path}/{name}")
        disk.rmdir(queue.path)
    except OSError as error:
        write_options(queue.path, queue.options, disk)
        # The options were unlinked by then, and are written again: it is a queue still.
        if error.errno == errno.ENOTEMPTY:
            raise QueueNotEmptyError(
                f"queue {queue.qid!r} is not empty: somebody has just put something there"
            ) from None
        raise


def _is_ours(name: str) -> bool:
    """Tells whether a file is removed together with its queue: a file of the server, or an unfinished message, but not
    a file that is being ingested."""
    if name.startswith(PRIVATE):
        return False
    return name.startswith(".") or (parse_message(os.fsencode(name)) is not None and name.endswith(".new"))
