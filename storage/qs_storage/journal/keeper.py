"""Owns the log of a root directory: opens it for the first queue, replays, commits, checkpoints and closes it."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter

from ..disk import Disk
from ..engine import Clock, Durability, Options, StorageError
from ..metadata import store_for
from ..names import JOURNAL
from ..shared import Shared
from .index_reading import IndexReader
from .log import records
from .log.cache import CACHE
from .log.log import QUICK, Log
from .log.opening import open_log
from .log.reader import Reader
from .queues.queue import LogQueue
from .queues.replay import Replay
from .queues.store import KEYS
from .upkeep.checkpoint import CheckpointWriter
from .upkeep.compaction import Compaction
from .upkeep.copying import Copying
from .upkeep.door import Doors
from .upkeep.maintenance import LogStore, Maintenance
from .upkeep.snapshot import Snapshot, write_snapshot

_logger = logging.getLogger(__name__)


class LogKeeper:
    """Opens the log of an engine, replays it, and commits changes of its queues."""

    def __init__(  # noqa: PLR0917
        self,
        root: str,
        clock: Clock,
        durability: Durability,
        disk: Disk,
        cache: int = CACHE,
        committed_early: Callable[[], None] = lambda: None,
        on_sync: Callable[[float], object] = lambda seconds: None,
        keys: int = KEYS,
    ) -> None:
        """Opens nothing: see `open`. cache, keys: see `Store`; committed_early: called after a commit in the middle of
        a batch; on_sync: see `Log`."""
        self._committed_early = committed_early
        self._on_sync = on_sync
        self._root = root
        self._directory = f"{root}/{JOURNAL}"
        self._clock = clock
        self._durability = durability
        self._disk = disk
        self._cache = cache
        self._keys = keys
        self.queues: dict[str, LogQueue] = {}
        """The queues of the log, by name."""
        self._store: LogStore | None = None
        self.maintenance: Maintenance | None = None
        """None while no log is open."""
        self._removals: list[int] = []
        self._doors = Doors(partial(store_for, sync=False))
        self._numbers = 0
        self.commit_is_cheap = False
        """True if commits are so fast that a thread for them is not worth it."""
        self._replayed = False

    # -- a start --------------------------------------------------------------------------------------------------

    def open(self) -> LogStore:
        """Opens the log without reading it. Returns its store. InUseError, OSError."""
        if self._store is None:
            log = Log(self._directory, self._disk, self._durability, perf_counter)
            log.on_sync = self._on_sync
            store = LogStore(log, Reader(log.segments, self._disk), self._cache, self._keys)
            store.committed_early = self._committed_early
            store.log.first_records = self._announcements
            self._store = store
            queues = self.queues.values
            compaction = Compaction(store, queues, Copying(store, queues), self._clock)
            begin_checkpoint = partial(self._begin_snapshot, store)
            self.maintenance = Maintenance(store, compaction, self._doors, begin_checkpoint, self._disk, self._clock)
        return self._store

    def open_queue(self, path: str, qid: str, options: Options, shared: Shared) -> LogQueue:
        """Opens the queue in a directory; it is empty until `replay`. The first one opens the log: InUseError."""
        store = self.open()
        if self._replayed:
            self._note_removals(store)  # before a new queue of the same name is announced
        queue = LogQueue(path, qid, options, shared, store, 0, self._doors)
        self.queues[qid] = queue
        if self._replayed:
            self._assign_number(queue)
            queue.announce()
            queue.rescan()
        return queue

    def _assign_number(self, queue: LogQueue) -> None:
        self._numbers += 1
        queue.table.number = self._numbers
        self.open().tables[queue.number] = queue.table

    def replay(self, kinds: Callable[[str], str | None], shared: Shared) -> None:
        """Replays the log into the opened queues. kinds: returns a queue's storage by its name, None if it does not
        exist. JournalDamagedError; StorageError: a queue with messages in the log has another storage now."""
        self._replayed = True
        store = self._store
        if store is None:
            return
        replay = self._read(store, shared)
        for number, queue in replay.queues.items():
            if self.queues.get(queue.qid) is not queue:
                self._leave_out(number, queue, kinds)
        self._numbers = max(self._numbers, replay.last_number)
        for queue in self.queues.values():
            if replay.queues.get(queue.number) is queue:
                store.tables[queue.number] = queue.table
            else:
                self._assign_number(queue)
        for queue in self.queues.values():
            queue.rescan()
            queue.settle()
        store.undo.clear()
        store.is_starting = False

    def read_alone(self, shared: Shared) -> dict[str, LogQueue]:
        """Returns the queues of the log by name, even without directories, for commands. JournalDamagedError,
        InUseError."""
        store = self.open()
        self._replayed = True
        replay = self._read(store, shared)
        for queue in replay.queues.values():
            self.queues[queue.qid] = queue
        self._numbers = replay.last_number
        store.undo.clear()
        return dict(self.queues)

    def _leave_out(self, number: int, queue: LogQueue, kinds: Callable[[str], str | None]) -> None:
        """Drops a queue that is only in the log. StorageError if it has messages, and another storage now."""
        if len(queue) and (kind := kinds(queue.qid)) is not None:
            raise StorageError(
                f"the journal has messages of queue {queue.qid!r}, whose storage is {kind!r} now: say "
                'storage = "journal" in its .queue.toml again; queue-journal.py convert changes the storage of a queue'
            )
        if len(queue):
            _logger.warning(
                "the journal has %d messages of queue %r, whose directory is gone: they are removed",
                len(queue),
                queue.qid,
            )
        queue.clear()
        self._removals.append(number)

    def _read(self, store: LogStore, shared: Shared) -> Replay[LogQueue]:
        def find(qid: str) -> LogQueue:
            queue = self.queues.get(qid)
            if queue is not None:
                return queue
            return LogQueue("", qid, Options(storage="journal"), shared, store, 0, self._doors)

        reader = IndexReader(self._directory, self._disk, store, find, open_log)
        replay, opened, begin, ignored = reader.read(self._clock())
        if ignored is not None:
            _logger.warning("%s/checkpoint is ignored, and the segments are read: %s", self._directory, ignored)
        store.log.resume(opened.headers, opened.obsolete, opened.number, opened.sequence, opened.absent)
        store.checkpointed = begin
        return replay

    def _announcements(self) -> Iterable[bytes]:
        return [queue.record() for queue in self.queues.values()]

    # -- queues ---------------------------------------------------------------------------------------------------

    def forget(self, queue: LogQueue) -> None:
        """Forgets a queue whose directory is gone. The next commit records that."""
        if self.queues.get(queue.qid) is not queue or self._store is None:
            return
        if self._store.undo:
            try:
                self._store.commit_early()
            except OSError as error:
                _logger.warning("queue %r is removed, and the changes before that failed: %s", queue.qid, error)
        del self.queues[queue.qid]
        queue.clear()
        self._removals.append(queue.number)

    def commit_removals(self) -> None:
        """Records durably that queues are gone, so that new ones may have the same names. OSError."""
        if self._removals and self._store is not None:
            self._note_removals(self._store)
            self._store.commit_early()

    def _note_removals(self, store: LogStore) -> None:
        if not self._removals:
            return
        if self._durability is not Durability.NONE:
            self._disk.sync_directory(self._root)  # first: a directory that the log calls removed must not come back
        store.log.reserve(records.SMALL * len(self._removals))
        for number in self._removals:
            store.log.append(records.remove(number))
            store.undo.append((self._removals.append, number))
        self._removals.clear()

    # -- durability -----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Makes all changes of the queues since the last commit durable. OSError: they are taken back."""
        store = self._store
        if store is None:
            return
        if self._removals:
            try:
                self._note_removals_or_wait(store)
            except OSError:
                store.roll_back()
                raise
        store.commit()
        self.commit_is_cheap = store.log.cost < QUICK

    def roll_back(self) -> None:
        """See Engine."""
        if self._store is not None:
            self._store.roll_back()

    def _note_removals_or_wait(self, store: LogStore) -> None:
        try:
            self._note_removals(store)
        except FileNotFoundError:  # the root is gone: removals wait, and requests that change nothing succeed
            if store.undo:
                raise

    def figures(self) -> dict[str, float]:
        """See Engine. All are 0 while no log is open."""
        store, maintenance = self._store, self.maintenance
        log = None if store is None else store.log
        return {
            "journal_bytes": 0 if log is None else log.segments.size,
            "journal_live_bytes": 0 if store is None else store.usage.total,
            "journal_segments": 0 if log is None else len(log.segments.sizes),
            "journal_failed": int(log is not None and log.failed is not None),
            "journal_compacted_bytes_total": 0 if maintenance is None else maintenance.compaction.total,
            "cache_bytes": 0 if store is None else store.cache.size,
        }

    def background_sync(self) -> Callable[[], None] | None:
        """See Engine."""
        return None if self._store is None else self._store.log.background_sync()

    def take_in_files(self, queue: LogQueue) -> Iterator[int]:
        """See DirectoriesEngine. Ignores the queue's capacity: the files are its messages."""
        store, door = self.open(), queue.door
        queue.files.unbounded = True
        while door is not None and door.has_work:
            intake = door.advance(store)
            store.commit()
            if intake is not None:
                intake.run()
                door.finish(intake)
                if intake.error is not None:
                    raise intake.error
                yield len(intake.files)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def _begin_snapshot(self, store: LogStore) -> Snapshot:
        store.commit_early()
        position = store.log.position
        writer = CheckpointWriter(self._directory, self._disk)
        work = write_snapshot(writer, position, list(self.queues.values()), store, self._numbers)
        return Snapshot(writer, work, store.log)

    def rest(self) -> OSError | None:
        """Writes a checkpoint at a clean stop, for a fast start. Returns the error if the log is gone or failed.
        OSError: the last notes could not be written."""
        store, maintenance = self._store, self.maintenance
        if store is None or maintenance is None:
            return None
        if store.log.failed is not None or not store.log.used:
            return store.log.failed
        maintenance.stop()
        store.commit(notes=True)
        try:
            snapshot = self._begin_snapshot(store)
            while not snapshot.step():
                continue
            snapshot.publish()
        except FileNotFoundError as error:
            return error  # the directory is gone
        except OSError as error:
            _logger.warning("no checkpoint could be written (%s): the next start reads all of the journal", error)
        return None

    def close(self) -> None:
        if self.maintenance is not None:
            self.maintenance.finish_running()
            self.maintenance = None
        if self._store is not None:
            self._store.close()
            self._store = None
