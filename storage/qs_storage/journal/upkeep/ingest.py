"""Turns files that other programs put into a queue's directory into messages of the log.

The `Ingester` of a queue decides which files are read, and writes the records; `run` works on the files, in the
background and some at a time. While the queue is full, files wait in the directory.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter

from ...disk import has_no_room
from ...door import LONG, is_refused
from ...engine import SECOND, Draft
from ...headers import pack_headers
from ...names import MAX_MID
from ...shared import EngineContext
from ..log import records
from ..log.attributes import Attributes, content_of
from ..queues.queue import LogQueue
from ..queues.store import PayloadStore
from .ingest_run import File, IngestRun

_logger = logging.getLogger(__name__)
_NAMES = 4096
"""The most reported names that are kept; if there are more, the directory is listed: that takes less memory than names
of a million files, and still finds all of them."""
_NAMED = 20
"""The most files that the server's log names as not being messages."""
_TRY_AGAIN = 1 * SECOND
"""Microseconds between tries after a failure."""


class Ingesters:
    """The ingesters of a log's queues. Finds out when one has work, and lets them work in rotation, so that a queue
    with many files does not keep others waiting."""

    def __init__(self) -> None:
        self._ingesters: dict[LogQueue, Ingester] = {}
        self.busy: dict[Ingester, None] = {}
        """The ingesters that may have work, in the order of the rotation."""

    def open(self, queue: LogQueue, context: EngineContext) -> None:
        """Makes the ingester of a queue, for the files that are in the queue's directory and those to come."""
        self._ingesters[queue] = Ingester(queue, self, context)

    def of(self, queue: LogQueue) -> "Ingester":
        """Returns the ingester of a queue. KeyError if it is closed."""
        return self._ingesters[queue]

    def close(self, queue: LogQueue) -> None:
        """Closes the ingester of a queue, if it has one."""
        ingester = self._ingesters.pop(queue, None)
        if ingester is not None:
            ingester.close()

    def wake(self, ingester: "Ingester") -> None:
        """Notes that an ingester may have work."""
        self.busy[ingester] = None

    def due(self) -> int | None:
        """Returns when the first ingester is due, 0 for now; None if none has both work and capacity in its queue."""
        first: int | None = None
        for ingester in list(self.busy):
            if not ingester.has_work:
                del self.busy[ingester]
            elif (due := ingester.due()) is not None:
                if not due:
                    return 0
                first = due if first is None else min(first, due)
        return first

    def next(self, now: int) -> "Ingester | None":
        """Returns an ingester that is due and makes it the last in the rotation; None if none is due."""
        for ingester in list(self.busy):
            if ingester.has_work and (due := ingester.due()) is not None and due <= now:
                del self.busy[ingester]
                self.busy[ingester] = None
                return ingester
        return None


def _oldest_first(blocks: Iterable[list[bytes]]) -> Iterator[bytes]:
    """Yields the names, sorted by their ids within each few thousand."""
    for block in blocks:
        for at in range(0, len(block), _NAMES):
            yield from sorted(block[at : at + _NAMES], key=lambda name: name.partition(b".")[0].rjust(18))


class Ingester:
    """Makes messages of the files in the directory of one queue. `Watch` reports which have come.

    Ensures:
    1. A file becomes a message exactly once, whatever crashes: see the steps in `ingest_run`.
    2. A file keeps its id if the id is free in the queue, and its state: receives, window or delay, reason.
    3. A file that is not a message stays where it is, and the server's log names it once. So does one that the queue's
       schema refuses, under another name: see `door.py`.
    4. While the queue is full, files wait in the directory.

    Assumes that the caller commits what `advance` has appended before it calls again. Never reads a file, which may
    take long: an `IngestRun` does, in another thread."""

    def __init__(self, queue: LogQueue, ingesters: Ingesters, context: EngineContext) -> None:
        self.path = queue.path
        self._queue = queue
        self._ingesters = ingesters
        self._context = context
        self._names: list[bytes] = []
        self._list_again = False
        self._listing: Iterator[bytes] | None = None
        self._listed_for: set[int] = set()  # tokens that the log had when the listing began
        self._gives_back = False  # the next listing gives what was refused its names back
        self._listing_gives_back = False
        self._running: IngestRun | None = None
        self._read: IngestRun | None = None  # its files are not in the log yet
        self._appended: IngestRun | None = None  # its files are in the log, and have to be removed
        self._not_before = 0
        self._logged_reason = ""  # why files wait, as last logged
        self._logged_refused: set[str] = set()
        self._is_closed = False
        # Before the listing: a file that comes in between is found twice, not never.
        self._watched = context.watch.add(self.path, self)
        self.rescan()

    def close(self) -> None:
        """Stops watching the directory, and makes no more messages."""
        self._is_closed = True
        if self._watched >= 0:
            self._context.watch.remove(self._watched)

    # -- scheduling work: see `Watched` ---------------------------------------------------------------------------

    def changed(self, name: bytes, *, appeared: bool, moved: bool = False) -> None:
        """Schedules a look at a file that was made or renamed in the directory."""
        if not appeared or is_refused(name):
            return
        if len(self._names) >= _NAMES:
            self.rescan()
        elif not self._list_again:
            self._names.append(name)
            self._ingesters.wake(self)

    def rescan(self) -> None:
        """Schedules a look at all files."""
        self._names.clear()
        self._list_again = True
        self._ingesters.wake(self)

    def look_again(self) -> None:
        """Schedules a look at all files, also at those that were refused, as the queue's schema has changed."""
        self._gives_back = True
        self._logged_refused.clear()
        self._not_before = 0
        self.rescan()

    def vanished(self) -> None:
        """Reports that the directory is gone."""
        self._context.vanished(self._queue.qid)

    @property
    def has_work(self) -> bool:
        """True if there is work, now or later."""
        return not self._is_closed and (self._waits or self._read is not None or self._appended is not None)

    @property
    def _waits(self) -> bool:
        return bool(self._names) or self._listing is not None or self._list_again

    def due(self) -> int | None:
        """Returns when the ingester is due, 0 for now; None if it waits for capacity in the queue or for `finish`."""
        if self._running is not None:
            return None
        if self._read is None and self._appended is None and self._room() <= 0:
            return None
        return self._not_before

    def _room(self) -> int:
        """Returns the number of files that the queue has capacity for."""
        capacity = self._queue.options.capacity
        return MAX_MID if capacity is None else capacity - len(self._queue)

    # -- doing the work -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The bytes of log that the next step takes."""
        return 0 if self._read is None else files_size(self._read.files)

    def advance(self, store: PayloadStore, *, beyond_capacity: bool = False) -> IngestRun | None:
        """Does the next step: appends the files that were read, for the caller to commit, and returns None; or returns
        the next run, for a thread. Call it when everything appended before is committed. beyond_capacity: True to take
        files in however many messages the queue has. OSError: the log has no room for `size`."""
        if self._read is None:
            return self._begin(store.log.background_sync(), MAX_MID if beyond_capacity else max(self._room(), 0))
        read = self._read
        self._append(read.files, read.token)
        self._read, self._appended = None, read
        store.transaction.undo(self._take_back)
        return None

    def _take_back(self) -> None:
        self._appended = None
        self.rescan()

    def _begin(self, before: Callable[[], None] | None, count: int) -> IngestRun:
        tokens = set(self._queue.taken)
        # A listing that is under way ends first: one begun anew each time would never come to its end.
        if self._list_again and self._listing is None:
            self._list_again = False
            self._listing_gives_back, self._gives_back = self._gives_back, False
            self._listing = _oldest_first(self._context.disk.file_blocks_in(self.path))
            self._listed_for = tokens
        names, self._names = self._names, []
        door, queue = self._context.door, self._queue
        fault = None
        if door is not None and queue.options.schema:
            # A copy, as the queue's options may change while the thread is at it.
            fault = partial(door.fault, queue.qid, replace(queue.options))
        work = self._running = IngestRun(
            self.path,
            self._context.disk,
            names=names,
            listing=self._listing,
            count=count,
            committed_tokens=tokens,
            to_remove=[] if self._appended is None else [file.name for file in self._appended.files],
            before=before,
            fault=fault,
            gives_back=self._listing_gives_back,
        )
        return work

    def finish(self, work: IngestRun) -> None:
        """Takes over the results of a run. The next `advance` appends its files."""
        self._running = None
        if self._is_closed:
            return
        for name, why in work.refused:
            self._log_refused(name, why)
        if work.error is not None:
            self._listing = None
            self._gives_back |= self._listing_gives_back
            self.rescan()
            self.put_off(work.error)
            return
        self._names[:0] = work.postponed
        if self._appended is not None:
            self._note_unlinked([self._appended.token])
            self._appended = None
        if self._listing is not None and work.listing is None:
            self._note_unlinked(self._listed_for.intersection(self._queue.taken))
        self._listing = work.listing
        if work.checking >= LONG:
            # Other work of the journal has waited for the end of the run: now it has as much time.
            self._not_before = self._context.clock() + int(work.checking * SECOND)
        if work.files:
            self._read = work
        if self._logged_reason:
            self._logged_reason = ""
            _logger.warning("files are taken in from %s again", self.path)
        self._ingesters.wake(self)

    def put_off(self, error: OSError) -> None:
        """Schedules another try, and logs the reason once."""
        self._not_before = self._context.clock() + _TRY_AGAIN
        self._ingesters.wake(self)
        reason = "there is no room for them" if has_no_room(error) else str(error)
        if reason != self._logged_reason and self._queue.in_place():
            _logger.error(
                "files in %s cannot be taken in, and wait: %s; qs tries again every second", self.path, reason
            )
            self._logged_reason = reason

    def _log_refused(self, name: str, why: str) -> None:
        if name in self._logged_refused or len(self._logged_refused) > _NAMED:
            return
        self._logged_refused.add(name)
        if len(self._logged_refused) > _NAMED:
            _logger.warning("%s holds more files that are not taken in; they are not named", self.path)
        else:
            _logger.warning("%s/%s is no message, and stays: %s", self.path, name, why)

    # -- the messages of files ------------------------------------------------------------------------------------

    def _append(self, files: Sequence[File], token: int) -> None:
        """Stores the messages of files. Each keeps its id if the id is free. If it raises NoRoomError, nothing has
        changed."""
        queue, transaction, now = self._queue, self._queue.transaction, self._context.clock()
        size = files_size(files)
        if size > transaction.left_to_pushes:
            raise transaction.refusal(size, push=True)
        kept: dict[int, File] = {}
        others: list[File] = []
        for file in sorted(files, key=itemgetter(1)):
            # The id is taken: the message gets a new one, as nothing may be lost or overwritten.
            if file.mid in kept or file.mid in queue.index.messages:
                others.append(file)
            else:
                kept[file.mid] = file
        self._append_run(list(kept), list(kept.values()), now)
        self._append_run(queue.free_ids(len(others), now), others, now)
        # In the same frame as the messages: so after a crash a file is one or the other.
        queue.taken[token] = transaction.append(records.Taken(queue.number, token).write())
        transaction.undo(queue.taken.pop, token)

    def _append_run(self, mids: Sequence[int], files: Sequence[File], now: int) -> None:
        if not files:
            return
        queue, transaction = self._queue, self._queue.transaction
        if any(file.headers for file in files):
            for mid, file in zip(mids, files, strict=True):
                queue.append_push(mid, 0, None, now, *content_of(Draft(file.payload, headers=file.headers), now, None))
        else:
            queue.push_run(mids, [file.payload for file in files], now)
        queue.saw(mids[-1])
        for mid, file in zip(mids, files, strict=True):
            if file.reason:
                transaction.append(records.Reason(queue.number, mid, *file.state, file.reason).write())
                queue.set_reason(mid, file.reason)
            elif any(file.state):
                transaction.append(records.Changed(queue.number, mid, *file.state).write())
            if any(file.state):
                queue.restore_state(mid, file.state)

    def _note_unlinked(self, tokens: Iterable[int]) -> None:
        """Notes that the files of these tokens are removed. Losing the note does no harm, as a start then finds no such
        file."""
        queue = self._queue
        for token in tokens:
            del queue.taken[token]
            queue.transaction.note((records.Unlinked(queue.number, token).write(),))


def files_size(files: Iterable[File]) -> int:
    """Returns the bytes of log that the messages of these files take."""
    beside = records.PUSH_SIZE + records.SMALL
    size = sum(len(file.payload) + beside + len(file.reason.encode()) for file in files) + records.SMALL
    return size + sum(len(pack_headers(file.headers)) + Attributes().size for file in files if file.headers)
