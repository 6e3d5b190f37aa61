"""The engine over a root directory, with queues of the journal, of files and in dirq's layouts side by side.

Each queue is a directory; its options name its storage. The journal has one server. Without it, several servers and
any program that knows the layouts may share the root.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar, NamedTuple

from .directory_queue import DirectoryQueue
from .dirq.message_queue import open_dirq_queue
from .disk import Disk
from .door import Check, Door, Refusal
from .engine import (
    LEFT,
    Background,
    Clock,
    Durability,
    Effects,
    Engine,
    Feature,
    Message,
    NoRoomError,
    NoSuchQueueError,
    Options,
    QueueExistsError,
    UnfinishedError,
    UnsupportedError,
)
from .files.queue import FilesQueue
from .journal.journal import Journal
from .journal.log.log import QUICK
from .journal.log.reader import CACHE
from .journal.queues.keys import KEYS
from .journal.queues.queue import LogQueue
from .nullqueue import NullQueue
from .root import OpenQueue, RootDirectory
from .shared import Activity, EngineContext, EngineQueue, Lifecycle, take_oldest
from .watch import Watch

_new = tuple.__new__
_REPORTS = 4000
"""Reports of our own changes before they are read. The kernel keeps 16,384, then it drops some, and all directories
have to be listed again."""


class _Upkeep(NamedTuple):
    """Work on the journal, and checks of what other programs have put into queues of files, in one thread."""

    work: Background | None
    check: Check

    def run(self) -> None:
        """Does both. Never raises."""
        if self.work is not None:
            self.work.run()
        self.check.run()


class DirectoriesEngine(Engine):
    """Serves a root directory: does what concerns several queues, or all.

    Ensures:
    1. Queues of all storages in the root behave alike: a receive from several, a copy, dead letters, expiries.
    2. A commit makes the journal durable last, after the directories of queues that its records rely on.
    3. A failure of one queue holds up no other: the engine syncs or expires the others, and then raises the error.
    4. The engine notices directories that other programs make, remove or exchange, and reopens them between two
       operations.

    Assumes that a journal in the root belongs to this server: a lock says so. Never polls: `fileno` is readable when
    another program has changed something."""

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        durability: Durability,
        disk: Disk | None = None,
        cache: int = CACHE,
        keys: int = KEYS,
        lifecycle: Lifecycle | None = None,
        on_sync: Callable[[float], object] = lambda seconds: None,
        refusal: Refusal | None = None,
    ) -> None:
        """root: an existing directory; cache: the most bytes of the journal's payloads in memory; keys: the most keys
        of pushes that the journal remembers; on_sync: called with the seconds of each sync of the journal, in any
        thread; refusal: checks what other programs put into queues with a schema, None to check nothing. OSError;
        StorageError for a wrong `.queue.toml`, or a journal that is damaged or used by another server."""
        self._clock = clock
        self._durability = durability
        self._disk = disk or Disk()
        self._journal = Journal(root, clock, durability, self._disk, cache, on_sync, keys)
        if self.name == "journal":
            # Before the queues: a root that another server uses is refused before anything in it is looked at.
            self._journal.open()
        self._watch = Watch()
        self._activity = Activity()
        self._door = None if refusal is None else Door(refusal, clock, self._disk)
        self._context = EngineContext(
            clock, durability, self._disk, self._watch, self._activity, self._find_or_make, lifecycle, self._door
        )
        storages: dict[str, OpenQueue] = {
            "journal": self._journal.open_queue,
            "files": FilesQueue,
            "dirq-simple": open_dirq_queue,
            "dirq": open_dirq_queue,
            "null": NullQueue,
        }
        self._root = RootDirectory(root, self._context, storages, self.name, self._journal.forget)
        self._queues = self._root.queues
        try:
            self._root.scan()
            # After all queues are open: records are applied to them, and a queue of the log without a directory is
            # known to be gone.
            self._journal.replay(self._storage_of, self._context)
        except BaseException:
            self._journal.close()
            self._watch.close()
            raise

    # -- queues ---------------------------------------------------------------------------------------------------

    def queues(self) -> Collection[str]:
        if self._activity.vanished:
            self._root.reopen_vanished()
        return self._queues.keys()

    def in_place(self, qid: str) -> bool:
        return self._root.in_place(qid)

    def queue(self, qid: str) -> EngineQueue:
        queue = self._queues.get(qid)
        if queue is None or self._activity.vanished or len(self._watch.expected) > _REPORTS:
            self.refresh()  # somebody may just have made it
            queue = self._queues.get(qid)
            if queue is None:
                raise NoSuchQueueError(f"there is no queue {qid!r}")
        return queue

    def _storage_of(self, qid: str) -> str | None:
        queue = self._queues.get(qid)
        return None if queue is None else queue.options.storage

    def create(self, qid: str, options: Options) -> None:
        self._root.create(qid, options)

    def _find_or_make(self, qid: str, storage: str) -> EngineQueue:
        """Returns a dead-letter queue, which it makes if it is missing. Does not refresh the root, which could close
        the queue that the caller is using. StorageError, OSError."""
        if qid not in self._queues:
            try:
                self.create(qid, Options(storage=storage))
            except QueueExistsError:
                self._root.reopen(qid)  # another server has just made it
        if self._durability is not Durability.NONE and self._root.dirty:
            self._root.sync()  # no message may be in a queue whose directory a power loss undoes
        if qid not in self._queues:
            raise NoSuchQueueError("its directory cannot be opened")
        return self._queues[qid]

    def configure(self, qid: str, options: Options) -> None:
        queue = self.queue(qid)
        before = queue.options.schema
        self._root.configure(queue, options)
        if queue.options.schema != before:
            self._check_again(queue)

    def check_again(self) -> None:
        for queue in self._queues.values():
            if queue.options.schema:
                self._check_again(queue)

    def _check_again(self, queue: EngineQueue) -> None:
        if isinstance(queue, LogQueue):
            self._journal.look_again(queue)
        elif isinstance(queue, DirectoryQueue) and self._door is not None:
            self._door.look_again(queue.store)

    def remove(self, qid: str, *, force: bool) -> None:
        self._root.remove(self.queue(qid), force=force)

    def ingest_files(self, qid: str) -> Iterator[int]:
        """Makes messages of all files in the directory of a journal's queue, slice by slice, for commands. Yields the
        number of files after each slice. OSError."""
        queue = self.queue(qid)
        return self._journal.ingest_files(queue) if isinstance(queue, LogQueue) else iter(())

    # -- messages -------------------------------------------------------------------------------------------------

    def receive(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        held: bool = False,
        given: bool = False,
    ) -> list[Message]:
        queues: list[EngineQueue] = []
        # A name that stands twice is one queue: its messages must not be given out twice.
        for qid in dict.fromkeys(qids):
            queue = self.queue(qid)
            if queue.options.paused:
                continue
            # Dead letters need a commit first, and what a subscriber holds comes after it: they are left to the timer.
            if not held or queue.options.max_receives is None:
                queue.expire()
            queues.append(queue)
        # The usual receive, which one queue does faster than a merge of several.
        if len(queues) == 1:
            return queues[0].take_first(count, visibility, max_bytes, held=held)
        return take_oldest(queues, count, visibility, max_bytes, held=held, given=given)

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        source = self.queue(qid)
        targets = [self.queue(target) for target in dict.fromkeys(into)]
        if not all(_carries(target.options, source.options) for target in targets):
            raise UnsupportedError(
                "a message cannot be copied to a queue whose ids have another unit (timestamps), or are those of "
                "another kind of storage (dirq)"
            )
        logged = [target for target in targets if isinstance(target, LogQueue) and target is not source]
        if logged:
            # Looked at for all copies together: a batch that ends between two copies would leave the first one alone.
            logged[0].require_copies(len(logged), source, mid)
        done: list[EngineQueue] = []
        try:
            for target in targets:
                if target is not source and target.take_in(mid, source):
                    done.append(target)  # noqa: PERF401 - they are what has to be taken back
        except BaseException:
            for target in done:
                # All or none: the copies that were made go again.
                target.remove(mid, 0)
            raise

    # -- time, durability --------------------------------------------------------------------------------

    def commit(self) -> Effects:
        activity = self._activity
        if activity.pending:
            self._root.publish_pending()
        if self._durability is Durability.ALWAYS and (activity.dirty or self._root.dirty):
            try:
                self._commit_files()
            except OSError:
                self._journal.take_back()
                raise
        self._journal.commit()
        return self.effects()

    def effects(self) -> Effects:
        activity, journal = self._activity, self._journal
        if activity.pending:
            self._root.publish_pending()
        if activity.vanished:
            self._root.reopen_vanished()
        failed = self._root.take_failures() if self._root.failures else {}
        arrived: dict[str, int] = {}
        if activity.arrived:
            qids, activity.arrived = activity.arrived, set()
            for qid in qids:
                queue = self._queues.get(qid)
                if queue is not None and not queue.options.paused and (ready := queue.obtainable):
                    arrived[qid] = ready
                if queue is not None and queue.options.retention is not None:
                    self._announce(queue)
        if self._root.gone:
            arrived.update(dict.fromkeys(self._root.take_gone(), sys.maxsize))
        # Queues of files sync their messages in the commit, and together if they come first in a batch.
        has_files = len(self._queues) > len(journal.queues)
        maintenance, store = journal.maintenance, journal.store
        due = activity.expiries[0][0] if activity.expiries else None
        upkeep = None if maintenance is None else maintenance.next_due()
        if self._door is not None and (checks := self._door.due()) is not None:
            upkeep = checks if upkeep is None else min(checks, upkeep)
        is_cheap = not has_files and (store is None or store.transaction.cost < QUICK)
        room = LEFT if journal.transaction is None else journal.transaction.left
        return _new(Effects, (arrived, failed, due, upkeep, is_cheap, has_files, room))  # half the time of `Effects(…)`

    @property
    def room(self) -> int:  # type: ignore[override]
        transaction = self._journal.transaction
        return LEFT if transaction is None else transaction.left

    def secure(self, lacked: NoRoomError | None = None) -> None:
        self._journal.secure(lacked)

    def roll_back(self) -> None:
        self._journal.take_back()

    def _commit_files(self) -> None:
        # Taken first: a queue whose sync fails is put back, the others are done.
        dirty, self._activity.dirty = self._activity.dirty, set()
        failure: OSError | None = None
        for qid in sorted(dirty):
            queue = self._queues.get(qid)
            try:
                if queue is not None:
                    queue.commit()
            except FileNotFoundError:
                self._root.reopen(qid)  # somebody has removed the whole queue, and with it what there was to sync
            except OSError as error:
                failure = error  # raised after the others are synced
                self._activity.dirty.add(qid)
        self._root.sync()
        if failure is not None:
            raise failure

    def background_sync(self) -> Callable[[], None] | None:
        if self._durability is not Durability.INTERVAL:
            return None
        journal = self._journal.background_sync()
        # One sync of the whole file system, instead of one for each queue that has changed.
        files = self._root.take_dirty() or bool(self._activity.dirty)
        self._activity.dirty.clear()

        def sync() -> None:
            if journal is not None:
                journal()
            if files:
                self._disk.sync_file_system(self._root.path)

        return sync if files or journal is not None else None

    def begin_upkeep(self) -> Background | None:
        maintenance = self._journal.maintenance
        work = None if maintenance is None else maintenance.begin()
        check = None if self._door is None else self._door.begin()
        return work if check is None else _Upkeep(work, check)

    def finish_upkeep(self, upkeep: Background) -> None:
        if isinstance(upkeep, _Upkeep) and self._door is not None:
            self.refresh()  # what was written anew since it was read is checked again
            self._door.finish(upkeep.check)
        work = upkeep.work if isinstance(upkeep, _Upkeep) else upkeep
        if self._journal.maintenance is not None and work is not None:
            self._journal.maintenance.finish(work)

    def figures(self) -> dict[str, float]:
        try:
            free = {"disk_free_bytes": self._disk.free_bytes(self._root.path)}
        except OSError:
            free = {}  # the root is gone; the log says so
        return {**self._root.totals.figures(self._queues.values()), **self._journal.figures(), **free}

    def refresh(self) -> None:
        self._watch.refresh()
        if self._activity.vanished:
            self._root.reopen_vanished()

    def fileno(self) -> int | None:
        return self._watch.fileno()

    def _first_due(self) -> EngineQueue | None:
        """Returns a queue in which something is due, None if there is none. Replaces announced times that have come but
        do not hold any more: to do so at each change would make every receive and delete slower."""
        expiries = self._activity.expiries
        while expiries and expiries[0][0] <= self._clock():
            expiry, qid = expiries[0]
            queue = self._queues.get(qid)
            # The announced time may be of a window that ended early.
            actual = None if queue is None else queue.next_expiry()
            if queue is not None and actual == expiry:
                return queue
            self._activity.drop()
            if actual is not None:
                self._activity.announce(qid, actual)
        return None

    def _announce(self, queue: EngineQueue) -> None:
        due = queue.next_expiry()
        if due is not None:
            self._activity.announce(queue.qid, due)

    def expire(self, count: int) -> int:
        done = 0
        failed: list[EngineQueue] = []
        failure: OSError | None = None
        while done < count and (queue := self._first_due()) is not None:
            try:
                ended = queue.expire(count - done)
                ended += queue.retire(count - done - ended)
                done += ended
                if not ended:  # what is due is not to be seen yet, or somebody else was faster
                    break
            except OSError as error:  # raised after the others' leases have ended
                failure = error
                failed.append(queue)
                self._activity.drop()
        for queue in failed:
            self._announce(queue)
        if failure is not None:
            raise failure
        return done

    def close(self) -> None:
        try:
            self.commit()
            # After the commit: the checkpoint has what was committed.
            left = self._journal.rest()
            if (sync := self.background_sync()) is not None:
                sync()
        finally:
            self._journal.close()
            for queue in list(self._queues.values()):
                queue.close()
            self._watch.close()
        if left is not None:
            raise UnfinishedError(f"the journal failed, and takes nothing until the next start: {left}")


def _carries(target: Options, source: Options) -> bool:
    """Tells whether `target` can store a message of `source` under the same id: ids have to mean the same in both
    queues."""
    return target.storage == "null" or _ids_of(target) == _ids_of(source)


def _ids_of(options: Options) -> str:
    return "dirq" if options.storage in ("dirq", "dirq-simple") else options.timestamps


class JournalEngine(DirectoriesEngine):
    """Keeps new queues, and directories without options, in the journal."""

    name = "journal"
    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.SHARED})


_WITHOUT_LOG = frozenset(
    {
        *(Feature.KEY, Feature.UNIQUE, Feature.PRIORITY, Feature.EXPIRES, Feature.GROUP, Feature.PACE),
        *(Feature.CLAIM, Feature.HELD),
    }
)
"""Features that need one server that decides, and a log. Other programs take messages by the names of files alone."""


class FilesEngine(DirectoriesEngine):
    """Keeps new queues, and directories without options, in the vsqs layout."""

    name = "files"
    cannot: ClassVar[frozenset[Feature]] = _WITHOUT_LOG


_DIRQ_CANNOT = _WITHOUT_LOG | {Feature.WHOLE, Feature.DEAD, Feature.REDRIVE, Feature.REASON, Feature.MILLISECONDS}
"""An id is an element's name, and the elements of a list get their names one after the other."""


class DirqSimpleEngine(DirectoriesEngine):
    """Keeps new queues, and directories without options, in the layout of dirq's QueueSimple."""

    name = "dirq-simple"
    cannot: ClassVar[frozenset[Feature]] = _DIRQ_CANNOT | {Feature.HEADERS}


class DirqEngine(DirectoriesEngine):
    """Keeps new queues, and directories without options, in the layout of dirq's Queue."""

    name = "dirq"
    cannot: ClassVar[frozenset[Feature]] = _DIRQ_CANNOT


class NullEngine(DirectoriesEngine):
    """Keeps nothing in new queues, and in directories without options."""

    name = "null"
    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.KEEP, Feature.DURABLE})
