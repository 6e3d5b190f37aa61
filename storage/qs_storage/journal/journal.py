"""Owns the log of a root directory: opens it for the first queue, replays, commits, checkpoints and closes it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter

from ..disk import Disk
from ..engine import LEFT, Clock, Durability, NoRoomError, Options, StorageError
from ..names import JOURNAL
from ..shared import EngineContext, EngineQueue
from .log import records
from .log.log import Log, Transaction
from .log.opening import open_log
from .log.places import Position
from .log.pool import Pool
from .log.reader import CACHE, Reader
from .queues.keys import KEYS
from .queues.queue import LogQueue
from .queues.state import Replay
from .queues.store import PayloadStore
from .upkeep.checkpoint import Snapshot
from .upkeep.compaction import Compaction
from .upkeep.index_reading import IndexReader
from .upkeep.ingest import Ingesters
from .upkeep.maintenance import Maintenance
from .upkeep.room import Room

_logger = logging.getLogger(__name__)


class Journal:
    """The journal of an engine: opens its log, replays it, commits the changes of its queues, and closes it.

    Ensures:
    1. The log is opened and locked when its first queue is opened, or an engine of this storage. A root with queues of
       files only has no log.
    2. Room is secured between batches only, and a failed commit leaves memory as it was before the batch.
    3. A queue whose directory is gone is removed from the log before another one of its name has a record there.
    4. A clean stop writes a checkpoint, so that the next start is fast.

    Assumes one thread at a time. Never runs work by itself: the engine asks `maintenance` when some is due. The modules
    below never call the journal."""

    def __init__(  # noqa: PLR0917
        self,
        root: str,
        clock: Clock,
        durability: Durability,
        disk: Disk,
        cache: int = CACHE,
        on_sync: Callable[[float], object] | None = None,
        keys: int = KEYS,
    ) -> None:
        """Opens nothing yet: see `open`. cache, keys: see `PayloadStore`; on_sync: see `Log`."""
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
        self.store: PayloadStore | None = None
        self.transaction: Transaction | None = None
        """The transaction of the log's batches; None while no log is open."""
        self.room: Room | None = None
        self.maintenance: Maintenance | None = None
        """None while no log is open."""
        self._removed: list[LogQueue] = []  # queues whose directories are gone; the next commit records that
        self._leaving: list[LogQueue] = []  # those whose removal is in this transaction
        self._ingesters = Ingesters()
        self._replayed = False

    # -- a start --------------------------------------------------------------------------------------------------

    def open(self) -> PayloadStore:
        """Opens the log without reading it. Returns its store. InUseError, OSError."""
        if self.store is None:
            log = Log(self._directory, self._disk, self._durability, perf_counter, self._on_sync)
            pool = Pool(self._directory, self._disk, sync=log.keeps)
            store = PayloadStore(log, Transaction(log), Reader(log.segments, self._disk), self._cache, self._keys)
            pool.restore()
            compaction = Compaction(store, self.queues, self._clock)
            self.transaction = store.transaction
            self.store, self.room = store, Room(store, pool, compaction, self.queues)
            self.maintenance = Maintenance(
                store, pool, compaction, self.room, self._ingesters, self.queues, self._clock
            )
        return self.store

    def open_queue(self, path: str, qid: str, options: Options, context: EngineContext) -> LogQueue:
        """Opens the queue in a directory, which is empty until `replay`. The first queue opens the log: InUseError.
        NoRoomError after `replay`, as the queue's name has to be in the log before its records."""
        store = self.open()
        transaction = store.transaction
        needed = records.QUEUE_SIZE + records.SMALL * len(self._removed)
        if self._replayed and transaction.left < needed:
            # Something is in the batch, or room was secured: then the caller has to end the batch first.
            if transaction.changed or transaction.left >= 0:
                raise transaction.refusal(needed)
            transaction.ask(needed)
            self.secure()  # nothing was written since the start
            if transaction.left < needed:
                raise transaction.refusal(needed)
        queue = LogQueue(path, qid, options, context, store)
        if self._replayed:
            self._note_removals(store)  # before a new queue of the same name is announced
            queue.begin(store.last_number + 1)
            transaction.append_lasting(queue.record())
        self._ingesters.open(queue, context)
        self.queues[qid] = queue
        return queue

    def replay(self, kinds: Callable[[str], str | None], context: EngineContext) -> None:
        """Replays the log into the opened queues. kinds: returns the storage of a queue by name, None without such a
        queue. JournalDamagedError; StorageError if a queue with messages in the log has another storage now."""
        self._replayed = True
        store, maintenance = self.store, self.maintenance
        if store is None or maintenance is None:
            return
        # All queues of the directories are open by now: records are applied to these objects.
        replay, checkpointed = self._read(store, context)
        # So that the next checkpoint is due after as much log as usual.
        maintenance.resume(checkpointed)
        for queue in replay.queues.values():
            if self.queues.get(queue.qid) is not queue:
                self._leave_out(queue, kinds)
        for queue in self.queues.values():
            queue.begin(queue.number if replay.queues.get(queue.number) is queue else store.last_number + 1)
        for queue in self.queues.values():
            queue.settle()
        store.end_start()

    def read_alone(self, context: EngineContext) -> dict[str, LogQueue]:
        """Reads the log without the directories of queues, for commands. Returns its queues by name.
        JournalDamagedError, InUseError."""
        store = self.open()
        self._replayed = True
        replay, _ = self._read(store, context)
        for queue in replay.queues.values():
            self.queues[queue.qid] = queue
        store.end_start()
        return dict(self.queues)

    def _leave_out(self, queue: LogQueue, kinds: Callable[[str], str | None]) -> None:
        """Drops a queue that has no directory. StorageError if the queue has messages, and its name another storage
        now."""
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
        self._removed.append(queue)

    def _read(self, store: PayloadStore, context: EngineContext) -> tuple[Replay[LogQueue], Position | None]:
        """Reads the log. Returns its queues, and the position of the checkpoint that was used."""

        def find(qid: str) -> LogQueue:
            queue = self.queues.get(qid)
            return LogQueue(None, qid, Options(storage="journal"), context, store) if queue is None else queue

        reader = IndexReader(self._directory, self._disk, store, find, open_log)
        replay, opened, begin, ignored = reader.read(self._clock())
        if ignored is not None:
            _logger.warning("%s/checkpoint is ignored, and the segments are read: %s", self._directory, ignored)
        store.log.resume(opened)
        store.last_named = store.last_number
        return replay, begin

    # -- queues ---------------------------------------------------------------------------------------------------

    def forget(self, queue: EngineQueue) -> None:
        """Forgets a queue whose directory is gone; the next commit records that. Ignores queues of other storages."""
        known = self.queues.get(queue.qid)
        if known is queue and self.store is not None:
            del self.queues[known.qid]
            self._ingesters.close(known)
            self._removed.append(known)

    def _note_removals(self, store: PayloadStore) -> None:
        """Appends the records of removed queues. OSError if the root cannot be synced."""
        if not self._removed:
            return
        if self._durability is not Durability.NONE:
            self._disk.sync_directory(self._root)  # first: a directory that the log calls removed must not come back
        while self._removed:
            queue = self._removed.pop()
            # It stays if the batch is taken back: a queue that is made anew has its records after this one.
            store.transaction.append_lasting(records.Remove(queue.number).write())
            self._leaving.append(queue)

    # -- batches --------------------------------------------------------------------------------------------------

    def secure(self, lacked: NoRoomError | None = None) -> None:
        """Secures room for the next batch: see Engine."""
        if self.store is not None and self.room is not None and self.maintenance is not None:
            transaction = self.store.transaction
            if lacked is not None:  # maybe room was secured for it already, and others have used that
                transaction.ask(lacked.size, push=lacked.push)
            least = 0 if transaction.asked or transaction.asked_by_push else self.room.usual(LEFT)
            least = max(least, records.SMALL * len(self._removed))
            if (
                max(least, transaction.asked) > transaction.left
                or transaction.asked_by_push > transaction.left_to_pushes
            ):
                # Files that upkeep is making or recycling just now may be the room that is asked for.
                self.maintenance.settle()
            self.room.secure(least)

    def commit(self) -> None:
        """Makes all changes of the queues since the last commit durable. If it raises OSError, all of them are taken
        back."""
        store, room = self.store, self.room
        if store is None or room is None:
            return
        if self._removed and not self._append_removals(store, room):
            return
        try:
            gone = store.transaction.commit()
        except OSError:
            room.restart()
            raise
        if gone:
            room.forget(gone)
        if self._leaving:
            # Only now: if the commit had failed, the queue would still have its messages.
            for queue in self._leaving:
                queue.clear()
            self._leaving.clear()
        if store.cache.size > store.cache.limit:
            store.cache.trim()
        transaction = store.transaction
        # After the commit, and not before the next batch: its requests need not wait for it.
        if (transaction.left < LEFT or transaction.pushes_wait) and not transaction.pending:
            self._prepare(transaction)

    def _prepare(self, transaction: Transaction) -> None:
        """Secures room for the next batch, after a commit. Does nothing after receives alone, because their notes would
        have to be written for the room, or if a refused request is about to be tried again, because its caller secures
        the room. If there is no room, the next request that needs some raises the error."""
        if (
            self.store is not None
            and self.store.log.writer is not None
            and not (transaction.asked or transaction.asked_by_push)
        ):
            with suppress(OSError):
                self.secure()

    def _append_removals(self, store: PayloadStore, room: Room) -> bool:
        """Appends the records of removed queues; without enough room, the removals wait for a later commit. Returns
        False if there is nothing to commit because the root is gone: then removals wait, and requests that change
        nothing succeed. If it raises OSError, the batch is taken back."""
        transaction, needed = store.transaction, records.SMALL * len(self._removed)
        try:
            if transaction.left < 0 and not transaction.changed:
                self.secure()
            if transaction.left >= needed:
                self._note_removals(store)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not transaction.changed:
                return False
            transaction.take_back()
            room.restart()
            raise
        return True

    def take_back(self) -> None:
        """Takes back the changes since the last commit."""
        if self.store is not None and self.room is not None:
            self.store.transaction.take_back()
            self.room.restart()

    def figures(self) -> dict[str, float]:
        """Returns the figures of the journal, which are 0 while no log is open."""
        store, maintenance = self.store, self.maintenance
        log = None if store is None else store.log
        return {
            "journal_bytes": 0 if log is None else log.segments.size,
            "journal_live_bytes": 0 if store is None else store.usage.total,
            "journal_segments": 0 if log is None else len(log.segments.sizes),
            "journal_failed": int(log is not None and log.failed is not None),
            "journal_compacted_bytes_total": 0 if maintenance is None else maintenance.compaction.total,
            "cache_bytes": 0 if store is None else store.cache.size,
        }

    def look_again(self, queue: LogQueue) -> None:
        """Looks again at files of other programs that the schema of a queue has refused, as that has changed."""
        self._ingesters.of(queue).look_again()

    def background_sync(self) -> Callable[[], None] | None:
        """Returns a function that makes all commits so far durable: see Engine."""
        return None if self.store is None else self.store.log.background_sync()

    def ingest_files(self, queue: LogQueue) -> Iterator[int]:
        """Makes messages of all files in a queue's directory, slice by slice. Yields the number of files after each
        slice. Ignores the queue's capacity, because the files are its messages."""
        store, ingester = self.open(), self._ingesters.of(queue)
        while ingester.has_work:
            self.secure(NoRoomError(ingester.size, push=True))
            run = ingester.advance(store, beyond_capacity=True)
            self.commit()
            if run is not None:
                run.run()
                ingester.finish(run)
                if run.error is not None:
                    raise run.error
                yield len(run.files)

    # -- the end --------------------------------------------------------------------------------------------------

    def rest(self) -> OSError | None:
        """Writes a checkpoint at a clean stop, for a fast start. Returns the error if the log is gone or failed.
        OSError if the last notes could not be written."""
        store, maintenance, room = self.store, self.maintenance, self.room
        if store is None or maintenance is None or room is None:
            return None
        if store.log.failed is not None or store.log.writer is None:
            return store.log.failed
        maintenance.stop()
        room.commit()
        try:
            # A start needs no checkpoint: any error here is logged, and nothing else.
            snapshot = Snapshot(store, self.queues.values())
            while not snapshot.step():
                continue
            snapshot.publish()
        except FileNotFoundError as error:
            return error  # the directory is gone
        except OSError as error:
            _logger.warning("no checkpoint could be written (%s): the next start reads all of the journal", error)
        return None

    def close(self) -> None:
        """Waits for the work in another thread, and closes the files, which releases the lock."""
        if self.maintenance is not None:
            self.maintenance.stop()
            self.maintenance = None
        if self.store is not None:
            self.store.close()
            self.store = self.room = self.transaction = None
