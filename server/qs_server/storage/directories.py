"""The engine over a root directory: queues of files, of the journal, and in dirq's layouts, side by side.

Each queue is a directory, and its options say which kind it is. Without queues of the journal, several servers and any
program that knows the layouts may share the root while they run; the journal has one server.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from .disk import Disk
from .engine import (
    Background,
    Clock,
    Draft,
    Durability,
    Message,
    Options,
    Receipt,
    State,
    Stats,
    StorageError,
    UnfinishedError,
    UnsupportedError,
)
from .journal.batches import LogBatches
from .journal.claims import LogClaims
from .journal.keeper import LogKeeper
from .journal.queue import LogQueue
from .journal.store import CACHE
from .lifecycle import Lifecycle
from .queues import EngineQueue
from .root import RootDirectory

_STAGED = 1000
"""Messages that are being written, each with an open file, before they are made visible."""


class DirectoriesEngine(RootDirectory):
    """What is asked of one queue is done by that; this is what concerns several, or all."""

    _staged_count = 0

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        durability: Durability,
        disk: Disk | None = None,
        cache: int = CACHE,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        """root: an existing directory. cache: bytes of payloads of the journal that are kept in memory. OSError when
        the root cannot be used; StorageError when a `.queue.toml` is wrong, or the journal is damaged or another
        server's."""
        disk = disk or Disk()
        self._journal = LogKeeper(root, clock, durability, disk, cache)
        if self.name == "journal":
            self._journal.open()
        try:
            super().__init__(root, clock=clock, durability=durability, disk=disk, lifecycle=lifecycle)
            self._journal.replay(self._kind_of, self._shared)
        except BaseException:
            self._journal.close()
            self._watch.close()
            raise

    # -- queues ---------------------------------------------------------------------------------------------------

    def _kind_of(self, qid: str) -> str | None:
        queue = self._queues.get(qid)
        return None if queue is None else queue.options.storage

    def _take_up(self, path: str, qid: str, options: Options) -> EngineQueue:
        if options.storage == "journal":
            return self._journal.open_queue(path, qid, options, self._shared)
        return super()._take_up(path, qid, options)

    def _forget(self, qid: str) -> None:
        queue = self._queues.get(qid)
        super()._forget(qid)
        if isinstance(queue, LogQueue):
            self._journal.forget(queue)

    def create(self, qid: str, options: Options) -> None:
        self._journal.commit_removals()  # before there is another queue of the name
        super().create(qid, options)

    def remove(self, qid: str, *, force: bool) -> None:
        queue = self._queue(qid)
        if isinstance(queue, LogQueue) and not force:
            queue.clear_door()
        super().remove(qid, force=force)

    def take_in_files(self, qid: str) -> Iterator[int]:
        """Takes in all files in the directory of a queue of the journal, piece by piece; how many each time. For
        commands, without a server. OSError."""
        queue = self._queue(qid)
        return self._journal.take_in_files(queue) if isinstance(queue, LogQueue) else iter(())

    def size(self, qid: str) -> int:
        """How many messages a queue has, hidden ones included."""
        return len(self._queue(qid))

    # -- messages -------------------------------------------------------------------------------------------------

    def push(self, qid: str, drafts: Sequence[Draft]) -> list[int]:
        queue = self._queue(qid)
        mids = queue.push(drafts)
        self._staged[qid] = queue
        self._staged_count += len(mids)
        if self._staged_count >= _STAGED:
            self.flush()
        return mids

    def pushes_in_bulk(self, qid: str) -> bool:
        return self._journal.has(qid)

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

    def receive(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int, *, held: bool = False
    ) -> list[Message]:
        queues = [self._queue(qid) for qid in (qids if len(qids) == 1 else dict.fromkeys(qids))]
        self.flush()
        for queue in queues:
            queue.expire()
        found: list[Message] = []
        if count > 1 and len(queues) == 1 and isinstance(queue := queues[0], LogQueue):
            return queue.take_first(count, visibility, max_bytes, held=held)
        try:
            _take_oldest(queues, found, count, visibility, max_bytes, held=held)
        except (OSError, StorageError):
            if not found:
                raise  # else those that were received are handed out; the next call says it again
        return found

    def get(self, qid: str, mid: int, *, peek: bool, visibility: int | None) -> Message:
        self.flush()
        return self._queue(qid).get(mid, peek=peek, visibility=visibility)

    def read(self, qid: str, receipt: Receipt) -> Message:
        self.flush()
        return self._queue(qid).read_held(receipt)

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        source = self._queue(qid)
        targets = [self._queue(target) for target in dict.fromkeys(into)]
        self.flush()
        if not all(_carries(target.options, source.options) for target in targets):
            raise UnsupportedError(
                "a message cannot be copied to a queue whose ids have another unit (timestamps), or are those of "
                "another kind of storage (dirq)"
            )
        done: list[EngineQueue] = []
        try:
            for target in targets:
                if target is source or not target.take_in(mid, source):
                    continue
                failures = target.flush()
                if failures:
                    raise failures[mid]
                done.append(target)
        except BaseException:
            for target in done:
                target.remove(mid, 0)
            raise

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

    def claims(self, qid: str) -> LogClaims:
        queue = self._queue(qid)
        if not isinstance(queue, LogQueue):
            return super().claims(qid)
        self.flush()
        return queue.claims

    def batches(self, qid: str) -> LogBatches:
        queue = self._queue(qid)
        if not isinstance(queue, LogQueue):
            return super().batches(qid)
        self.flush()
        return queue.batches

    def last_mid(self, qid: str) -> int:
        return self._queue(qid).last_mid

    # -- figures, time, durability --------------------------------------------------------------------------------

    def prepare_stats(self, qid: str) -> bool:
        return self._queue(qid).prepare_stats()

    def stats(self, qid: str) -> Stats:
        self.flush()
        return self._queue(qid).stats()

    @property
    def _has_files(self) -> bool:
        """Whether there are queues of files."""
        return len(self._queues) > self._journal.queues

    @property
    def quick(self) -> bool:
        return self._journal.quick and not self._has_files

    def commit(self) -> None:
        self.flush()
        self._journal.commit(before=self._commit_files)

    @property
    def early_commits(self) -> int:
        return self._journal.early_commits

    def roll_back(self) -> int:
        self._journal.roll_back()
        if self._durability is Durability.ALWAYS and (self._staged or self._activity.dirty or self._root_dirty):
            return 0  # what was changed in directories is not durable, whoever did it
        return self._journal.early_commits

    def _commit_files(self) -> None:
        if self._durability is not Durability.ALWAYS:
            return
        dirty, self._activity.dirty = self._activity.dirty, set()
        failure: OSError | None = None
        for qid in sorted(dirty):
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
        if self._durability is not Durability.INTERVAL:
            return None
        journal = self._journal.background_sync()
        files = bool(self._activity.dirty or self._root_dirty)
        self._activity.dirty.clear()
        self._root_dirty = False

        def sync() -> None:
            if journal is not None:
                journal()
            if files:
                self._disk.sync_file_system(self._root)

        return sync if files or journal is not None else None

    def next_upkeep(self) -> int | None:
        return self._journal.next_upkeep()

    def begin_upkeep(self) -> Background | None:
        return self._journal.begin_upkeep()

    def finish_upkeep(self, upkeep: Background) -> None:
        self._journal.finish_upkeep(upkeep)

    def refresh(self) -> None:
        self._watch.refresh()

    def fileno(self) -> int | None:
        return self._watch.fileno()

    def next_expiry(self) -> int | None:
        first = self._first_expiry()
        return None if first is None else first[0]

    def _first_expiry(self) -> tuple[int, EngineQueue] | None:
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
        failed: list[EngineQueue] = []
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
    """Whether an id of the one queue means the same in the other."""
    return target.storage == "null" or _ids_of(target) == _ids_of(source)


def _ids_of(options: Options) -> str:
    return "dirq" if options.storage in ("dirq", "dirq-simple") else options.timestamps


def _take_oldest(
    queues: Sequence[EngineQueue],
    found: list[Message],
    count: int,
    visibility: int | None,
    max_bytes: int,
    *,
    held: bool,
) -> None:
    room: int | None = None  # the first message is handed out whatever its size
    while len(found) < count:
        first = _oldest(queues)
        if first is None:
            return
        mid, queue = first
        try:
            message = queue.take(mid, visibility, room, held=held)
        except (OSError, StorageError):
            queue.arrived()  # it is there still, for whoever comes next
            raise
        if message is not None:
            found.append(message)
            room = (max_bytes if room is None else room) - len(message.payload or b"")
        elif room is not None and queue.first_ready() == mid:
            return  # too large for what room there is left


def _oldest(queues: Sequence[EngineQueue]) -> tuple[int, EngineQueue] | None:
    if len(queues) == 1:
        mid = queues[0].first_ready()
        return None if mid is None else (mid, queues[0])
    found = ((q.time(mid), mid, q) for q in queues if (mid := q.first_ready()) is not None)
    first = min(found, key=itemgetter(0), default=None)
    return None if first is None else first[1:]
