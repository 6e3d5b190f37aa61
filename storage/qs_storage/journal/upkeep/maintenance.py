"""Keeps a log small and the next start short, while requests are served: writes notes, forgets old keys, makes
checkpoints, compacts, ingests files, and tries again after a failure.

Work is done in slices of some milliseconds in the log's thread, and as `BackgroundWork` in another thread. The caller
asks `next_due`, calls `begin` first in a batch, commits, runs the work that `begin` has returned, and passes the work
to `finish`.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from ...disk import Disk, has_no_room
from ...engine import SECOND, Background, Clock
from ..log.places import Position
from ..log.pool import Pool, PoolFile
from ..queues.state import QueueState
from ..queues.store import PayloadStore
from .checkpoint import SLICE, Snapshot
from .compaction import Compaction
from .ingest import Ingester, Ingesters
from .ingest_run import IngestRun
from .room import Room

_logger = logging.getLogger(__name__)
_NOTES = 50_000
"""Microseconds after which notes are written even if there is nothing else to write: a server that is killed forgets a
receive that is younger."""
_TRY_AGAIN = 1 * SECOND
"""Microseconds between tries after a failure."""
_FORGET = 60 * SECOND
"""Microseconds after which old keys are forgotten, while there are any keys: a fifth of the time that each is kept."""
_KEYS = 64
"""The `count` of `Keys.forget_old` between two looks at the time."""
_CHECKPOINT = 256 << 20
"""Bytes of log between two checkpoints: a start after a kill reads about as much."""
_BYTES = 512 << 10
"""Bytes of payload after which a slice of compaction ends: they are written with the batch's commit."""
_PACE = 40
"""The most slices of compaction at once: some 80 ms, only while every batch is as large as it may be."""
_FASTER = 165
"""The factor with which the number of slices reaches `_PACE` at 2.2 times the live bytes."""


@dataclass(eq=False)
class BackgroundWork:
    """One piece of work on files, for any thread.

    Ensures that `run` uses only files and the object itself, does the work once, and never raises: `error` says what
    failed. So a batch can go on while the work runs, and `settle` can wait for what is done to the log's files. It need
    not wait for the files of other programs, whose checks may take seconds: they come last."""

    pool: Pool
    disk: Disk
    garbage: list[str]
    """Obsolete segments, oldest first: to be taken into the pool, or removed. After `run`, those for
    which that failed."""
    sync: Callable[[], None] | None
    """Makes the copies of obsolete segments' messages durable before the segments are removed; None if
    all are durable."""
    recycled: int
    """The number of obsolete segments that the pool takes."""
    surplus: list[str]
    """Files that the pool has given up, to be removed."""
    wanted: int | None
    """Bytes of a file to make for the pool, None for none."""
    ingest_run: IngestRun | None
    """Work on the directory of a queue, None if there is none."""
    checkpoint: Snapshot | None
    """A checkpoint to publish, None if there is none."""
    made: list[PoolFile] = field(default_factory=list)
    """Files for the pool."""
    lacks_room: bool = False
    """True if the disk had no space for a file. That is not a failure: a refused push says so."""
    error: OSError | None = None
    """The error of work that failed."""
    _running: threading.Lock = field(default_factory=threading.Lock)
    _done: bool = False
    _ingesting: threading.Lock = field(default_factory=threading.Lock)
    _ingested: bool = False

    def __bool__(self) -> bool:
        work = self.garbage or self.surplus or self.wanted is not None
        return bool(work or self.ingest_run is not None or self.checkpoint is not None)

    def run(self) -> None:
        """Does the work once. Waits if another thread is doing it. Never raises."""
        self.run_for_log()
        with self._ingesting:
            if self.ingest_run is not None and not self._ingested:
                self._ingested = True
                self.ingest_run.run()

    def run_for_log(self) -> None:
        """Does the work on the log's own files once. Waits if another thread is doing it. Never raises."""
        with self._running:
            if not self._done:
                self._done = True
                self._run()

    def take_files(self) -> tuple[list[PoolFile], list[str]]:
        """Returns the files for the pool, and the obsolete segments that are left. The next call returns none. Call it
        after `run`."""
        made, self.made = self.made, []
        left, self.garbage = self.garbage, []
        return made, left

    def _run(self) -> None:
        for step in (self._remove, self._make, self._publish):
            try:
                step()
            except OSError as error:
                self.error = error

    def _remove(self) -> None:
        if self.garbage and self.sync is not None:
            self.sync()
        while self.garbage:
            with suppress(FileNotFoundError):
                if self.recycled > 0:
                    self.recycled -= 1
                    file = self.pool.recycle(self.garbage[0])
                    self.made += [] if file is None else [file]
                else:
                    self.disk.unlink(self.garbage[0])
            self.garbage.pop(0)
        for path in self.surplus:
            with suppress(FileNotFoundError):
                self.disk.unlink(path)

    def _make(self) -> None:
        if self.wanted is not None:
            try:
                self.made.append(self.pool.make(self.wanted))
            except OSError as error:
                if not has_no_room(error):
                    raise
                self.lacks_room = True

    def _publish(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.publish()


class Maintenance:
    """Maintains the log of one store: decides which work is next, and does it in slices.

    Ensures:
    1. A slice takes some milliseconds, and its records are committed or taken back with the batch in which it comes
       first.
    2. One piece of work at a time runs in the other thread, and gets all that it needs when it is made.
    3. After a failure, the work is tried again a second later, and the reason is logged once.
    4. `next_due` costs little when nothing has changed, as each commit calls it.

    Assumes that `begin` is called before the requests of the batch, and that each piece of work is passed to `finish`.
    Never runs by itself: the caller asks `next_due`."""

    def __init__(  # noqa: PLR0917
        self,
        store: PayloadStore,
        pool: Pool,
        compaction: Compaction,
        room: Room,
        ingesters: Ingesters,
        queues: Mapping[str, QueueState],
        clock: Clock,
    ) -> None:
        """queues: all queues of the log, by name."""
        self._store = store
        self._pool = pool
        self.compaction = compaction
        self._room = room
        self._ingesters = ingesters
        self._queues = queues
        self._clock = clock
        self.checkpointed: Position | None = None
        """The position of the last checkpoint that was begun or read."""
        self._ingester: Ingester | None = None  # the one whose directory is worked on
        self._notes_due: int | None = None
        self._keys_due: int | None = None
        self._not_before = 0
        self._running: BackgroundWork | None = None
        self._has_work = False
        self._looked_at = -1  # counter of changes when `_look` was called last; -1: it has to be called
        self._least = 0  # live bytes below which it is called again
        self._most = 0  # bytes of room below which it is called again
        self._oldest = -1  # the segment that is to be given up when it has no live bytes
        self._snapshot: Snapshot | None = None
        self._written: Snapshot | None = None  # complete, but not durable yet
        self._complaint = ""

    def resume(self, checkpointed: Position | None) -> None:
        """Continues after replay. checkpointed: the position of the checkpoint that was read, None without one."""
        self.checkpointed = checkpointed

    # -- when there is work ---------------------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """Returns the time at which `begin` should be called, 0 for now, None if there is nothing to do."""
        store, log = self._store, self._store.log
        if self._running is not None or log.failed is not None:
            return None
        usage, writer = store.usage, log.writer
        if (
            # Each test is for something that makes another look worthwhile: a segment came or went, live bytes fell
            # below what compaction waits for, the oldest segment has none left, the last one is nearly full.
            log.segments.changes != self._looked_at
            or usage.total < self._least
            or not usage.live.get(self._oldest, self._oldest == -1)
            or (writer is not None and writer.header.size - writer.end < self._most)
        ):
            self._look()
        if not store.transaction.pending:
            self._notes_due = None
        elif self._notes_due is None:
            self._notes_due = self._clock() + _NOTES
        due = 0 if self._has_work else self._notes_due
        if due is not None and due < self._not_before:
            due = self._not_before
        if store.known_keys.keyed or self._keys_due is not None or self._ingesters.busy:
            due = self._earlier(due)
        return due

    def _earlier(self, due: int | None) -> int | None:
        """Returns when work is due, including keys and directories. due: the time without keys and directories."""
        if self._store.known_keys.keyed and self._keys_due is None:
            self._keys_due = self._clock() + _FORGET
        keys = None if self._keys_due is None else max(self._keys_due, self._not_before)
        return min((time for time in (due, self._ingesters.due(), keys) if time is not None), default=None)

    def _look(self) -> None:
        """Finds out whether there is work, and notes which changes make another look worthwhile."""
        segments = self._store.log.segments
        self._has_work = (
            self._snapshot is not None
            or self._written is not None
            or self.compaction.wanted(tight=self._pool.is_tight)
            or segments.has_garbage
            or self._wanted_file() is not None
            or self._wants_checkpoint()
        )
        self._looked_at = -1 if self._has_work else segments.changes
        self._least = self.compaction.least(tight=self._pool.is_tight)
        # -1: no segment has that number, so there is nothing to wait for.
        self._oldest = self.compaction.oldest or -1
        late = self._pool.late(segments.largest)
        self._most = late if self._store.log.room >= late else 0

    def _wanted_file(self) -> int | None:
        """Returns the bytes of the file to make for the pool, None if it has enough, or nothing was written yet."""
        log = self._store.log
        return None if log.writer is None else self._pool.wanted(log.segments.largest, log.room)

    def _wants_checkpoint(self) -> bool:
        """Tells whether the log after the last checkpoint is so long that a start would be slow."""
        log = self._store.log
        if log.writer is None:
            return False  # a checkpoint contains the position of the next frame, which is not known yet
        since = 0 if self.checkpointed is None else self.checkpointed.segment
        written = 0
        for number, size in reversed(log.segments.sizes.items()):
            if number <= since or written >= _CHECKPOINT:
                break
            # The last segment does not count: how much of it is written changes with each commit.
            written += size if number != log.number else 0
        return written >= _CHECKPOINT

    # -- a slice --------------------------------------------------------------------------------------------------

    def begin(self) -> BackgroundWork | None:
        """Does a slice of the work. Returns the work for another thread, or None. The caller commits, runs the returned
        work, and passes it to `finish`."""
        log = self._store.log
        if self._running is not None or log.failed is not None:
            return None
        self._looked_at = -1
        # After a failure the disk is left alone for a second, and requests are served.
        if self._clock() >= self._not_before:
            try:
                self._do_slice()
            except OSError as error:
                # The slice is the first work of its batch, so this takes back nothing of a request.
                self._store.transaction.take_back()
                self._room.restart()
                self._put_off(error)
        # Taken, so that `settle`, or a batch on a full disk, does not work on the same files.
        garbage = log.segments.take_garbage()
        waits = self._clock() < self._not_before
        work = BackgroundWork(
            self._pool,
            log.disk,
            garbage,
            sync=log.background_sync() if garbage else None,
            recycled=self._pool.lacks(log.segments.largest) if garbage else 0,
            # First the obsolete files: one of them may be what is wanted, and needs no zeros.
            wanted=None if garbage or waits else self._wanted_file(),
            surplus=[] if waits else self._pool.give_up(log.segments.largest),
            ingest_run=self._next_ingest(),
            checkpoint=self._written,
        )
        self._written = None
        if not work:
            return None
        self._running = work
        return work

    def _do_slice(self) -> None:
        if self._notes_due is not None and self._clock() >= self._notes_due:
            self._notes_due = None
            self._room.commit()
        if self._keys_due is not None and self._clock() >= self._keys_due:
            self._forget_keys()
        elif self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None  # if it fails, it is given up
            if snapshot.step():
                self._written = snapshot
            else:
                self._snapshot = snapshot
        elif self._wants_checkpoint() and not self._room.is_short:
            # Before compaction, which under a steady load is always wanted. Never while the name of a queue waits for
            # a commit: a checkpoint must not have a queue that no segment names.
            if not self._store.transaction.has_lasting:
                self._snapshot = Snapshot(self._store, self._queues.values())
                self.checkpointed = self._store.log.position
        elif self.compaction.wanted(tight=self._pool.is_tight):
            pace = self._pace()
            self._room.compact(perf_counter() + SLICE * pace, int(_BYTES * pace))

    def _pace(self) -> float:
        """Returns the length of a slice of compaction, in usual slices. Slices get longer when pushes are so fast that
        the log has more than twice its live bytes: so the log stays below 2.2 times, even if each batch is as large as
        possible."""
        log = self._store.log
        written = log.segments.size - log.room
        ahead = (written - 2 * self._store.usage.total) / max(written, 1)
        return min(max(1 + _FASTER * ahead, 1), _PACE)

    def _forget_keys(self) -> None:
        """Forgets old keys, even in queues without pushes, because keys keep segments from being given up."""
        # Two clocks: how long the slice is, and how old a key.
        until, now = perf_counter() + SLICE, self._clock()
        for keys in list(self._store.known_keys.keyed):
            while keys.forget_old(now, _KEYS):
                if perf_counter() >= until:
                    return  # continues in the next slice
            if not keys:
                self._store.known_keys.keyed.discard(keys)
        self._keys_due = None

    def _next_ingest(self) -> IngestRun | None:
        ingester = self._ingesters.next(self._clock())
        if ingester is None:
            return None
        try:
            # Files are pushes: on a full disk they wait, as pushes do.
            self._store.transaction.ask(ingester.size, push=True)
            self._room.secure()
            run = ingester.advance(self._store)
        except OSError as error:
            ingester.put_off(error)
            return None
        self._ingester = ingester if run is not None else None
        return run

    # -- its end --------------------------------------------------------------------------------------------------

    def finish(self, work: Background) -> None:
        """Takes over the results of the work that `begin` returned, once it has run."""
        if work is not self._running or not isinstance(work, BackgroundWork):
            return
        self._running, self._looked_at = None, -1
        self._take_over(work)
        if self._ingester is not None and work.ingest_run is not None:
            self._ingester.finish(work.ingest_run)
            self._ingester = None
        if work.error is not None:
            self._put_off(work.error)
        elif work.lacks_room:
            self._not_before = self._clock() + _TRY_AGAIN
        elif self._complaint and self._clock() >= self._not_before:
            self._complaint = ""
            _logger.warning("there is room for more of the journal again")

    def _take_over(self, work: BackgroundWork) -> None:
        """Takes over the files of finished work. After this, `finish` finds none."""
        store, pool = self._store, self._pool
        made, garbage = work.take_files()
        for file in made:
            pool.add(file)
        if work.wanted is not None and made:
            pool.note_disk(is_full=False)
        elif work.lacks_room or (work.error is not None and has_no_room(work.error)):
            pool.note_disk(is_full=True)
        store.log.segments.give_back_garbage(garbage)
        transaction = store.transaction
        # The files may have made the pool whole again: then pushes need not wait for the next look.
        transaction.hold_back_pushes(transaction.pushes_wait and not pool.is_whole(store.log.segments.largest))

    def settle(self) -> None:
        """Waits for work on the log's files that is running, and takes over its files."""
        if self._running is not None:
            # Waits for the other thread, or does the work now, once.
            self._running.run_for_log()
            self._take_over(self._running)

    def stop(self) -> None:
        """Waits for work that is running, and gives up checkpoints that are not durable."""
        running, self._running = self._running, None
        if running is not None:
            running.run()
        # A clean stop writes one of its own, of all that was committed.
        for begun in (self._snapshot, self._written):
            if begun is not None:
                begun.give_up()
        self._snapshot = self._written = None

    def _put_off(self, error: OSError) -> None:
        """Schedules another try, and logs the reason once."""
        self._not_before = self._clock() + _TRY_AGAIN
        what = "there is no room for more of the journal" if has_no_room(error) else "the journal cannot be kept up"
        complaint = f"{what}: {error}"
        if complaint != self._complaint:
            _logger.error(
                "%s; see to %s (room, permissions); it is tried again every second",
                complaint,
                self._store.log.directory,
            )
        self._complaint = complaint
