"""The log of a root directory and its queues: opened when there is one, committed, kept small, checkpointed."""

import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter

from ..disk import Disk, has_no_room
from ..engine import SECOND, Background, Clock, Durability, Options, StorageError
from ..files.attributes import store_for
from ..names import JOURNAL
from ..shared import Shared
from . import records
from .cache import CACHE
from .checkpoint import BadCheckpointError, CheckpointReader, CheckpointWriter
from .compaction import Compaction
from .door import Door, Doors
from .frames import Header
from .intake import Intake
from .log import QUICK, Log
from .opening import Opened, find_segments, open_log
from .places import Position
from .queue import LogQueue
from .reader import Reader
from .replay import Replay
from .snapshot import Snapshot, read_snapshot, write_snapshot
from .store import SLICE, Store
from .upkeep import Upkeep

_logger = logging.getLogger(__name__)
_NOTES = 50_000
"""Microseconds after which notes are written though nothing else is."""
_TRY_AGAIN = 1 * SECOND
"""Microseconds after which what could not be done is tried again."""
_FORGET = 60 * SECOND
"""Microseconds after which old keys are forgotten, while there are any keys."""
_KEYS = 64
"""Keys, in fours, that are forgotten between two looks at the time."""
_CHECKPOINT = 256 << 20
"""Bytes of log after which the next checkpoint is made."""


class LogStore(Store):
    """A store that knows its log as it is, with segments and files."""

    log: Log


class LogKeeper:
    """Everything that an engine asks of its log."""

    def __init__(  # noqa: PLR0917
        self,
        root: str,
        clock: Clock,
        durability: Durability,
        disk: Disk,
        cache: int = CACHE,
        committed_early: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens nothing: see `open`. committed_early: called after a commit in the middle of a batch."""
        self._committed_early = committed_early
        self._root = root
        self._directory = f"{root}/{JOURNAL}"
        self._clock = clock
        self._durability = durability
        self._disk = disk
        self._cache = cache
        self.queues: dict[str, LogQueue] = {}
        """The queues of the log, by name."""
        self._store: LogStore | None = None
        self._compaction: Compaction | None = None
        self._removals: list[int] = []
        self._doors = Doors(partial(store_for, sync=False))
        self._door: Door | None = None  # that is worked on
        self._numbers = 0
        self.commit_is_cheap = False
        """Whether a commit is over soon enough to wait for it, as far as the last one tells."""
        self._replayed = False
        self._notes_due: int | None = None
        self._keys_due: int | None = None
        self._not_before = 0
        self._running: Upkeep | None = None
        self._has_work = False
        self._looked_at: tuple[int, int] | None = None  # changes of the log and of its usage when `_look` was called
        self._least = self._most = 0  # live bytes, and bytes of room, below which it is called again
        self._snapshot: Snapshot | None = None
        self._written: Snapshot | None = None  # and not durable yet
        self._checkpointed: Position | None = None
        self._complaint = ""
        self._making_room = False

    # -- a start --------------------------------------------------------------------------------------------------

    def open(self) -> LogStore:
        """Takes the log, though there may be no queue yet. InUseError, OSError."""
        if self._store is None:
            log = Log(self._directory, self._disk, self._durability, perf_counter)
            store = LogStore(log, Reader(log, self._disk), self._cache)
            store.committed_early = self._committed_early
            store.log.first_records = self._announcements
            self._store = store
            compaction = self._compaction = Compaction(store, self.queues.values, self._clock)
            store.log.make_room = self._make_room
            store.log.settle_upkeep = self._settle_running
            store.log.is_shrinking = lambda: compaction.wanted
        return self._store

    def open_queue(self, path: str, qid: str, options: Options, shared: Shared) -> LogQueue:
        """Opens the queue in a directory; before `replay` it is empty. InUseError with the first one."""
        store = self.open()
        if self._replayed:
            self._note_removals(store)  # before another queue of the name is announced
        queue = LogQueue(path, qid, options, shared, store, 0, self._doors)
        self.queues[qid] = queue
        if self._replayed:
            self._name(queue)
            queue.announce()
            queue.rescan()
        return queue

    def _name(self, queue: LogQueue) -> None:
        self._numbers += 1
        queue.table.number = self._numbers
        self.open().tables[queue.number] = queue.table

    def replay(self, kinds: Callable[[str], str | None], shared: Shared) -> None:
        """Applies what the log says to the queues that were opened. kinds: the storage of a queue, None: there is none.
        JournalDamagedError, StorageError."""
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
                self._name(queue)
        for queue in self.queues.values():
            queue.rescan()
            queue.settle()
        store.undo.clear()

    def read_alone(self, shared: Shared) -> dict[str, LogQueue]:
        """The queues as the log has them, whatever the root says of them: for commands, without a server.
        JournalDamagedError, InUseError."""
        store = self.open()
        self._replayed = True
        replay = self._read(store, shared)
        for queue in replay.queues.values():
            self.queues[queue.qid] = queue
        self._numbers = replay.last_number
        store.undo.clear()
        return dict(self.queues)

    def _leave_out(self, number: int, queue: LogQueue, kinds: Callable[[str], str | None]) -> None:
        """Drops a queue of the log that the root does not have as one. StorageError when it has another storage now."""
        if len(queue) and (kind := kinds(queue.qid)) is not None:
            raise StorageError(
                f"the journal has messages of queue {queue.qid!r}, whose storage is {kind!r} now: say "
                'storage = "journal" in its .queue.toml again; queue-journal.py convert changes the storage of a queue'
            )
        if len(queue):
            _logger.warning(
                "the journal has %d messages of queue %r, whose directory is gone; they go with it",
                len(queue),
                queue.qid,
            )
        queue.clear()
        self._removals.append(number)

    def _read(self, store: LogStore, shared: Shared) -> Replay[LogQueue]:
        """What the log says: from a checkpoint on, or all of it."""

        def make(qid: str, number: int) -> LogQueue:
            queue = self.queues.get(qid)
            if queue is None:
                queue = LogQueue("", qid, Options(storage="journal"), shared, store, number, self._doors)
            queue.table.number = number
            store.tables[number] = queue.table
            return queue

        scans = find_segments(self._directory, self._disk)
        replay = Replay(make)
        try:
            begin = self._read_checkpoint(replay, store, {scan.header.number: scan.header for scan in scans})
            opened = open_log(self._directory, self._disk, scans, replay, begin)
            _require_segments(store, opened)
        except BadCheckpointError as error:
            _logger.warning("%s/checkpoint is ignored, and the segments are read: %s", self._directory, error)
            for queue in self.queues.values():
                queue.reset()
            store.reset()
            replay, begin = Replay(make), None
            opened = open_log(self._directory, self._disk, scans, replay)
        store.log.resume(opened.headers, opened.obsolete, opened.number, opened.sequence)
        self._checkpointed = begin
        return replay

    def _read_checkpoint(
        self, replay: Replay[LogQueue], store: LogStore, headers: dict[int, Header]
    ) -> Position | None:
        """Takes up the queues of the checkpoint, and gives its position; None: there is none. BadCheckpointError."""
        try:
            reader = CheckpointReader(self._directory)
            salts = {int(number): salt for number, salt in reader.content["salts"].items()}
            if any(salts.get(number, header.salt.hex()) != header.salt.hex() for number, header in headers.items()):
                raise BadCheckpointError("it is of another journal")
            if reader.position.segment not in headers:
                raise BadCheckpointError("the segment in which it ends is not there")
            replay.queues = read_snapshot(reader, replay.make, store, self._clock())
            replay.last_number = reader.content["numbers"]
            replay.oldest = reader.content["oldest"]
        except FileNotFoundError:
            return None
        except (OSError, LookupError, TypeError, ValueError, struct.error) as error:
            raise BadCheckpointError(str(error)) from None
        return reader.position

    def _announcements(self) -> Iterable[bytes]:
        return [queue.record() for queue in self.queues.values()]

    # -- queues ---------------------------------------------------------------------------------------------------

    def has(self, qid: str) -> bool:
        """Whether a queue is one of them."""
        return qid in self.queues

    def forget(self, queue: LogQueue) -> None:
        """Forgets a queue whose directory has gone. The next commit records that."""
        if self.queues.get(queue.qid) is not queue or self._store is None:
            return
        if self._store.undo:
            try:
                self._store.commit_early()
            except OSError as error:
                _logger.warning("queue %r is removed, and what was being done before failed: %s", queue.qid, error)
        del self.queues[queue.qid]
        queue.clear()
        self._removals.append(queue.number)

    def commit_removals(self) -> None:
        """Records, durably, that queues have gone; from then on there may be others of the same names. OSError."""
        if self._removals and self._store is not None:
            self._note_removals(self._store)
            self._store.commit_early()

    def _note_removals(self, store: LogStore) -> None:
        if not self._removals:
            return
        if self._durability is not Durability.NONE:
            self._disk.sync_directory(self._root)  # first: what the log calls removed must not come back
        store.log.reserve(records.SMALL * len(self._removals))
        for number in self._removals:
            store.log.append(records.remove(number))
            store.undo.append((self._removals.append, number))
        self._removals.clear()

    # -- durability -----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Makes durable everything that was asked of the queues since the last one. OSError: it has been taken back."""
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
        except FileNotFoundError:  # of the root itself: they wait, and requests that change nothing need not
            if store.undo:
                raise

    def background_sync(self) -> Callable[[], None] | None:
        """See Engine."""
        return None if self._store is None else self._store.log.background_sync()

    # -- at leisure -----------------------------------------------------------------------------------------------

    def next_upkeep(self) -> int | None:
        """When `begin_upkeep` should be called next; 0: at once; None: there is nothing to do."""
        store = self._store
        if store is None or self._running is not None or store.log.failed is not None:
            return None
        log, usage = store.log, store.usage
        if (log.changes, usage.emptied) != self._looked_at or usage.total < self._least or log.room < self._most:
            self._look(store)
        if not log.pending:
            self._notes_due = None
        elif self._notes_due is None:
            self._notes_due = self._clock() + _NOTES
        due = 0 if self._has_work else self._notes_due
        if due is not None and due < self._not_before:
            due = self._not_before
        if store.keyed or self._keys_due is not None or self._doors.busy:
            due = self._earlier(due, store)
        return due

    def _earlier(self, due: int | None, store: LogStore) -> int | None:
        """Returns when upkeep is due that also has keys and directories to look at. due: without these."""
        if store.keyed and self._keys_due is None:
            self._keys_due = self._clock() + _FORGET
        keys = None if self._keys_due is None else max(self._keys_due, self._not_before)
        return min((time for time in (due, self._doors.due(), keys) if time is not None), default=None)

    def _look(self, store: LogStore) -> None:
        """Finds out whether there is work for upkeep, and notes what has to change before it is worth a look again: a
        commit costs less than this."""
        log, usage, compaction = store.log, store.usage, self._compaction
        if compaction is None:
            return
        self._has_work = (
            self._snapshot is not None
            or self._written is not None
            or compaction.wanted
            or log.has_garbage
            or log.wants_spare is not None
            or log.wants_reserve is not None
            or self._wants_checkpoint(store)
        )
        self._looked_at = log.changes, usage.emptied
        usage.written = log.number
        self._least = usage.least(log.sizes, tight=log.tight) if len(log.sizes) > 1 else 0
        self._most = log.spare_below
        if self._has_work:
            self._looked_at = None

    def begin_upkeep(self) -> Upkeep | None:
        """Does a slice of what is to be done, and gives what can be done in a thread, if there is anything. The caller
        commits, runs that, and gives it to `finish_upkeep`."""
        store, compaction = self._store, self._compaction
        if store is None or compaction is None or self._running is not None or store.log.failed is not None:
            return None
        self._looked_at = None
        if self._clock() >= self._not_before:
            try:
                self._do_slice(store, compaction)
            except OSError as error:
                self._put_off(error)
        upkeep = Upkeep(store.log, self._disk, spare=self._clock() >= self._not_before)
        upkeep.intake = self._take_in(store)
        upkeep.checkpoint, self._written = self._written, None
        if not upkeep:
            return None
        self._running = upkeep
        return upkeep

    def _do_slice(self, store: LogStore, compaction: Compaction) -> None:
        if self._notes_due is not None and self._clock() >= self._notes_due:
            self._notes_due = None
            store.commit_early()
        if self._keys_due is not None and self._clock() >= self._keys_due:
            self._forget_keys(store)
        elif self._snapshot is not None:
            store.commit_early()  # nothing may be in a checkpoint that is taken back
            snapshot, self._snapshot = self._snapshot, None  # one that fails is over
            if snapshot.step():
                self._written = snapshot
            else:
                self._snapshot = snapshot
        elif compaction.wanted:
            compaction.step()
        elif self._wants_checkpoint(store):
            self._snapshot = self._begin_snapshot(store)

    def _forget_keys(self, store: LogStore) -> None:
        """Forgets old keys, in the queues to which nobody pushes any more too: they would hold segments."""
        until, now = perf_counter() + SLICE, self._clock()
        for keys in list(store.keyed):
            while keys.forget_old(now, _KEYS):
                if perf_counter() >= until:
                    return  # goes on with the next slice
            if not keys:
                store.keyed.discard(keys)
        self._keys_due = None

    def _take_in(self, store: LogStore) -> Intake | None:
        """Goes on with files that somebody has put into the directory of a queue."""
        door = self._doors.next(self._clock())
        if door is None:
            return None
        try:
            intake = door.advance(store)
        except OSError as error:
            door.put_off(error)
            return None
        self._door = door if intake is not None else None
        return intake

    def take_in_files(self, queue: LogQueue) -> Iterator[int]:
        """See DirectoriesEngine. The queue's capacity does not matter: they are its messages."""
        store, door = self.open(), queue.door
        queue.files.capacity = None
        while door is not None and door.has_work:
            intake = door.advance(store)
            store.commit()
            if intake is not None:
                intake.run()
                door.finish(intake)
                if intake.error is not None:
                    raise intake.error
                yield len(intake.files)

    def finish_upkeep(self, upkeep: Background) -> None:
        """Takes over what `begin_upkeep` gave, once it has run."""
        if upkeep is not self._running or not isinstance(upkeep, Upkeep):
            return
        self._running = self._looked_at = None
        upkeep.settle()
        if self._door is not None and upkeep.intake is not None:
            self._door.finish(upkeep.intake)
            self._door = None
        if upkeep.error is not None:
            self._put_off(upkeep.error)
        elif self._complaint and self._clock() >= self._not_before:
            self._complaint = ""
            _logger.warning("there is room for more of the journal again")

    def _make_room(self) -> bool:
        """Removes what is not needed any more, at once, as the disk is full. Returns whether there was anything.
        OSError for another reason than that compaction has no room either."""
        store, compaction = self._store, self._compaction
        if store is None or compaction is None or self._making_room:
            return False
        self._making_room = True
        try:
            freed = self._remove_garbage(store)
            while not freed and compaction.run():
                freed = self._remove_garbage(store)
            return freed
        except OSError as error:
            if not has_no_room(error):
                raise
            return False  # what asked for room may need less than a segment's live messages
        finally:
            self._making_room = False

    def _settle_running(self) -> bool:
        """Waits for upkeep that is under way. Returns whether there was any."""
        if self._running is None or self._running.is_settled:
            return False
        self._running.run()
        self._running.settle()
        return True

    def _remove_garbage(self, store: LogStore) -> bool:
        upkeep = Upkeep(store.log, self._disk, spare=False)
        had = bool(upkeep)
        upkeep.run()
        upkeep.settle()
        return had and upkeep.error is None

    def _put_off(self, error: OSError) -> None:
        """Tries again later, and says why, once."""
        self._not_before = self._clock() + _TRY_AGAIN
        what = "there is no room for more of the journal" if has_no_room(error) else "the journal cannot be kept up"
        complaint = f"{what}: {error}"
        if complaint != self._complaint:
            _logger.error("%s; see to %s (room, permissions); it is tried again every second", complaint, self._root)
        self._complaint = complaint

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def _wants_checkpoint(self, store: LogStore) -> bool:
        """Whether so much was written since the last one that reading it would take long."""
        log = store.log
        if not log.used:
            return False  # it says where the next frame goes
        since = 0 if self._checkpointed is None else self._checkpointed.segment
        return sum(size for number, size in log.sizes.items() if since < number < log.number) >= _CHECKPOINT

    def _begin_snapshot(self, store: LogStore) -> Snapshot:
        store.commit_early()
        position = store.log.position
        writer = CheckpointWriter(self._directory, self._disk)
        self._checkpointed = position
        work = write_snapshot(writer, position, list(self.queues.values()), store, self._numbers)
        return Snapshot(writer, work, store.log)

    def rest(self) -> OSError | None:
        """At a clean stop: writes a checkpoint, so that the next start need not read the log. Why there is no log for
        it any more, None: there is. OSError: the last notes could not be written."""
        store = self._store
        if store is None or store.log.failed is not None or not store.log.used:
            return None if store is None else store.log.failed
        self._finish_running()
        for begun in (self._snapshot, self._written):
            if begun is not None:
                begun.give_up()
        store.commit(notes=True)
        try:
            snapshot = self._begin_snapshot(store)
            while not snapshot.step():
                continue
            snapshot.publish()
        except FileNotFoundError as error:
            return error  # the directory is gone, and with it what was in it
        except OSError as error:
            _logger.warning("no checkpoint could be written (%s): the next start reads all of the journal", error)
        return None

    def _finish_running(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.run()

    def close(self) -> None:
        """Closes the files."""
        self._finish_running()
        if self._store is not None:
            self._store.close()
            self._store = None


def _require_segments(store: LogStore, opened: Opened) -> None:
    """BadCheckpointError when a message is in a segment that is not there."""
    missing = store.usage.segments() - {header.number for header in opened.headers}
    if missing:
        raise BadCheckpointError(f"segment {min(missing)} has messages of it, and is not there")
