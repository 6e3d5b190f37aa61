"""The `files` engine: a directory of queues, each a directory in the vsqs layout.

Several servers, and any vsqs process, may share the directory while they run.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial

from .engine import Draft, Durability, Message, Receipt, State, Stats, UnsupportedError
from .filequeue import FileQueue
from .root import RootDirectory

_STAGED = 1000
"""Messages that are being written, each with an open file, before they are made visible."""


class FilesEngine(RootDirectory):
    """Every operation is the file operation, at once."""

    name = "files"
    _staged_count = 0

    # -- messages -------------------------------------------------------------------------------------------------

    def push(self, qid: str, drafts: Sequence[Draft]) -> list[int]:
        queue = self._queue(qid)
        mids = queue.push(drafts)
        self._staged[qid] = queue
        self._staged_count += len(mids)
        if self._staged_count >= _STAGED:
            self.flush()
        return mids

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
        queues = [self._queue(qid) for qid in dict.fromkeys(qids)]
        self.flush()
        for queue in queues:
            queue.expire()
        found: list[Message] = []
        holder = self._holders.own() if held else ""
        try:
            _take_oldest(queues, found, count, visibility, max_bytes, holder=holder)
        except OSError:
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
        if any(target.options.timestamps != source.options.timestamps for target in targets):
            raise UnsupportedError("a message cannot be copied to a queue whose ids have another unit (timestamps)")
        done: list[FileQueue] = []
        try:
            for target in targets:
                if target is source or not source.copy_to(mid, target):
                    continue
                failures = target.flush()
                if failures:
                    raise failures[mid]
                done.append(target)
        except BaseException:
            for target in done:
                target.unlink(mid, 0)
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

    def last_mid(self, qid: str) -> int:
        return self._queue(qid).last_mid

    # -- figures, time, durability --------------------------------------------------------------------------------

    def prepare_stats(self, qid: str) -> bool:
        return self._queue(qid).prepare_stats()

    def stats(self, qid: str) -> Stats:
        self.flush()
        return self._queue(qid).stats()

    def commit(self) -> None:
        self.flush()
        if self._durability is not Durability.ALWAYS:
            return
        dirty, self._activity.dirty = self._activity.dirty, set()
        failure: OSError | None = None
        for qid in dirty:
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
        if self._durability is not Durability.INTERVAL or not (self._activity.dirty or self._root_dirty):
            return None
        self._activity.dirty.clear()
        self._root_dirty = False
        return partial(self._disk.sync_file_system, self._root)

    def refresh(self) -> None:
        self._watch.refresh()

    def fileno(self) -> int | None:
        return self._watch.fileno()

    def next_expiry(self) -> int | None:
        first = self._first_expiry()
        return None if first is None else first[0]

    def _first_expiry(self) -> tuple[int, FileQueue] | None:
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
        failed: list[FileQueue] = []
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
            if (sync := self.background_sync()) is not None:
                sync()
        finally:
            for queue in list(self._queues.values()):
                queue.close()
            self._holders.close()
            self._watch.close()


def _take_oldest(
    queues: Sequence[FileQueue],
    found: list[Message],
    count: int,
    visibility: int | None,
    max_bytes: int,
    *,
    holder: str,
) -> None:
    room: int | None = None  # the first message is handed out whatever its size
    while len(found) < count:
        first = min(
            ((q.time(mid), mid, q) for q in queues if (mid := q.first_ready()) is not None), key=_age, default=None
        )
        if first is None:
            return
        _, mid, queue = first
        try:
            message = queue.take(mid, visibility, room, holder=holder)
        except OSError:
            queue.arrived()  # it is there still, for whoever comes next
            raise
        if message is not None:
            found.append(message)
            room = (max_bytes if room is None else room) - len(message.payload or b"")
        elif room is not None and queue.first_ready() == mid:
            return  # too large for what room there is left


def _age(entry: tuple[int, int, FileQueue]) -> int:
    return entry[0]
