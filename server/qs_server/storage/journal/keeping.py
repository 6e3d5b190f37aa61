"""The journal of a root directory and its queues: opened when there is one, replayed, written back, brought to rest."""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter

from ..directory import Shared
from ..disk import Disk
from ..engine import SECOND, Background, Clock, Durability, Options
from ..filequeue import FileQueue
from . import records
from .journal import Journal
from .ledger import Ledger, SpillLimits
from .queue import JournalQueue
from .recorded import ANNOUNCE
from .recovery import Recovered, recover, set_torn_aside
from .replay import Replay, check_unused
from .spill import Spill

_logger = logging.getLogger(__name__)
DIRECTORY = ".journal"
_SECONDS = 0.05
"""That a spill takes, about, so that it can be done a little at a time beside many requests."""
_TRY_AGAIN = 1 * SECOND
"""After which what could not be written back is tried again."""
_GONE = FileNotFoundError(errno.ENOENT, "the directory of their queue is gone")
"""Why nothing more can be written back, where no file operation says so."""


class JournalKeeping:
    """What an engine has to do about its journal."""

    def __init__(self, root: str, clock: Clock, durability: Durability, disk: Disk, limits: SpillLimits) -> None:
        """Opens nothing: see `open_queue`."""
        self._root = root
        self._clock = clock
        self._durability = durability
        self._disk = disk
        self._limits = limits
        self._ledger: Ledger | None = None
        self._recovered: Recovered | None = None
        self._queues: dict[str, JournalQueue] = {}
        self._removals: list[tuple[int, str]] = []
        self._recorded: list[tuple[int, str]] = []  # those which the frame that is being made says
        self._complaint = ""
        self._making_room = False
        self._running: Spill | None = None
        self._not_before = 0
        self._replayed = False

    @property
    def queues(self) -> int:
        """How many there are."""
        return len(self._queues)

    def has(self, qid: str) -> bool:
        """Whether a queue is one of them."""
        return qid in self._queues

    @property
    def quick(self) -> bool:
        """Whether a commit is over soon enough to wait for it."""
        return self._ledger is not None and self._ledger.journal.quick

    # -- queues ---------------------------------------------------------------------------------------------------

    def open(self) -> Ledger:
        """Takes the journal, though there may be no queue yet. JournalDamagedError, InUseError."""
        if self._ledger is None:
            self._ledger = self._open()
        return self._ledger

    def open_queue(self, path: str, qid: str, options: Options, shared: Shared) -> JournalQueue:
        """The queue in a directory. JournalDamagedError, InUseError with the first one."""
        queue = JournalQueue(path, qid, options, shared, self.open())
        self._queues[qid] = queue
        if self._recovered is None:
            queue.settle()
        return queue

    def _open(self) -> Ledger:
        directory = f"{self._root}/{DIRECTORY}"
        journal = Journal(directory, self._disk, self._durability, perf_counter)
        try:
            self._recovered = recover(directory, self._disk)
            journal.resume(self._recovered)
        except BaseException:
            journal.close()
            raise
        journal.first_records = self._announcements
        journal.has_begun = self._announced
        ledger = Ledger(journal, self._limits)
        ledger.make_room = self._make_room
        ledger.relieve = self.relieve
        ledger.wait_for_spill = self._wait_for_spill
        return ledger

    def _announcements(self) -> Iterable[bytes]:
        return [queue.record() for queue in self._queues.values()]

    def _announced(self, segment: int) -> None:
        for queue in self._queues.values():
            queue.recorded_in(segment)

    def replay(self, queues: Mapping[str, FileQueue]) -> None:
        """Applies to the queues, which have been listed, what the journal says of them."""
        recovered, self._recovered = self._recovered, None
        if self._ledger is None:
            self._look_for_messages(queues)
        if self._ledger is None or recovered is None:
            return
        if recovered.torn is not None:
            set_torn_aside(recovered.torn, self._disk)
            self._replayed = True
        replay = Replay(queues, self._ledger)
        replay.apply(recovered.records())
        self._replayed |= replay.changes > 0
        for queue in self._queues.values():
            queue.settle()
        self._ledger.commit()

    def _look_for_messages(self, queues: Mapping[str, FileQueue]) -> None:
        """No queue is of the journal. StorageError when there is one nevertheless, and it has messages of theirs."""
        directory = f"{self._root}/{DIRECTORY}"
        if os.path.isdir(directory):
            check_unused(recover(directory, self._disk).records(), queues)

    def rescue(self, queue: FileQueue) -> None:
        """Somebody has taken a queue's directory away. If it is in the root under another name, what it does not show
        is written into it now: under that name it is a queue like any other."""
        if not isinstance(queue, JournalQueue) or self._ledger is None or queue.in_place():
            return
        self._wait_for_spill()
        path = next((p for n in self._disk.directories_in(self._root) if queue.is_at(p := f"{self._root}/{n}")), None)
        if path is None:
            return
        self._ledger.commit_early()
        queue.path = path
        error = None
        while error is None and (spill := self._plan_all(self._ledger, queue)):
            spill.run()
            spill.settle()
            error = spill.error or (_GONE if spill.stuck else None)
        if error is not None:
            _logger.error("messages of queue %r could not be written to %s: %s", queue.qid, path, error)

    def _plan_all(self, ledger: Ledger, queue: JournalQueue) -> Spill:
        spill = Spill(ledger.journal, self._disk, sync=self._durability is not Durability.NONE, spare=False)
        spill.plan([queue], self._clock(), 0)
        return spill

    def forget(self, queue: FileQueue) -> None:
        """A queue's directory has gone. That is recorded before there can be another one of the name."""
        if self._queues.get(queue.qid) is queue and isinstance(queue, JournalQueue):
            del self._queues[queue.qid]
            self._removals.append((queue.journal_number, queue.qid))
            if self._ledger is not None:
                try:
                    self._note_removals(self._ledger)
                except OSError as error:
                    _logger.warning("that queue %r has gone is not in the journal yet: %s", queue.qid, error)

    def prepare_removal(self, queue: FileQueue) -> None:
        """A queue is about to be removed: nothing writes to its directory any more, and it shows what is true."""
        if isinstance(queue, JournalQueue):
            self._wait_for_spill()
            if not len(queue):
                queue.clear_directory()

    def commit_removals(self) -> None:
        """That queues have gone is durable, as directories and in the journal; from then on there may be others of the
        same names. OSError."""
        if (self._removals or self._recorded) and self._ledger is not None:
            self._note_removals(self._ledger)
            try:
                self._ledger.commit_early()
            except OSError:
                self._removals += self._recorded
                self._recorded.clear()
                raise
            self._recorded.clear()

    def _note_removals_or_wait(self, ledger: Ledger) -> None:
        try:
            self._note_removals(ledger)
        except FileNotFoundError:  # of the root itself: they wait, and requests that change nothing need not
            if ledger.changed:
                raise

    def _note_removals(self, ledger: Ledger) -> None:
        if not self._removals:
            return
        if self._durability is not Durability.NONE:
            self._disk.sync_directory(self._root)  # first: what the journal calls removed must not come back
        ledger.reserve((ANNOUNCE + records.SMALL) * len(self._removals))
        for number, qid in self._removals:
            ledger.journal.append(records.queue(number, -1, qid))  # no segment may have said so yet
            ledger.journal.append(records.remove(number))
        self._recorded += self._removals
        self._removals.clear()

    # -- durability -----------------------------------------------------------------------------------------------

    def commit(self, before: Callable[[], None] = lambda: None) -> None:
        """Everything that was asked of the queues since the last one. before: what has to succeed first. OSError: it
        has been taken back."""
        if self._ledger is None:
            before()
            return
        try:
            before()
            self._note_removals_or_wait(self._ledger)
        except OSError:
            self._ledger.abandon()
            raise
        try:
            self._ledger.commit()
        except OSError:
            self._removals += self._recorded
            raise
        finally:
            self._recorded.clear()

    def background_sync(self) -> Callable[[], None] | None:
        """See Engine."""
        return None if self._ledger is None else self._ledger.journal.background_sync()

    # -- writing back ---------------------------------------------------------------------------------------------

    def relieve(self) -> None:
        """While far too much is in memory: writes some of it back at once. To be called when nothing is uncommitted.
        What cannot be written makes pushes be refused."""
        ledger = self._ledger
        while ledger is not None and ledger.overloaded and ledger.refusal is None:
            spill = self._running or self.begin_spill()
            if spill is None:
                return
            spill.run()
            self.finish_spill(spill)
            if spill.stuck:
                return

    def next_spill(self) -> int | None:
        """See Engine."""
        ledger = self._ledger
        if ledger is None or self._running is not None or ledger.journal.failed:
            return None
        journal = ledger.journal
        if ledger.urgent or journal.wants_spare is not None or journal.has_garbage:
            return self._not_before
        if ledger.due is None:
            if journal.segments == 1 or not journal.used:
                return None
            ledger.behind(self._clock())
        return max(ledger.due or 0, self._not_before)

    @property
    def urgent(self) -> bool:
        """See Engine.spill_is_urgent."""
        return self._ledger is not None and self._ledger.urgent

    def begin_spill(self, *, brief: bool = False, everything: bool = False) -> Spill | None:
        """See Engine. everything: whatever its age, and no spare segment, which only a server that goes on needs."""
        ledger = self._ledger
        if ledger is None or self._running is not None or ledger.journal.failed:
            return None
        now = self._clock()
        self._checkpoint(ledger, now)
        spill = Spill(ledger.journal, self._disk, sync=self._durability is not Durability.NONE, spare=not everything)
        spill.garbage = ledger.journal.take_garbage()
        if not everything and not ledger.urgent:
            spill.seconds = _SECONDS
        if not brief:
            spill.plan(self._queues.values(), now, 0 if everything or ledger.urgent else self._limits.age)
            self._reschedule(ledger)
        if not spill:
            self._not_before = now + _TRY_AGAIN if ledger.urgent else self._not_before
            return None
        self._running = spill
        return spill

    def _reschedule(self, ledger: Ledger) -> None:
        since = min((s for q in self._queues.values() if (s := q.entries.since()) is not None), default=None)
        ledger.due = None
        if since is not None:
            ledger.behind(min(since, self._clock()))

    def finish_spill(self, spill: Background) -> None:
        """See Engine."""
        if spill is not self._running or not isinstance(spill, Spill) or self._ledger is None:
            return
        self._running = None
        spill.settle()
        self._ledger.refusal = spill.error
        if spill.error is not None or spill.spare_error is not None:
            self._not_before = self._clock() + _TRY_AGAIN
        self._complain(spill.error, self._ledger.journal.supply.shortage)
        self._reschedule(self._ledger)
        self._checkpoint(self._ledger, self._clock())

    def _complain(self, error: OSError | None, shortage: OSError | None) -> None:
        """Says what is wrong, once, and that it is over."""
        complaint = ""
        if error is not None:
            complaint = f"messages stay in the journal, as their files cannot be written or removed: {error}"
        elif shortage is not None:
            complaint = f"there is no room for more of the journal, and soon none for messages: {shortage}"
        if complaint and complaint != self._complaint:
            _logger.error("%s; see to %s (room, permissions); it is tried again every second", complaint, self._root)
        elif self._complaint and not complaint:
            _logger.warning("messages are written to files again, and there is room for more of the journal")
        self._complaint = complaint

    def _wait_for_spill(self) -> None:
        if self._running is not None:
            self._running.run()
            self.finish_spill(self._running)

    def _removable(self, ledger: Ledger) -> int | None:
        """The oldest segment that is needed, if there are older ones."""
        journal = ledger.journal
        if journal.segments <= 1:
            return None
        needed = [segment for q in self._queues.values() if (segment := q.entries.oldest_segment()) is not None]
        oldest = min([*needed, journal.number])
        return oldest if oldest > journal.oldest() else None

    def _checkpoint(self, ledger: Ledger, now: int) -> None:
        """Gives up the segments that nothing needs any more, with the next commit."""
        journal, oldest = ledger.journal, self._removable(ledger)
        if oldest is None:
            return
        try:
            for queue in self._queues.values():
                queue.carry_keys(oldest, now)
            ledger.reserve(records.SMALL)
        except OSError as error:
            _logger.warning("old segments of the journal stay for now: %s", error)
        else:
            journal.checkpoint(oldest)

    def _make_room(self) -> bool:
        """On a full disk, in the middle of a batch: what is being written at leisure is waited for, as a file that is
        half made may be what there is no room beside; then the files of messages that are deleted are removed, and the
        segments that nothing needs. Whether there was anything. OSError: see Ledger.commit_early."""
        ledger = self._ledger
        if ledger is None or self._making_room:
            return False
        self._making_room = True
        try:
            waited = self._running is not None
            self._wait_for_spill()
            if any(q.entries.gone for q in self._queues.values()) or self._removable(ledger) is not None:
                self._remove_what_is_over(ledger)
                return True
            return waited
        finally:
            self._making_room = False

    def _remove_what_is_over(self, ledger: Ledger) -> None:
        ledger.commit_early()
        spill = Spill(ledger.journal, self._disk, sync=self._durability is not Durability.NONE, spare=False)
        spill.plan_burials(self._queues.values())
        spill.run()
        spill.settle()
        self._checkpoint(ledger, self._clock())
        ledger.commit_early()
        self._remove_garbage(ledger)

    def _remove_garbage(self, ledger: Ledger) -> None:
        spill = Spill(ledger.journal, self._disk, sync=self._durability is not Durability.NONE, spare=False)
        spill.garbage = ledger.journal.take_garbage()
        spill.run()
        spill.settle()

    # -- the end --------------------------------------------------------------------------------------------------

    def come_to_rest(self, finish: Callable[[Background], None]) -> OSError | None:
        """Writes everything to the directories, and leaves the journal with nothing but what they cannot show. Returns
        why something could not be written, and stays in the journal for the next start; None: nothing does. OSError: a
        commit failed."""
        ledger = self._ledger
        if ledger is None:
            return None
        if ledger.journal.failed:
            return OSError(errno.EIO, "the journal failed")
        if self._running is not None:
            self._running.run()
            finish(self._running)
        for queue in self._queues.values():
            queue.come_to_rest()
        while (spill := self.begin_spill(everything=True)) is not None:
            spill.run()
            finish(spill)
            self.commit()
            if spill.error is not None or spill.stuck:
                return spill.error or _GONE
        return self._rest(ledger.journal)

    def _rest(self, journal: Journal) -> OSError | None:
        """The directories show everything. Returns why the journal is not small all the same."""
        if not journal.used and not self._replayed:
            return None
        now = self._clock()
        bodies = [queue.record() for queue in self._queues.values()]
        for queue in self._queues.values():
            bodies += queue.key_records(now)
        try:
            journal.rest(bodies)
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        """Lets go of the files."""
        if self._ledger is not None:
            if self._running is not None:
                self._running.run()
            self._ledger.journal.close()
            self._ledger = None
