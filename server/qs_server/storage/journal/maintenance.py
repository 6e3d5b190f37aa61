"""Keeps the log of a store small and its start short, beside the requests: writes notes, forgets old keys, takes
checkpoints, compacts, takes files in, and tries again later what had no room.

Work is done in slices of some milliseconds, in the log's thread, and as `Upkeep` for another one. A caller asks
`next_due`, calls `begin`, commits, runs what it got, and passes that to `finish`.
"""

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from ..disk import Disk, has_no_room
from ..engine import SECOND, Background, Clock
from .door import Door, Doors
from .intake import Intake
from .log import Log
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
        """begin_checkpoint: commits, and returns a checkpoint to write."""
        self._store = store
        self.compaction = compaction
        self._doors = doors
        self._begin_checkpoint = begin_checkpoint
        self._disk = disk
        self._clock = clock
        self._door: Door | None = None  # that is worked on
        self._notes_due: int | None = None
        self._keys_due: int | None = None
        self._not_before = 0
        self._running: Upkeep | None = None
        self._has_work = False
        self._looked_at: tuple[int, int] | None = None  # changes of the log and of its usage when `_look` was called
        self._least = self._most = 0  # live bytes, and bytes of room, below which it is called again
        self._snapshot: Checkpointing | None = None
        self._written: Checkpointing | None = None  # and not durable yet
        self._complaint = ""
        self._making_room = False
        store.log.make_room = self.make_room
        store.log.settle_upkeep = self.settle_running
        store.log.is_shrinking = lambda: compaction.wanted

    def next_due(self) -> int | None:
        """Returns when `begin` should be called next, 0 for now; None if there is nothing to do."""
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
        """Returns when upkeep is due that also has keys and directories to look at. due: without these."""
        if self._store.keyed and self._keys_due is None:
            self._keys_due = self._clock() + _FORGET
        keys = None if self._keys_due is None else max(self._keys_due, self._not_before)
        return min((time for time in (due, self._doors.due(), keys) if time is not None), default=None)

    def _look(self) -> None:
        """Finds out whether there is work, and notes what has to change before another look is worth more than a commit
        costs."""
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
        sizes = log.segments.sizes
        self._least = usage.least(sizes, log.segments.size, tight=log.tight) if len(sizes) > 1 else 0
        self._most = log.spare_below
        if self._has_work:
            self._looked_at = None

    def begin(self) -> Upkeep | None:
        """Does a slice of the work. Returns what can be done in a thread, None if there is nothing. The caller commits,
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
            store.commit_early()  # nothing may be in a checkpoint that is taken back
            snapshot, self._snapshot = self._snapshot, None  # one that fails is over
            if snapshot.step():
                self._written = snapshot
            else:
                self._snapshot = snapshot
        elif self._wants_checkpoint() and not (store.log.tight and compaction.wanted):
            # Before compaction, which under a steady load always has something to do.
            self._snapshot = self._begin_checkpoint()
            store.checkpointed = store.log.position
        elif compaction.wanted:
            compaction.step()
            if store.log.is_short:
                self.make_room()  # before deletes use up the room for the other copies

    def _forget_keys(self) -> None:
        """Forgets old keys, in the queues to which nobody pushes any more too: they would hold segments."""
        until, now = perf_counter() + SLICE, self._clock()
        for keys in list(self._store.keyed):
            while keys.forget_old(now, _KEYS):
                if perf_counter() >= until:
                    return  # goes on with the next slice
            if not keys:
                self._store.keyed.discard(keys)
        self._keys_due = None

    def _take_in(self) -> Intake | None:
        """Continues with files that other programs have put into the directory of a queue."""
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
        """Takes over the results of what `begin` returned, once it has run."""
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
        """Removes at once what is not needed any more, as the disk is full, until there is a reserve again. Commits
        first, as what compaction has changed may have to be taken back. Returns whether there was anything. OSError for
        any reason but that compaction has no room either."""
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
            store.roll_back()  # what asked for room may need less than a segment's live messages
        finally:
            self._making_room = False
        return freed

    def settle_running(self) -> bool:
        """Waits for upkeep that is under way. Returns whether there was any."""
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
        """Tells whether reading what was written since the last checkpoint would take long."""
        log = self._store.log
        if not log.used:
            return False  # it says where the next frame goes
        since = 0 if self._store.checkpointed is None else self._store.checkpointed.segment
        written = 0
        for number, size in reversed(log.segments.sizes.items()):
            if number <= since or written >= _CHECKPOINT:
                break
            written += size if number != log.number else 0
        return written >= _CHECKPOINT

    def finish_running(self) -> None:
        """Waits for upkeep that is under way, whose results nobody will take over."""
        running, self._running = self._running, None
        if running is not None:
            running.run()

    def stop(self) -> None:
        """Waits for upkeep that is under way, and drops checkpoints that are not durable."""
        self.finish_running()
        for begun in (self._snapshot, self._written):
            if begun is not None:
                begun.give_up()
