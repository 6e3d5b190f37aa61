"""Keeps a log small and the next start short, while requests are served: writes notes, forgets old keys, makes
checkpoints, compacts, takes files in, and tries again after a failure.

Work is done in slices of some milliseconds in the log's thread, and as `Upkeep` in another thread. The caller asks
`next_due`, calls `begin`, commits, runs the `Upkeep` that it got, and passes that to `finish`.
"""

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from ...disk import Disk, has_no_room
from ...engine import SECOND, Background, Clock
from ..log.log import Log
from ..queues.store import SLICE, Store
from .background import Upkeep
from .door import Door, Doors
from .intake import Intake

_logger = logging.getLogger(__name__)
_NOTES = 50_000
"""Microseconds after which notes are written even if there is nothing else to write."""
_TRY_AGAIN = 1 * SECOND
"""Microseconds between tries after a failure."""
_FORGET = 60 * SECOND
"""Microseconds after which old keys are forgotten, while there are any keys."""
_KEYS = 64
"""The `count` of `Keys.forget_old` between two looks at the time."""
_CHECKPOINT = 256 << 20
"""Bytes of log between two checkpoints."""


class LogStore(Store):
    """A store whose log is the real one, with segments and files."""

    log: Log


class Compactor(Protocol):
    """Removes segments: see `Compaction`."""

    @property
    def total(self) -> int: ...
    @property
    def wanted(self) -> bool: ...
    def step(self, seconds: float = SLICE) -> None: ...
    def run(self) -> bool: ...


class Checkpointing(Protocol):
    """A checkpoint that is being written: see `Snapshot`."""

    def step(self) -> bool: ...
    def publish(self) -> None: ...
    def give_up(self) -> None: ...


class Maintenance:
    """Maintains the log of one store."""

    def __init__(  # noqa: PLR0917
        self,
        store: LogStore,
        compaction: Compactor,
        doors: Doors,
        begin_checkpoint: Callable[[], Checkpointing],
        disk: Disk,
        clock: Clock,
    ) -> None:
        """begin_checkpoint: commits, and begins a checkpoint."""
        self._store = store
        self.compaction = compaction
        self._doors = doors
        self._begin_checkpoint = begin_checkpoint
        self._disk = disk
        self._clock = clock
        self._door: Door | None = None  # the one whose directory is worked on
        self._notes_due: int | None = None
        self._keys_due: int | None = None
        self._not_before = 0
        self._running: Upkeep | None = None
        self._has_work = False
        self._looked_at: tuple[int, int] | None = None  # counters of changes when `_look` was called last
        self._least = self._most = 0  # live bytes, and bytes of room, below which it is called again
        self._snapshot: Checkpointing | None = None
        self._written: Checkpointing | None = None  # complete, but not durable yet
        self._complaint = ""
        self._making_room = False
        store.log.make_room = self.make_room
        store.log.settle_upkeep = self.settle_running
        store.log.is_shrinking = lambda: compaction.wanted

    def next_due(self) -> int | None:
        """Returns the time at which `begin` should be called, 0 for now, None if there is nothing to do."""
        store = self._store
        if self._running is not None or store.log.failed is not None:
            return None
        log, usage = store.log, store.usage
        if (
            (log.segments.changes, usage.emptied) != self._looked_at
            or usage.total < self._least
            or log.room < self._most
        ):
            self._look()
        if not log.pending:
            self._notes_due = None
        elif self._notes_due is None:
            self._notes_due = self._clock() + _NOTES
        due = 0 if self._has_work else self._notes_due
        if due is not None and due < self._not_before:
            due = self._not_before
        if store.keyed or self._keys_due is not None or self._doors.busy:
            due = self._earlier(due)
        return due

    def _earlier(self, due: int | None) -> int | None:
        """Returns when work is due, including keys and directories. due: the time without these."""
        if self._store.keyed and self._keys_due is None:
            self._keys_due = self._clock() + _FORGET
        keys = None if self._keys_due is None else max(self._keys_due, self._not_before)
        return min((time for time in (due, self._doors.due(), keys) if time is not None), default=None)

    def _look(self) -> None:
        """Finds out whether there is work, and notes which changes make another look worthwhile."""
        log, usage = self._store.log, self._store.usage
        usage.write_to(log.number)
        self._has_work = (
            self._snapshot is not None
            or self._written is not None
            or self.compaction.wanted
            or log.segments.has_garbage
            or log.wants_spare is not None
            or log.wants_reserve is not None
            or self._wants_checkpoint()
        )
        self._looked_at = log.segments.changes, usage.emptied
        self._least = usage.least(log.segments.sizes, log.segments.size, tight=log.tight)
        self._most = log.spare_below
        if self._has_work:
            self._looked_at = None

    def begin(self) -> Upkeep | None:
        """Does a slice of the work. Returns the work for another thread, None if there is none. The caller commits,
        runs it, and passes it to `finish`."""
        store = self._store
        if self._running is not None or store.log.failed is not None:
            return None
        self._looked_at = None
        if self._clock() >= self._not_before:
            try:
                self._do_slice()
            except OSError as error:
                self._put_off(error)
        upkeep = Upkeep(store.log, self._disk, spare=self._clock() >= self._not_before)
        upkeep.intake = self._take_in()
        upkeep.checkpoint, self._written = self._written, None
        if not upkeep:
            return None
        self._running = upkeep
        return upkeep

    def _do_slice(self) -> None:
        store, compaction = self._store, self.compaction
        if self._notes_due is not None and self._clock() >= self._notes_due:
            self._notes_due = None
            store.commit_early()
        if self._keys_due is not None and self._clock() >= self._keys_due:
            self._forget_keys()
        elif self._snapshot is not None:
            store.commit_early()  # a checkpoint must not contain changes that are taken back later
            snapshot, self._snapshot = self._snapshot, None  # if it fails, it is given up
            if snapshot.step():
                self._written = snapshot
            else:
                self._snapshot = snapshot
        elif self._wants_checkpoint() and not (store.log.tight and compaction.wanted):
            # Before compaction, which under a steady load is always wanted.
            self._snapshot = self._begin_checkpoint()
            store.checkpointed = store.log.position
        elif compaction.wanted:
            compaction.step()
            if store.log.is_short:
                self.make_room()  # before deletes use the room that the other copies need

    def _forget_keys(self) -> None:
        """Forgets old keys, even in queues without pushes: keys keep segments from being removed."""
        until, now = perf_counter() + SLICE, self._clock()
        for keys in list(self._store.keyed):
            while keys.forget_old(now, _KEYS):
                if perf_counter() >= until:
                    return  # continues in the next slice
            if not keys:
                self._store.keyed.discard(keys)
        self._keys_due = None

    def _take_in(self) -> Intake | None:
        door = self._doors.next(self._clock())
        if door is None:
            return None
        try:
            intake = door.advance(self._store)
        except OSError as error:
            door.put_off(error)
            return None
        self._door = door if intake is not None else None
        return intake

    def finish(self, upkeep: Background) -> None:
        """Takes over the results of the work that `begin` returned, once it has run."""
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

    def make_room(self) -> bool:
        """Compacts on a full disk until there is a reserve again. Commits first, so that only a failed compaction is
        taken back. Returns True if room was freed. OSError, except for lack of room."""
        if self._making_room:
            return False
        store, log, freed = self._store, self._store.log, False
        store.commit_early()
        self._making_room = True
        try:
            freed = self._remove_garbage()
            log.renew_reserve()
            while (not freed or log.is_short) and self.compaction.run():
                freed = self._remove_garbage() or freed
                log.renew_reserve()
        except OSError as error:
            if not has_no_room(error):
                raise
            store.roll_back()  # the caller may need less room than compaction did
        finally:
            self._making_room = False
        return freed

    def settle_running(self) -> bool:
        """Finishes upkeep that is under way, and takes over its results. Returns False if there was none."""
        if self._running is None or self._running.is_settled:
            return False
        self._running.run()
        self._running.settle()
        return True

    def _remove_garbage(self) -> bool:
        upkeep = Upkeep(self._store.log, self._disk, spare=False)
        had = bool(upkeep)
        upkeep.run()
        upkeep.settle()
        return had and upkeep.error is None

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

    def _wants_checkpoint(self) -> bool:
        """Tells whether the log after the last checkpoint is so long that a start would be slow."""
        log = self._store.log
        if not log.used:
            return False  # a checkpoint contains the position of the next frame, which is not known yet
        since = 0 if self._store.checkpointed is None else self._store.checkpointed.segment
        written = 0
        for number, size in reversed(log.segments.sizes.items()):
            if number <= since or written >= _CHECKPOINT:
                break
            written += size if number != log.number else 0
        return written >= _CHECKPOINT

    def finish_running(self) -> None:
        """Finishes upkeep that is under way, and drops its results."""
        running, self._running = self._running, None
        if running is not None:
            running.run()

    def stop(self) -> None:
        """Finishes upkeep that is under way, and gives up checkpoints that are not durable."""
        self.finish_running()
        for begun in (self._snapshot, self._written):
            if begun is not None:
                begun.give_up()
